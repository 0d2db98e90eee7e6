//! `quire.h` for Rust: constants, structs and functions, and nothing else. The crate `quire` is the one to use.
//!
//! Structs that grow have a `Default` that sets `struct_size`. `ABI.md` says what callers of these functions may rely on.

#![allow(non_camel_case_types)]
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags, rustdoc::bare_urls)]
#![allow(clippy::doc_lazy_continuation, clippy::doc_overindented_list_items)]

#[rustfmt::skip]
mod raw;

pub use raw::*;
