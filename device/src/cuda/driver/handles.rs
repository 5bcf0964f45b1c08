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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_each_type_is_kept_where_it_is() {
        let handles = Handles::default();
        assert_eq!(handles.get::<u32>(), None);
        let first: *const u32 = handles.add(7_u32);
        assert_eq!((handles.add("name"), handles.get::<u64>()), (&"name", None));
        let found = handles.get::<u32>().expect("it was added");
        assert_eq!((*found, std::ptr::from_ref(found)), (7, first));
        assert_eq!(handles.get::<&str>(), Some(&"name"));
    }
}
