//! What threads share: atomics, locks and threads of the usual libraries or, under `--cfg loom`, those of a model checker.
//! The tests named `loom_tests` then run in every order that the atomics allow.

#[cfg(not(loom))]
pub(crate) use {
    parking_lot::{Condvar, Mutex},
    std::hint::spin_loop,
    std::sync::atomic,
    std::{thread, thread_local},
};

#[cfg(loom)]
pub(crate) use {
    loom::hint::spin_loop,
    loom::sync::atomic,
    loom::{thread, thread_local},
    model::{Condvar, Mutex},
};

#[cfg(loom)]
mod model {
    /// The checker's lock, called as parking_lot's is.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// `None` only while its thread sleeps.
    pub(crate) struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Guard(self.0.lock().ok())
        }
    }

    /// The checker's condition variable, called as parking_lot's is.
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            guard.0 = guard.0.take().and_then(|guard| self.0.wait(guard).ok());
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
