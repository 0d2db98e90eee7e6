//! What any thread may do with a stream.

use std::sync::{Arc, Weak};

use crate::handle::{opaque_debug, Handle};
use crate::text::raw_texts;
use crate::{call, sys, Error, Result};

/// What any thread may do with a stream while another one reads its events: cancel it, close it, add stops.
/// [`Stream::control`](crate::Stream::control) makes one. It does not keep the stream: once that was dropped, all calls return
/// [`Status::Closed`](crate::Status::Closed).
///
/// ```no_run
/// # fn run(stream: quire::Stream) {
/// let control = stream.control();
/// std::thread::spawn(move || control.cancel());
/// for event in stream { /* the last one is the end event, with Finish::Cancelled */ }
/// # }
/// ```
#[derive(Clone)]
pub struct StreamControl(pub(crate) Weak<Handle<sys::quire_stream>>);

opaque_debug!(StreamControl);

impl StreamControl {
    fn handle(&self) -> Result<Arc<Handle<sys::quire_stream>>> {
        self.0.upgrade().ok_or_else(|| Error::closed("stream"))
    }

    /// Asks the stream to stop. The next event is then the end event, with
    /// [`Finish::Cancelled`](crate::Finish::Cancelled), unless the stream has come to its end already.
    ///
    /// See [`sys::quire_stream_cancel`].
    pub fn cancel(&self) -> Result<()> {
        let stream = self.handle()?;
        call::call(|error| unsafe { sys::quire_stream_cancel(stream.raw(), error) })?;
        Ok(())
    }

    /// Stops the stream and waits until no thread works for it. The session stands at the last delivered token. Not from a
    /// closure that Quire calls.
    ///
    /// See [`sys::quire_stream_close`].
    pub fn close(&self) -> Result<()> {
        let stream = self.handle()?;
        call::call(|error| unsafe { sys::quire_stream_close(stream.raw(), error) })?;
        Ok(())
    }

    /// More ids that end the answer, for all tokens that are not delivered yet.
    ///
    /// See [`sys::quire_stream_add_stop_ids`].
    pub fn add_stop_ids(&self, ids: &[i32]) -> Result<()> {
        let stream = self.handle()?;
        let (ids, len) = call::slice(ids);
        call::call(|error| unsafe { sys::quire_stream_add_stop_ids(stream.raw(), ids, len, error) })?;
        Ok(())
    }

    /// More strings that end the answer, sought in text that was not delivered yet. Their indexes go on behind those that the
    /// stream has.
    ///
    /// See [`sys::quire_stream_add_stop_strings`].
    pub fn add_stop_strings(&self, strings: &[String]) -> Result<()> {
        let stream = self.handle()?;
        let texts = raw_texts(strings);
        let (texts, len) = call::slice(&texts);
        call::call(|error| unsafe { sys::quire_stream_add_stop_strings(stream.raw(), texts, len, error) })?;
        Ok(())
    }
}
