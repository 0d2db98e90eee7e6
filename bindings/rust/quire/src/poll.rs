//! Streams in asynchronous code.
#![cfg(unix)]

use std::io::{Read, Write};
use std::os::raw::{c_int, c_short};
use std::os::unix::io::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
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
        // After a failure there is none, and the next call starts another one.
        let mut watcher = match self.watcher.take() {
            Some(watcher) => watcher,
            None => Watcher::start(self.wait_handle()?.0 as c_int).map_err(|error| Error::io(&error))?,
        };
        watcher.watch(waker).map_err(|error| Error::io(&error))?;
        self.watcher = Some(watcher);
        Ok(())
    }
}

/// A thread that waits for a stream's handle and wakes a task. When this is dropped the thread ends by itself: nobody waits
/// for it, since it may be waking a task, which may need a lock that whoever drops the stream holds.
pub(crate) struct Watcher {
    waker: Arc<Mutex<Option<Waker>>>,
    /// A byte for each task to wake; closed when it is over.
    orders: UnixStream,
}

impl Watcher {
    fn start(handle: c_int) -> std::io::Result<Watcher> {
        // SAFETY: the stream, which is borrowed, keeps its handle open. The thread has a copy, which may outlive the stream.
        let handle = unsafe { BorrowedFd::borrow_raw(handle) }.try_clone_to_owned()?;
        let (orders, received) = UnixStream::pair()?;
        let waker = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&waker);
        std::thread::Builder::new().name("quire-wake".to_string()).spawn(move || work(&handle, received, &slot))?;
        Ok(Watcher { waker, orders })
    }

    fn watch(&mut self, waker: &Waker) -> std::io::Result<()> {
        match lock(&self.waker).replace(waker.clone()) {
            Some(_) => Ok(()), // the thread waits already, and will wake the new one
            None => self.orders.write_all(&[1]),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let task = lock(&self.waker).take();
        drop(task); // without the lock, since a task may go with its last waker
    }
}

fn lock(waker: &Mutex<Option<Waker>>) -> MutexGuard<'_, Option<Waker>> {
    waker.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(handle: &OwnedFd, mut orders: UnixStream, waker: &Mutex<Option<Waker>>) {
    let mut order = [0];
    while matches!(orders.read(&mut order), Ok(1)) {
        // Until an event has come or the orders are closed; another order cannot come while a task is waited for.
        let mut watched = [PollFd::new(handle.as_raw_fd()), PollFd::new(orders.as_raw_fd())];
        // SAFETY: the array has as many elements as is said. A signal only interrupts the wait.
        while unsafe { poll(watched.as_mut_ptr(), watched.len() as Count, -1) } < 0 {}
        let task = lock(waker).take();
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
