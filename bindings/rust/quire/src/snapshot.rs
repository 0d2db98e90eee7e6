//! Sessions in files and elsewhere: saving, describing and verifying snapshots.
//!
//! ```no_run
//! # fn run(session: quire::Session, model: quire::Model) -> quire::Result<()> {
//! use quire::{snapshot, Watch};
//! session.save("book.quire")?;
//! println!("{}", snapshot::describe("book.quire")?);
//! let later = model.load_session("book.quire", &Default::default())?; // nothing is read again
//!
//! let mut bytes = Vec::new();
//! session.save_to(&mut bytes, Watch::new())?;
//! let again = model.load_session_from(bytes, &Default::default())?;
//! # Ok(()) }
//! ```

use std::io::Write;
use std::path::Path;

use crate::cancel::WatchFields;
use crate::text::flag;
use crate::{call, sys, Model, Result, Session, SessionOptions, Watch};

mod reader;
mod writer;

pub use reader::ReadAt;

pub(crate) fn raw_options(watch: &WatchFields, whole: bool) -> sys::quire_snapshot_options {
    sys::quire_snapshot_options {
        flags: flag(whole, sys::QUIRE_SNAPSHOT_WHOLE),
        cancel: watch.cancel,
        progress: watch.progress,
        progress_user_data: watch.user_data,
        ..call::init(sys::quire_snapshot_options_init)
    }
}

impl Session {
    /// Writes the session to a file, where it appears whole or not at all. Into the file that the session comes from only
    /// what is new is written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path.as_ref(), false, Watch::new())
    }

    /// The same, watched. `whole`: all of the session is written, wherever its past is.
    ///
    /// See [`sys::quire_session_save`].
    pub fn save_with(&self, path: impl AsRef<Path>, whole: bool, watch: Watch<'_>) -> Result<()> {
        let (path, len) = call::path(path.as_ref())?;
        watch.during(|watch| {
            let options = raw_options(&watch, whole);
            call::call(|error| unsafe { sys::quire_session_save(self.raw(), path, len, &options, error) })
        })?;
        Ok(())
    }

    /// Writes the same bytes elsewhere, from the first to the last, and flushes. When the call fails, what was written is
    /// of no use. An error of the writer becomes one with [`Status::Io`](crate::Status::Io), and so does a panic.
    ///
    /// See [`sys::quire_session_save_to`].
    pub fn save_to(&self, mut writer: impl Write, watch: Watch<'_>) -> Result<()> {
        watch.during(|watch| {
            let (mut target, options): (&mut dyn Write, _) = (&mut writer, raw_options(&watch, false));
            let writer = writer::raw(&mut target);
            call::call(|error| unsafe { sys::quire_session_save_to(self.raw(), &writer, &options, error) })
        })?;
        Ok(())
    }
}

impl Model {
    /// A session that goes on where a saved one stood, read from anywhere. The reader is kept as long as a session lives that
    /// reads there (this one, its forks, those that took over chunks of it), is read on the library's threads, several at
    /// once, and must not change. Its errors and panics become those of the call or stream, with
    /// [`Status::Io`](crate::Status::Io).
    ///
    /// See [`sys::quire_session_load_from`].
    pub fn load_session_from(&self, reader: impl ReadAt + 'static, options: &SessionOptions) -> Result<Session> {
        let mut reader = reader::Owned::new(Box::new(reader))?;
        options.with_raw(|raw| {
            let made = call::make(|out, error| unsafe {
                sys::quire_session_load_from(self.0.raw(), reader.raw(), raw, out, error)
            })?;
            reader.keep();
            Ok(Session::own(made))
        })?
    }
}

/// What a snapshot says of itself, as JSON (`quire_snapshot_describe` in `quire.h`).
///
/// See [`sys::quire_snapshot_describe`].
pub fn describe(path: impl AsRef<Path>) -> Result<String> {
    let (path, len) = call::path(path.as_ref())?;
    call::read_text(1024, |buffer, capacity, needed, error| unsafe {
        sys::quire_snapshot_describe(path, len, buffer, capacity, needed, error)
    })
}

/// The same for one that is read from anywhere.
///
/// See [`sys::quire_snapshot_describe_from`].
pub fn describe_from(reader: &dyn ReadAt) -> Result<String> {
    let reader = reader::borrowed(&reader)?;
    call::read_text(1024, |buffer, capacity, needed, error| unsafe {
        sys::quire_snapshot_describe_from(&reader, buffer, capacity, needed, error)
    })
}

/// Reads all of a snapshot and compares its checksums; the error says what is damaged.
///
/// See [`sys::quire_snapshot_verify`].
pub fn verify(path: impl AsRef<Path>, watch: Watch<'_>) -> Result<()> {
    let (path, len) = call::path(path.as_ref())?;
    watch.during(|watch| {
        let options = raw_options(&watch, false);
        call::call(|error| unsafe { sys::quire_snapshot_verify(path, len, &options, error) })
    })?;
    Ok(())
}

/// The same for one that is read from anywhere.
///
/// See [`sys::quire_snapshot_verify_from`].
pub fn verify_from(reader: &dyn ReadAt, watch: Watch<'_>) -> Result<()> {
    let reader = reader::borrowed(&reader)?;
    watch.during(|watch| {
        let options = raw_options(&watch, false);
        call::call(|error| unsafe { sys::quire_snapshot_verify_from(&reader, &options, error) })
    })?;
    Ok(())
}
