//! Statuses and errors.

use std::fmt;

use crate::names::c_enum;
use crate::{call, sys};

/// The result of a call that may fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

c_enum! {
    /// Why a call failed.
    pub enum Status {
        /// A bug in Quire; please report the message.
        Internal = sys::QUIRE_ERROR_INTERNAL,
        /// A size, range or name that makes no sense; the message names it.
        InvalidArgument = sys::QUIRE_ERROR_INVALID_ARGUMENT,
        /// The allocator or the system gave no memory.
        OutOfMemory = sys::QUIRE_ERROR_OUT_OF_MEMORY,
        /// A file operation failed: [`Error::os_error`] says why.
        Io = sys::QUIRE_ERROR_IO,
        /// No such file, metadata key or tensor.
        NotFound = sys::QUIRE_ERROR_NOT_FOUND,
        /// Damaged or contradictory files; the offset is a byte.
        BadFile = sys::QUIRE_ERROR_BAD_FILE,
        /// Well-formed, but not done; the message names it.
        Unsupported = sys::QUIRE_ERROR_UNSUPPORTED,
        /// A stream is open on this session.
        Busy = sys::QUIRE_ERROR_BUSY,
        /// The object or one of its parents was closed.
        Closed = sys::QUIRE_ERROR_CLOSED,
        /// Cancelled by the caller.
        Cancelled = sys::QUIRE_ERROR_CANCELLED,
        /// Prompt and `max_tokens` exceed the strategy's reach.
        Overflow = sys::QUIRE_ERROR_OVERFLOW,
        /// A budget of bytes is too small; the message says what is needed.
        Budget = sys::QUIRE_ERROR_BUDGET,
        /// A wrong strategy expression; the offset is a column.
        BadStrategy = sys::QUIRE_ERROR_BAD_STRATEGY,
        /// Text is not whole, valid UTF-8; the offset is a byte. No method returns it: a `str` is.
        InvalidText = sys::QUIRE_ERROR_INVALID_TEXT,
        /// An id outside the vocabulary; the offset is its index.
        InvalidToken = sys::QUIRE_ERROR_INVALID_TOKEN,
        /// The model produced NaN or infinite logits.
        Numeric = sys::QUIRE_ERROR_NUMERIC,
        /// Generation asked of a session that has read nothing.
        Empty = sys::QUIRE_ERROR_EMPTY,
        /// The room for a result was too small. No method returns it: they ask again with more room.
        BufferTooSmall = sys::QUIRE_ERROR_BUFFER_TOO_SMALL,
        /// A GPU or its driver failed; the message says how.
        Device = sys::QUIRE_ERROR_DEVICE,
    }
}

impl Status {
    /// The name in `quire.h` without its prefix, such as "OUT_OF_MEMORY".
    ///
    /// See [`sys::quire_get_status_name`].
    ///
    /// ```
    /// assert_eq!(quire::Status::BadFile.name(), "BAD_FILE");
    /// ```
    pub fn name(self) -> &'static str {
        call::static_text(unsafe { sys::quire_get_status_name(self.raw()) })
    }
}

/// What a failed call says.
///
/// ```no_run
/// # fn run(model: quire::Model) {
/// let error = model.session(&quire::SessionOptions::new("full(")).err().unwrap();
/// assert_eq!(error.status(), quire::Status::BadStrategy);
/// println!("column {:?}: {}", error.offset(), error.message());
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
    offset: Option<u64>,
    os_error: Option<i32>,
}

impl Error {
    pub(crate) fn new(raw: &sys::quire_error) -> Error {
        Error {
            status: Status::from_raw(raw.code),
            message: call::array_text(&raw.message),
            offset: u64::try_from(raw.offset).ok(),
            os_error: Some(raw.os_error).filter(|&code| code != 0),
        }
    }

    pub(crate) fn out_of_memory(message: String) -> Error {
        Error { status: Status::OutOfMemory, message, offset: None, os_error: None }
    }

    pub(crate) fn unsupported(message: String) -> Error {
        Error { status: Status::Unsupported, message, offset: None, os_error: None }
    }

    pub(crate) fn invalid(message: String) -> Error {
        Error { status: Status::InvalidArgument, message, offset: None, os_error: None }
    }

    /// What a control returns when its session or stream is gone.
    pub(crate) fn closed(what: &str) -> Error {
        Error { status: Status::Closed, message: format!("the {what} was dropped"), offset: None, os_error: None }
    }

    pub(crate) fn io(error: &std::io::Error) -> Error {
        Error { status: Status::Io, message: error.to_string(), offset: None, os_error: error.raw_os_error() }
    }

    /// Why the call failed.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What failed, for a person.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The byte, column or token index that the message speaks of.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// The system's error number (`errno`), where the system was the cause.
    pub fn os_error(&self) -> Option<i32> {
        self.os_error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}
