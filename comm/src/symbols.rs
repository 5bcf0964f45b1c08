//! Tables of functions that are loaded at run time.

/// Defines a struct with a field for each function, and `find`, which looks all of them up.
macro_rules! symbols {
    ($(#[$meta:meta])* $table:ident $(<$handle:ident>)?, $($field:ident = $symbol:literal: $kind:ty,)+) => {
        $(#[$meta])*
        pub(super) struct $table $(<$handle>)? {
            $(pub(super) $field: $kind,)+
        }

        impl $(<$handle>)? $table $(<$handle>)? {
            /// The functions; the name of one that the library lacks.
            ///
            /// # Safety
            /// The library's functions with these names have these types.
            unsafe fn find(library: &'static libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: the caller promises the types. The library is never unloaded.
                unsafe { Ok($table { $($field: *library.get::<$kind>($symbol).map_err(|_| $symbol)?,)+ }) }
            }
        }
    };
}

pub(crate) use symbols;
