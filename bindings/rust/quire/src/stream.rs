//! Streams of events.

use std::cell::Cell;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::handle::{opaque_debug, Handle};
use crate::{call, sys, Error, Event, Result, Status, StreamControl};

/// One computation on a session: an iterator of events, which waits for each.
///
/// [`Session::stream`](crate::Session::stream) opens one. After the end event, or an error that ended the stream, there are no
/// more. Dropping it stops it without waiting: the session stands at the last delivered token. A call on the session waits
/// until it has stopped.
pub struct Stream {
    /// Wakes a task that waits for an event.
    #[cfg(unix)]
    pub(crate) watcher: Option<crate::poll::Watcher>,
    handle: Arc<Handle<sys::quire_stream>>,
    event: sys::quire_event,
    ended: bool,
    /// One thread at a time may wait for events: the type is not `Sync`.
    _not_sync: PhantomData<Cell<()>>,
}

opaque_debug!(Stream);

// SAFETY: any thread may use a stream, one at a time; the event's pointers are read only in the call that set them.
unsafe impl Send for Stream {}

impl Stream {
    pub(crate) fn own(made: *mut sys::quire_stream) -> Stream {
        Stream {
            #[cfg(unix)]
            watcher: None,
            handle: Arc::new(Handle::own(made)),
            event: call::init(sys::quire_event_init),
            ended: false,
            _not_sync: PhantomData,
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::quire_stream {
        self.handle.raw()
    }

    /// What any thread may do with the stream while this one reads its events.
    pub fn control(&self) -> StreamControl {
        StreamControl(Arc::downgrade(&self.handle))
    }

    /// The next event if it comes within this time: `Pending` if not, `Ready(None)` after the last one.
    ///
    /// ```no_run
    /// # fn run(mut stream: quire::Stream) -> quire::Result<()> {
    /// use std::{task::Poll, time::Duration};
    /// loop {
    ///     match stream.next_timeout(Duration::from_millis(100)) {
    ///         Poll::Ready(Some(event)) => print!("{}", event?.text),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => {} // time to look after something else
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<Event>>> {
        let milliseconds = (timeout.as_nanos() + 999_999) / 1_000_000; // rounded up
        self.wait(i32::try_from(milliseconds).unwrap_or(i32::MAX))
    }

    /// `timeout_ms` below zero: forever.
    fn wait(&mut self, timeout_ms: i32) -> Poll<Option<Result<Event>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let (stream, event) = (self.handle.raw(), &mut self.event);
        match call::call(|error| unsafe { sys::quire_stream_next(stream, timeout_ms, event, error) }) {
            Ok(sys::QUIRE_TIMEOUT) => Poll::Pending,
            Ok(sys::QUIRE_END) => {
                self.ended = true;
                Poll::Ready(None)
            }
            // SAFETY: what the event points to lives until the next event of this stream is asked for.
            Ok(_) => Poll::Ready(Some(Ok(unsafe { Event::new(&self.event) }))),
            Err(error) => {
                self.ended = error.status() == Status::Closed;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// A handle for poll loops, and its kind ([`sys::QUIRE_WAIT_FD`]: a file descriptor to poll for reading). It is ready while
    /// an event or a failure waits. Only poll it; it belongs to the stream, and lives as long.
    ///
    /// With an executor's own reactor, wait for it there, and take what is there by
    /// [`next_timeout`](Stream::next_timeout) with no time. Without one, `poll_next` does all of it.
    pub fn wait_handle(&self) -> Result<(i64, i32)> {
        let (mut handle, mut kind) = (0, 0);
        call::call(|error| unsafe { sys::quire_stream_get_wait_handle(self.raw(), &mut handle, &mut kind, error) })?;
        Ok((handle, kind))
    }

    /// Asks the stream to stop ([`StreamControl::cancel`]).
    pub fn cancel(&self) -> Result<()> {
        self.control().cancel()
    }

    /// Stops the stream and waits until no thread works for it ([`StreamControl::close`]).
    pub fn close(&self) -> Result<()> {
        self.control().close()
    }

    /// More ids that end the answer ([`StreamControl::add_stop_ids`]).
    pub fn add_stop_ids(&self, ids: &[i32]) -> Result<()> {
        self.control().add_stop_ids(ids)
    }

    /// More strings that end the answer ([`StreamControl::add_stop_strings`]).
    pub fn add_stop_strings(&self, strings: &[String]) -> Result<()> {
        self.control().add_stop_strings(strings)
    }
}

impl Iterator for Stream {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Poll::Ready(event) = self.wait(-1) {
                return event;
            }
        }
    }
}

impl FusedIterator for Stream {}
