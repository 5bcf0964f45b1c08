//! What a communicator and its collectives can be asked for.

use std::time::Duration;

use crate::{Collective, ReduceOrder};

/// What a communicator can be asked to be.
#[derive(Clone, Copy, Debug)]
pub struct CommOptions {
    /// The order of reductions.
    pub order: ReduceOrder,
    /// How long a rank waits for the others before that is `CollectiveTimeout`;
    /// five minutes by default.
    pub timeout: Duration,
    /// A network that the threads of one process shall behave as if they had between them.
    pub model: Option<CommModel>,
}

impl Default for CommOptions {
    fn default() -> CommOptions {
        CommOptions { order: ReduceOrder::default(), timeout: Duration::from_secs(300), model: None }
    }
}

/// A modelled network: a collective of threads ends when it would have ended there. The stream waits, not the host.
///
/// With `n` ranks, `a` the latency, `b` the bandwidth, and `B` the bytes of the whole tensor, of all ranks' parts where it is in
/// parts:
///
/// | collective | seconds |
/// |---|---|
/// | all-reduce | `2 (n - 1) (a + B / (n b))`, a ring |
/// | all-gather, reduce-scatter, all-to-all | `(n - 1) (a + B / (n b))`, a ring |
/// | broadcast | `ceil(log2 n) (a + B / b)`, a tree |
/// | barrier | `ceil(log2 n) a`, a tree |
/// | send | nothing: receive has `a + B / b` |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommModel {
    /// From the start of a message to its first byte.
    pub latency: Duration,
    /// Bytes a second of one rank.
    pub bandwidth: f64,
}

impl CommModel {
    /// How long a collective of that many bytes of one rank takes with that many ranks, as the table says.
    pub fn time(&self, collective: Collective, bytes: usize, ranks: usize) -> Duration {
        let others = ranks.saturating_sub(1) as f64;
        let levels = f64::from(ranks.next_power_of_two().trailing_zeros());
        let bytes = bytes as f64;
        let part = bytes / ranks.max(1) as f64;
        let (messages, each) = match collective {
            Collective::AllReduce(_) => (2.0 * others, part),
            Collective::AllGather => (others, bytes),
            Collective::ReduceScatter(_) | Collective::AllToAll => (others, part),
            Collective::Broadcast { .. } => (levels, bytes),
            Collective::Barrier => (levels, 0.0),
            Collective::Send { .. } => (0.0, 0.0),
            Collective::Recv { .. } => (1.0, bytes),
        };
        let seconds = messages * (self.latency.as_secs_f64() + each / self.bandwidth);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}
