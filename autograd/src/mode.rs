//! Whether ops are recorded, and the order in which they are.

use std::cell::Cell;

use device::OnDrop;

struct Mode {
    recording: Cell<Recording>,
    sequence: Cell<u64>,
    perturbation: Cell<u64>,
}

/// What is done about an op that has a gradient.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recording {
    Off,
    /// It is recorded on the tape.
    On,
    /// What it uses of the tape is noticed: [`recompute`](crate::recompute) records the whole as one op.
    Noticed,
    /// It is recorded, and the values of the tape that it uses are compared with what was noticed the first time.
    Again,
}

thread_local! {
    static MODE: Mode =
        const { Mode { recording: Cell::new(Recording::On), sequence: Cell::new(0), perturbation: Cell::new(0) } };
}

/// Whether ops of this thread are recorded on the tape, by themselves or as parts of what is [recomputed](crate::recompute).
#[inline]
pub fn is_recording() -> bool {
    recording() != Recording::Off
}

#[inline]
pub(crate) fn recording() -> Recording {
    MODE.with(|mode| mode.recording.get())
}

impl From<bool> for Recording {
    fn from(on: bool) -> Recording {
        if on { Recording::On } else { Recording::Off }
    }
}

/// Runs `f` without recording; the former state is restored on return and on panic.
///
/// ```
/// use autograd::{is_recording, no_grad};
/// assert!(!no_grad(is_recording));
/// assert!(is_recording());
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_recording(Recording::Off, f)
}

/// Runs `f` with recording, within [`no_grad`], too; the former state is restored on return and on panic.
///
/// ```
/// use autograd::{Var, no_grad, with_grad};
/// use tensor::{DType, Device, Tensor};
/// let x = Var::leaf(Tensor::full(&[2], 3.0, DType::F32, &Device::cpu())?);
/// let slope = no_grad(|| with_grad(|| x.square()?.sum_all())?.backward())?;
/// assert_eq!(slope.get(&x).map(|g| g.to_vec::<f32>()).transpose()?, Some(vec![6.0, 6.0]));
/// # Ok::<(), tensor::Error>(())
/// ```
pub fn with_grad<R>(f: impl FnOnce() -> R) -> R {
    if is_recording() { f() } else { with_recording(Recording::On, f) }
}

/// Runs `f` in another state; the former one is restored on return and on panic.
pub(crate) fn with_recording<R>(recording: Recording, f: impl FnOnce() -> R) -> R {
    let outer = MODE.with(|mode| mode.recording.replace(recording));
    let _restore = OnDrop(|| MODE.with(|mode| mode.recording.set(outer)));
    f()
}

/// Which last bits results have in place of their own: the number of a perturbation, 0 for none.
#[inline]
pub(crate) fn perturbation() -> u64 {
    MODE.with(|mode| mode.perturbation.get())
}

/// Runs `f` with a perturbation; the former one is restored on return and on panic.
pub(crate) fn with_perturbation<R>(perturbation: u64, f: impl FnOnce() -> R) -> R {
    let outer = MODE.with(|mode| mode.perturbation.replace(perturbation));
    let _restore = OnDrop(|| MODE.with(|mode| mode.perturbation.set(outer)));
    f()
}

/// The next place in the order of recorded ops: after everything this thread recorded and after `inputs`, the
/// newest of what the op reads. A thread's own order does not depend on other threads.
#[inline]
pub(crate) fn next_sequence(inputs: u64) -> u64 {
    MODE.with(|mode| {
        let next = mode.sequence.get().max(inputs) + 1;
        mode.sequence.set(next);
        next
    })
}
