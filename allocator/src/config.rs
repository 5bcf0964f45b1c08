//! How the allocator decides where it has a choice.

use serde::Serialize;

/// When a stream waits for memory that another stream still uses, and when it takes new memory instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ReusePolicy {
    /// New memory, as long as what is pending for the stream is not more than what is live in its arena, or
    /// than 2 MiB; beyond that, wait. The default: it keeps streams apart and a host that runs far ahead in
    /// bounds.
    #[default]
    Balanced,
    /// Never take new memory while a free block fits, whoever it waits for. The least memory.
    WaitFirst,
    /// Always take new memory, up to the limit. The fewest waits.
    GrowFirst,
}

/// The allocator's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocatorConfig {
    /// Decide from the order of the program's calls only, never from how far the device got: the same program
    /// then gets the same addresses and peaks at any timing. If several host threads allocate, the order of
    /// their calls counts, but only where their streams wait for each other. What can go back to the driver
    /// depends on what the device has finished: so it does only once memory runs out, and free pages do not
    /// move to where memory is needed. Nor is it asked which streams are gone: from the 1025th on, a new stream
    /// takes over the memory of one that has nothing live.
    pub deterministic: bool,
    /// Cached bytes above which free memory goes back to the driver, looked at when an arena grows, unless
    /// `deterministic`. `None` keeps everything.
    pub release_threshold: Option<usize>,
    /// Whether to wait or to grow.
    pub reuse: ReusePolicy,
}
