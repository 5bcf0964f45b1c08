//! Branches: parts of one program that run on streams of their own.

use std::sync::Arc;

use crate::fifo::Fifo;
use crate::stream::{Handle, Side};
use crate::{Device, OnDrop, Placement, Result, Stream, StreamOptions, SyncMode};

/// Closures that [`Device::concurrent`] runs at once: a tuple of 2 to 8 `FnOnce() -> Result<T>`, or those of
/// [`Device::concurrent_all`].
pub trait Branches: Sized {
    /// What they give: a tuple of each closure's `T`.
    type Output;

    /// How many streams they take.
    fn streams(&self) -> usize;

    /// Calls each of them on its stream, in order.
    ///
    /// # Errors
    /// That of the first one to fail; those after it are not called.
    fn run_on(self, streams: &[Stream]) -> Result<Self::Output>;
}

/// A function cannot be generic over the length of a tuple.
macro_rules! branches {
    ($(($f:ident, $r:ident, $at:tt)),+) => {
        impl<$($f: FnOnce() -> Result<$r>, $r),+> Branches for ($($f,)+) {
            type Output = ($($r,)+);

            fn streams(&self) -> usize {
                [$($at),+].len()
            }

            fn run_on(self, streams: &[Stream]) -> Result<Self::Output> {
                Ok(($(streams[$at].scope(self.$at)?,)+))
            }
        }
    };
}

branches!((F, R, 0), (G, S, 1));
branches!((F, R, 0), (G, S, 1), (H, T, 2));
branches!((F, R, 0), (G, S, 1), (H, T, 2), (I, U, 3));
branches!((F, R, 0), (G, S, 1), (H, T, 2), (I, U, 3), (J, V, 4));
branches!((F, R, 0), (G, S, 1), (H, T, 2), (I, U, 3), (J, V, 4), (K, W, 5));
branches!((F, R, 0), (G, S, 1), (H, T, 2), (I, U, 3), (J, V, 4), (K, W, 5), (L, X, 6));
branches!((F, R, 0), (G, S, 1), (H, T, 2), (I, U, 3), (J, V, 4), (K, W, 5), (L, X, 6), (M, Y, 7));

/// Any number of closures of one type, in turn on at most this many streams.
struct All<F>(Vec<F>);

const MOST_STREAMS: usize = 8;

impl<F: FnOnce() -> Result<R>, R> Branches for All<F> {
    type Output = Vec<R>;

    fn streams(&self) -> usize {
        self.0.len().min(MOST_STREAMS)
    }

    fn run_on(self, streams: &[Stream]) -> Result<Vec<R>> {
        self.0.into_iter().zip(streams.iter().cycle()).map(|(branch, stream)| stream.scope(branch)).collect()
    }
}

impl Device {
    /// Runs closures on streams of their own: what they launch runs at once. Gives what each of them gives.
    ///
    /// The calling thread calls them one after the other, so that all that follows from their order, such as random numbers,
    /// is as in `(f()?, g()?)`, and results are the same bit for bit. Nobody is waited for: who uses a result comes after it.
    /// Gradients of ops run on the streams of the ops, so the backward passes of branches run at once, too.
    ///
    /// The streams are those of [`Stream::branches`]: the current stream keeps them from call to call, and branches within
    /// branches, or within the lanes of a step, have others. On a CPU each has a worker and an even share of the threads.
    /// A command is handed to it in about a microsecond, so branches there are worth it if their commands take longer.
    ///
    /// ```
    /// use device::{Device, Stream};
    /// let dev = Device::cpu();
    /// let id = || Ok(Stream::current(&dev).id());
    /// let (left, right) = dev.concurrent((id, id))?;
    /// assert_ne!(left, right);
    /// assert_eq!(dev.concurrent((id, id))?, (left, right));
    /// # Ok::<(), device::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of the first closure that fails; those after it are not called. `Io` if the system gives
    /// no thread.
    pub fn concurrent<B: Branches>(&self, branches: B) -> Result<B::Output> {
        let current = Stream::current(self);
        let streams = current.branches(branches.streams())?;
        // Nobody else would order them after what came before, and what comes next after them.
        let is_manual = self.sync_mode() == SyncMode::Manual;
        if !is_manual {
            return branches.run_on(&streams);
        }
        streams.iter().try_for_each(|stream| stream.wait_stream(&current))?;
        let mut joined = Ok(());
        // Also if a branch fails or panics. Its failure is returned before that of the join.
        let join = OnDrop(|| joined = streams.iter().try_for_each(|stream| current.wait_stream(stream)));
        let done = branches.run_on(&streams);
        drop(join);
        done.and_then(|done| joined.map(|()| done))
    }

    /// [`concurrent`](Self::concurrent) for any number of closures of one type, such as the members of an ensemble: closure `i`
    /// runs on stream `i % 8`.
    ///
    /// ```
    /// use device::{Device, Stream};
    /// let dev = Device::cpu();
    /// let streams = dev.concurrent_all((0..3).map(|_| || Ok(Stream::current(&dev).id())))?;
    /// assert!(streams[0] != streams[1] && streams[1] != streams[2]);
    /// # Ok::<(), device::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`concurrent`](Self::concurrent).
    pub fn concurrent_all<F, R>(&self, branches: impl IntoIterator<Item = F>) -> Result<Vec<R>>
    where
        F: FnOnce() -> Result<R>,
    {
        self.concurrent(All(branches.into_iter().collect()))
    }
}

impl Stream {
    /// The streams on which [`Device::concurrent`] runs `count` closures while this stream is the current one. They are made
    /// at the first call, have this stream's priority, share its threads evenly, and live as long as it does.
    ///
    /// # Errors
    /// `Io` if the system gives no thread for them.
    #[derive::located]
    pub fn branches(&self, count: usize) -> Result<Vec<Stream>> {
        let priority = self.priority();
        let branch = |fifo: &Arc<Fifo>| {
            let (device, fifo) = (self.device().clone(), Arc::clone(fifo));
            Stream(Handle::Side(Arc::new(Side { device, fifo, priority, branch_of: Some(self.clone()) })))
        };
        let mut known = self.fifo().branches.lock();
        if let Some(fifos) = known.iter().find(|fifos| fifos.len() == count) {
            return Ok(fifos.iter().map(branch).collect());
        }
        let threads = Some((self.fifo().threads / count.max(1)).max(1));
        let options = StreamOptions { priority, placement: Placement::Worker, threads };
        let mut fifos: Vec<Arc<Fifo>> = Vec::with_capacity(count);
        for _ in 0..count {
            match self.device().new_fifo(options) {
                Ok(fifo) => fifos.push(fifo),
                Err(error) => {
                    fifos.iter().for_each(|fifo| fifo.close());
                    return Err(error);
                }
            }
        }
        let streams = fifos.iter().map(branch).collect();
        known.push(fifos);
        Ok(streams)
    }
}
