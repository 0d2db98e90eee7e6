//! Structs that the library fills, without what only C needs.

/// A struct with the named fields of one of `quire.h`, each converted by `Into`.
macro_rules! record {
    ($(#[$about:meta])* pub struct $name:ident of $raw:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl From<&crate::sys::$raw> for $name {
            fn from(raw: &crate::sys::$raw) -> $name {
                $name { $($field: raw.$field.into(),)* }
            }
        }
    };
}
pub(crate) use record;
