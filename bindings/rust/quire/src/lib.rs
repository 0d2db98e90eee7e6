//! Quire is a runtime for language models that read long documents. A [`Runtime`] has the threads, a [`Model`] the weights,
//! a [`Session`] a text that was read, and a [`Stream`] the events of one computation.
//!
//! ```no_run
//! use quire::{EventKind, Runtime, SessionOptions, StreamOptions};
//!
//! fn main() -> quire::Result<()> {
//!     let runtime = Runtime::new(Default::default())?;
//!     let model = runtime.load_model("path/to/model")?;
//!     let mut session = model.session(&SessionOptions::new("dca"))?;
//!     session.feed(&std::fs::read_to_string("book.txt").unwrap())?;
//!     session.feed("\n\nWho narrates the first chapter?\n")?;
//!     for event in session.stream(&StreamOptions::new(200))? {
//!         print!("{}", event?.text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Handles
//!
//! Each type owns one reference to an object of the library and releases it when it is dropped, on any thread and in any
//! order: objects keep their parents alive. `clone` of a [`Runtime`], [`Model`], [`Tokenizer`], [`Adapter`], [`Cancel`] or
//! [`Store`] is another reference to the same object. Dropping never waits for computation; the `close` methods do.
//!
//! # Threads
//!
//! [`Runtime`], [`Model`], [`Tokenizer`], [`Adapter`], [`Cancel`] and [`Store`] are `Send` and `Sync`. [`Session`] and
//! [`Stream`] are `Send` only: one thread at a time uses them. What any thread may do with them meanwhile, such as cancel or
//! look at the statistics, is in [`SessionControl`] and [`StreamControl`].
//!
//! # Closures
//!
//! Closures that the library calls must not call Quire, save for dropping handles and [`Cancel::trigger`]. One that panics
//! never unwinds through C. What comes of the panic depends on the closure: one that watches progress has its panic resumed
//! by the call that it watched ([`Watch`]); readers and writers of snapshots make the call or stream fail with
//! [`Status::Io`]; the panic of a log sink is dropped, and an allocator that panics has no memory.
//!
//! # Errors
//!
//! Calls return [`Result`]; an [`Error`] has the status, a message for a person, and an offset where there is one. A call
//! that failed changed nothing, unless its description says otherwise.
//!
//! What the functions compute is documented in `quire.h`, and in [`sys`], which is that header for Rust. Where a method's
//! description ends with "See", the C function that it names there lists the errors, limits and units.

#![deny(missing_docs)]
#![cfg_attr(not(test), warn(unreachable_pub))]

pub use quire_sys as sys;

/// What is shown in the crate's README.md must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod adapter;
mod allocator;
mod call;
mod cancel;
mod chat;
mod cite;
mod edit;
mod error;
mod event;
pub mod experimental;
mod handle;
mod matrix;
mod model;
mod model_options;
mod names;
mod poll;
mod quantize;
mod record;
mod runtime;
mod runtime_options;
mod sampler;
mod session;
mod session_control;
mod session_options;
pub mod snapshot;
mod store;
mod strategy;
mod stream;
mod stream_control;
mod stream_options;
mod text;
mod tokenizer;

pub use adapter::{Adapter, AdapterInfo};
pub use cancel::{Cancel, Watch};
pub use chat::{chat_templates, ChatOptions, Message};
pub use cite::{Label, LabelShare, Passage};
pub use edit::{EditOptions, Edited};
pub use error::{Error, Result, Status};
pub use event::{End, Event, EventKind, Notice, Prefill, Token};
pub use matrix::Matrix;
pub use model::{describe_files, Model, ModelInfo, RateEstimate};
pub use model_options::ModelOptions;
pub use names::{DeviceKind, ElementType, Finish, LoadMode, LogLevel, MessageCode, Overflow, Reuse, ReuseMiss, Tier};
pub use quantize::{quantizations, quantize, QuantizeOptions};
pub use runtime::{Device, LogLine, MemoryPlan, Runtime, RuntimeStats};
pub use runtime_options::RuntimeOptions;
pub use sampler::Sampler;
pub use session::Session;
pub use session_control::{SessionControl, SessionStats, TierStats, TokenCounts};
pub use session_options::{SessionOptions, OLD_AT_ONCE};
pub use store::{Store, StoreMatch, StoreOptions};
pub use strategy::StrategyOptions;
pub use stream::Stream;
pub use stream_control::StreamControl;
pub use stream_options::StreamOptions;
pub use text::TextOptions;
pub use tokenizer::Tokenizer;

/// The version of the library that was loaded, as text: "0.1.0".
///
/// See [`sys::quire_get_version_string`].
pub fn version() -> &'static str {
    call::static_text(unsafe { sys::quire_get_version_string() })
}

/// The same as a number: major * 10000 + minor * 100 + patch. [`sys::QUIRE_VERSION`] is what this crate was written for.
pub fn version_number() -> i32 {
    unsafe { sys::quire_get_version() }
}
