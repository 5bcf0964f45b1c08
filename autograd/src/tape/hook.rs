//! Functions that see gradients on their way.

use std::fmt;
use std::sync::{Arc, Weak};

use device::AtCaller;
use tensor::Result;

use super::Var;

type Function = dyn Fn(&Var) -> Result<Option<Var>> + Send + Sync;

/// A hook as its value knows it: the handle owns it, so that one which holds the value keeps nothing alive by itself.
#[derive(Clone)]
pub(crate) struct Hook(pub(super) Weak<Function>);

/// Hooks in the order in which they were registered: a word where there are none, as few values have any.
#[allow(clippy::box_collection)]
pub(crate) type Hooks = Option<Box<Vec<Hook>>>;

impl Hook {
    pub(crate) fn is_removed(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// What the hook puts in the gradient's place.
    pub(crate) fn call(&self, gradient: &Var) -> Result<Option<Var>> {
        let _user = AtCaller::leave();
        self.0.upgrade().map_or(Ok(None), |hook| hook(gradient))
    }
}

/// A registered hook, which lives as long as this; see [`Var::register_hook`].
#[must_use = "the hook is removed when its handle is dropped"]
pub struct HookHandle(pub(super) Arc<Function>);

impl HookHandle {
    /// Removes the hook, as dropping the handle does. It is not called any more, unless it is being called now.
    pub fn remove(self) {}
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookHandle").finish_non_exhaustive()
    }
}
