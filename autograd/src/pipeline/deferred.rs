//! Updates that wait for the end of a step, so that their order is that of the batches.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use device::{AtCaller, OnDrop};
use tensor::Result;

/// Something to do once.
pub(super) type Update = Box<dyn FnOnce() -> Result<()> + Send>;

thread_local! {
    /// What the batch that this thread runs has put off; `None` outside of a batch. It has no destructor, since ops also run
    /// while a thread or the process ends.
    static BATCH: RefCell<ManuallyDrop<Option<Vec<Update>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Runs `update`: at once, or, within a batch of [`ConcurrentBatches`](crate::ConcurrentBatches), when the step's gradients
/// are merged, after the updates of all batches before. If a batch of the step fails, none is run.
///
/// For state that forward passes change beside their value, such as running statistics: several batches change it at once,
/// and the result has to be that of one after the other.
///
/// ```
/// use autograd::{Device, Tensor, defer};
/// let seen = Tensor::zeros(&[], tensor::DType::I64, &Device::cpu())?;
/// let counter = seen.clone();
/// defer(move || counter.add_scalar_(1.0))?;
/// assert_eq!(seen.item::<i64>()?, 1);
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// That of an update that ran at once.
#[track_caller]
pub fn defer(update: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let caller = AtCaller::location();
    let mut update: Option<Update> = Some(Box::new(move || {
        let _at = AtCaller::enter_at(caller);
        update()
    }));
    BATCH.with_borrow_mut(|batch| {
        if let Some(batch) = &mut **batch {
            batch.extend(update.take());
        }
    });
    update.map_or(Ok(()), |update| update())
}

/// Whether this thread runs a batch.
pub(super) fn is_in_batch() -> bool {
    BATCH.with_borrow(|batch| batch.is_some())
}

fn replace(batch: Option<Vec<Update>>) -> Option<Vec<Update>> {
    ManuallyDrop::into_inner(BATCH.replace(ManuallyDrop::new(batch)))
}

/// Runs `f` as a batch, and gives what it put off.
pub(super) fn collect<R>(f: impl FnOnce() -> R) -> (R, Vec<Update>) {
    let (mut outer, mut updates) = (replace(Some(Vec::new())), None);
    let result = {
        let _restore = OnDrop(|| updates = replace(outer.take()));
        f()
    };
    (result, updates.unwrap_or_default())
}

/// Runs `f` for the second time: what it puts off was done for the first one.
pub(crate) fn discard_deferred<R>(f: impl FnOnce() -> R) -> R {
    collect(f).0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn updates_wait_for_the_end_of_their_batch_and_a_panic_ends_it() {
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let done = Arc::clone(&done);
            defer(move || {
                done.lock().unwrap().push(name);
                Ok(())
            })
            .unwrap();
        };
        let ((), updates) = collect(|| {
            note("first");
            let ((), inner) = collect(|| note("inner"));
            assert_eq!(inner.len(), 1);
            note("second");
        });
        note("at once");
        updates.into_iter().for_each(|update| update().unwrap());
        assert_eq!(*done.lock().unwrap(), ["at once", "first", "second"]);
        let panicked = catch_unwind(AssertUnwindSafe(|| collect(|| panic!("a batch fails"))));
        assert!(panicked.is_err());
        note("after a panic");
        assert_eq!(done.lock().unwrap().last(), Some(&"after a panic"));
    }
}
