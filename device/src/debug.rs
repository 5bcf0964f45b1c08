//! `Debug` for types that show only some of their fields, or what a method says of one.

macro_rules! debug_fields {
    ($name:ident $(<$lifetime:lifetime>)? { $($field:ident $(.$method:ident())?),* }) => {
        impl std::fmt::Debug for $name $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($name));
                $(shown.field(stringify!($field), &self.$field $(.$method())?);)*
                shown.finish_non_exhaustive()
            }
        }
    };
}
