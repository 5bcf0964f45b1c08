//! The slot of a device for the handles of libraries that other crates call.

use std::any::Any;
use std::sync::OnceLock;

/// Values of different types, which are added and stay: a list whose readers take no lock.
#[derive(Default)]
pub(super) struct Handles(OnceLock<Box<Entry>>);

struct Entry {
    handle: Box<dyn Any + Send + Sync>,
    next: Handles,
}

impl Handles {
    /// The first value of this type.
    pub(super) fn get<T: Any>(&self) -> Option<&T> {
        let entry = self.0.get()?;
        entry.handle.downcast_ref().or_else(|| entry.next.get())
    }

    /// Adds a value. One thread adds at a time.
    pub(super) fn add<T: Any + Send + Sync>(&self, new: T) -> &T {
        if let Some(entry) = self.0.get() {
            return entry.next.add(new);
        }
        let entry =
            self.0.get_or_init(|| Box::new(Entry { handle: Box::new(new), next: Handles::default() }));
        entry.handle.downcast_ref().unwrap_or_else(|| unreachable!("two threads add handles"))
    }
}
