//! Streams in asynchronous code.
#![cfg(unix)]

use std::io::{Read, Write};
use std::os::raw::{c_int, c_short};
use std::os::unix::io::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Error, Event, Result, Stream};

impl Stream {
    /// The next event for asynchronous code: what `Stream::poll_next` of the crate `futures` does. When there is none the
    /// task is woken once one has come. No executor is needed: the first call that finds nothing starts a thread that waits
    /// for this stream, which ends when the stream is dropped.
    ///
    /// ```no_run
    /// # async fn run(mut stream: quire::Stream) -> quire::Result<()> {
    /// while let Some(event) = std::future::poll_fn(|context| stream.poll_next(context)).await {
    ///     print!("{}", event?.text);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let event = self.next_timeout(Duration::ZERO);
        if event.is_ready() {
            return event;
        }
        match self.wake_when_ready(context.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    fn wake_when_ready(&mut self, waker: &Waker) -> Result<()> {
        let watcher = match self.watcher.take() {
            Some(watcher) => watcher,
            None => Watcher::start(self.wait_handle()?.0 as c_int).map_err(|error| Error::io(&error))?,
        };
        self.watcher.insert(watcher).watch(waker).map_err(|error| Error::io(&error))
    }
}

/// A thread that waits for a stream's handle and wakes a task. It is ended and joined when this is dropped, before the
/// handle is gone.
pub(crate) struct Watcher {
    waker: Arc<Mutex<Option<Waker>>>,
    /// A byte for each task to wake; closed when it is over.
    orders: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(handle: c_int) -> std::io::Result<Watcher> {
        let (orders, received) = UnixStream::pair()?;
        let waker = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&waker);
        let thread = std::thread::Builder::new().name("quire-wake".to_string());
        let thread = thread.spawn(move || work(handle, received, &slot))?;
        Ok(Watcher { waker, orders: Some(orders), thread: Some(thread) })
    }

    fn watch(&mut self, waker: &Waker) -> std::io::Result<()> {
        let before = self.waker.lock().unwrap_or_else(PoisonError::into_inner).replace(waker.clone());
        match &mut self.orders {
            Some(orders) if before.is_none() => orders.write_all(&[1]),
            _ => Ok(()), // the thread waits already
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.orders = None;
        let Some(thread) = self.thread.take() else { return };
        // Waking a task may drop it, and this stream with it, on the thread itself: that ends by itself then, and does not
        // look at the handle any more.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

fn work(handle: c_int, mut orders: UnixStream, waker: &Mutex<Option<Waker>>) {
    let mut order = [0];
    while matches!(orders.read(&mut order), Ok(1)) {
        // Until an event has come or the orders are closed; another order cannot come while a task is waited for.
        let mut watched = [PollFd::new(handle), PollFd::new(orders.as_raw_fd())];
        while unsafe { poll(watched.as_mut_ptr(), watched.len() as Count, -1) } < 0 {}
        if watched[1].happened != 0 {
            continue;
        }
        let task = waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// `struct pollfd` of <poll.h>.
#[repr(C)]
struct PollFd {
    descriptor: c_int,
    wanted: c_short,
    happened: c_short,
}

impl PollFd {
    fn new(descriptor: c_int) -> PollFd {
        const POLLIN: c_short = 1;
        PollFd { descriptor, wanted: POLLIN, happened: 0 }
    }
}

/// `nfds_t`.
#[cfg(any(target_os = "linux", target_os = "android"))]
type Count = std::os::raw::c_ulong;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
type Count = std::os::raw::c_uint;

extern "C" {
    fn poll(descriptors: *mut PollFd, count: Count, timeout_ms: c_int) -> c_int;
}
