//! Functions that see gradients on their way.

use std::fmt;
use std::sync::{Arc, Weak};

use device::SpinLock;
use tensor::Result;

use crate::Var;

type Function = Arc<dyn Fn(&Var) -> Result<Option<Var>> + Send + Sync>;

/// A hook; empty once it was removed.
pub(crate) struct Hook(SpinLock<Option<Function>>);

/// Hooks in the order in which they were registered.
#[allow(clippy::box_collection)]
pub(crate) type HookList = Box<Vec<Arc<Hook>>>;

/// The hooks of a value: a word where there are none, as few values have any.
pub(crate) type Hooks = Option<HookList>;

impl Hook {
    pub(crate) fn new<F>(hook: F) -> Arc<Hook>
    where
        F: Fn(&Var) -> Result<Option<Var>> + Send + Sync + 'static,
    {
        Arc::new(Hook(SpinLock::new(Some(Arc::new(hook)))))
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.0.lock().is_none()
    }

    /// What the hook puts in the gradient's place.
    pub(crate) fn call(&self, gradient: &Var) -> Result<Option<Var>> {
        let hook = self.0.lock().clone();
        hook.map_or(Ok(None), |hook| hook(gradient))
    }
}

/// A registered hook, which it can remove; see [`Var::register_hook`]. To drop it changes nothing.
#[derive(Clone)]
pub struct HookHandle(Weak<Hook>);

impl HookHandle {
    pub(crate) fn new(hook: &Arc<Hook>) -> HookHandle {
        HookHandle(Arc::downgrade(hook))
    }

    /// Removes the hook, and lets go what it holds. It is not called any more, unless it is being called now. Does nothing
    /// if the hook is gone already.
    pub fn remove(&self) {
        let removed = self.0.upgrade().and_then(|hook| hook.0.lock().take());
        // Dropped without the lock: what the hook holds may be anything.
        drop(removed);
    }
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let removed = self.0.upgrade().is_none_or(|hook| hook.is_removed());
        f.debug_struct("HookHandle").field("removed", &removed).finish()
    }
}
