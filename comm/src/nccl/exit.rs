//! What the process waits for when it ends: the library must not be in use when its memory goes.

use std::sync::Once;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long the process waits.
const PATIENCE: Duration = Duration::from_secs(5);

struct State {
    /// How many uses of the library there are, besides those of members.
    uses: usize,
    has_ended: bool,
}

static STATE: Mutex<State> = Mutex::new(State { uses: 0, has_ended: false });
static CHANGED: Condvar = Condvar::new();

/// A use of the library that the end of the process waits for.
pub(super) struct InUse(());

impl InUse {
    /// `None` once the process has stopped waiting: the library must not be used any more.
    pub(super) fn begin() -> Option<InUse> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: `end` is a function of this program with the signature that `atexit` expects, and needs nothing but
            // statics. It runs before the handlers of NCCL and the driver, which were registered earlier. If it cannot be
            // registered, the process does not wait.
            let _ = unsafe { libc::atexit(end) };
        });
        let mut state = STATE.lock();
        state.uses += usize::from(!state.has_ended);
        (!state.has_ended).then_some(InUse(()))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        STATE.lock().uses -= 1;
        CHANGED.notify_all();
    }
}

extern "C" fn end() {
    let (mut state, deadline) = (STATE.lock(), Instant::now() + PATIENCE);
    while state.uses > 0 && !CHANGED.wait_until(&mut state, deadline).timed_out() {}
    state.has_ended = true;
}

/// Calls `f` on a thread of its own: the library frees memory, for which the driver waits for all that any device does, and for
/// graphs to go.
pub(super) fn apart(name: &str, f: impl FnOnce() + Send + 'static) {
    let Some(in_use) = InUse::begin() else { return };
    let f = move || {
        f();
        drop(in_use);
    };
    // Without a thread `f` is not called: it would block the caller.
    let _ = std::thread::Builder::new().name(name.into()).spawn(f);
}
