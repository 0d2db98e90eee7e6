//! Streams in asynchronous code, with no more of an executor than a test needs.

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use quire::{Event, Result, Session, SessionOptions, Status, Stream, StreamOptions};
use quire_tests::{failure, generated, ids, model, token};

/// The trait of the crate `futures_core`. A newtype is all that a program needs to implement it.
trait FuturesStream {
    type Item;
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>>;
}

struct Events(Stream);

impl FuturesStream for Events {
    type Item = Result<Event>;
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        self.get_mut().0.poll_next(context)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread; its result, and how often it was polled.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    for n_polls in 1.. {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, n_polls);
        }
        thread::park();
    }
    unreachable!("a future comes to its end before the numbers do")
}

fn session(n_tokens: i32) -> Session {
    let mut session = model().session(&SessionOptions { prefill_block: 16, ..SessionOptions::new("dca") }).unwrap();
    session.feed_tokens(&ids(n_tokens)).unwrap();
    session
}

fn going_on(max_tokens: i64) -> StreamOptions {
    StreamOptions { ignore_eos: true, ..StreamOptions::new(max_tokens) }
}

async fn tokens(stream: Stream) -> Vec<i32> {
    let (mut events, mut found) = (Events(stream), Vec::new());
    while let Some(event) = poll_fn(|context| Pin::new(&mut events).poll_next(context)).await {
        found.extend(token(&event.unwrap()));
    }
    found
}

#[test]
fn the_tokens_are_those_of_the_iterator() {
    let expected = generated(session(2000).stream(&going_on(12)).unwrap());
    let (found, n_polls) = block_on(tokens(session(2000).stream(&going_on(12)).unwrap()));
    assert_eq!(found, expected);
    assert!(n_polls > 1, "it never had to wait");
}

#[test]
fn eight_streams_on_one_thread() {
    let expected = generated(session(500).stream(&going_on(12)).unwrap());
    let mut sessions: Vec<_> = (0..8).map(|_| session(500)).collect();
    let mut futures: Vec<_> =
        sessions.iter_mut().map(|session| Some(Box::pin(tokens(session.stream(&going_on(12)).unwrap())))).collect();
    let mut found = vec![Vec::new(); 8];
    let all = poll_fn(|context| {
        for (future, found) in futures.iter_mut().zip(&mut found) {
            if let Some(Poll::Ready(tokens)) = future.as_mut().map(|future| future.as_mut().poll(context)) {
                *found = tokens;
                *future = None;
            }
        }
        if futures.iter().all(Option::is_none) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    block_on(all);
    assert!(found.iter().all(|found| *found == expected));
}

/// Counts how often it was woken, and says so.
struct Counting(AtomicUsize, Mutex<mpsc::Sender<()>>);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let _ = self.1.lock().unwrap().send(());
    }
}

fn counting() -> (Arc<Counting>, Waker, mpsc::Receiver<()>) {
    let (sender, woken) = mpsc::channel();
    let counting = Arc::new(Counting(AtomicUsize::new(0), Mutex::new(sender)));
    (Arc::clone(&counting), Waker::from(counting), woken)
}

/// Polls until there is nothing to take, so that the waker will be woken.
fn drain(stream: &mut Stream, waker: &Waker) {
    while stream.poll_next(&mut Context::from_waker(waker)).is_ready() {}
}

#[test]
fn the_last_waker_is_woken_once() {
    let mut session = session(50_000);
    let mut stream = session.stream(&going_on(1)).unwrap();
    let ((first, first_waker, _), (second, second_waker, woken)) = (counting(), counting());
    drain(&mut stream, &first_waker);
    let before = first.0.load(Ordering::SeqCst);
    if stream.poll_next(&mut Context::from_waker(&second_waker)).is_pending() {
        woken.recv().unwrap();
        assert_eq!(second.0.load(Ordering::SeqCst), 1);
    }
    assert!(first.0.load(Ordering::SeqCst) <= before + 1, "a waker that was replaced may only have been on its way");
}

#[test]
fn closing_wakes() {
    let mut session = session(50_000);
    let mut stream = session.stream(&going_on(1)).unwrap();
    let (_, waker, woken) = counting();
    drain(&mut stream, &waker);
    stream.control().close().unwrap();
    woken.recv().unwrap();
    match stream.poll_next(&mut Context::from_waker(&waker)) {
        Poll::Ready(Some(event)) => assert_eq!(failure(event), Status::Closed),
        other => panic!("{other:?}"),
    }
    assert!(matches!(stream.poll_next(&mut Context::from_waker(&waker)), Poll::Ready(None)));
}

/// A task that is gone when it is woken, as where an executor drops what it will not run any more.
struct Dropping(Mutex<Option<Stream>>, mpsc::Sender<()>);

impl Wake for Dropping {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        let _ = self.1.send(());
    }
}

#[test]
fn a_stream_may_be_dropped_by_waking() {
    let mut session = session(50_000);
    let (sender, woken) = mpsc::channel();
    let task = Arc::new(Dropping(Mutex::new(Some(session.stream(&going_on(1)).unwrap())), sender));
    let waker = Waker::from(Arc::clone(&task));
    while let Some(stream) = task.0.lock().unwrap().as_mut() {
        if stream.poll_next(&mut Context::from_waker(&waker)).is_pending() {
            break;
        }
    }
    woken.recv().unwrap();
    assert!(session.feed("more").is_ok());
}

/// A task that cannot be woken while its lock is held, as where an executor drops a task under a lock.
struct Locked(Mutex<Option<Stream>>, mpsc::Sender<()>);

impl Wake for Locked {
    fn wake(self: Arc<Self>) {
        self.1.send(()).unwrap();
        drop(self.0.lock().unwrap());
    }
}

#[test]
fn a_stream_may_be_dropped_under_a_lock_that_waking_takes() {
    let mut session = session(50_000);
    let (sender, waking) = mpsc::channel();
    let task = Arc::new(Locked(Mutex::new(Some(session.stream(&going_on(1)).unwrap())), sender));
    let mut held = task.0.lock().unwrap();
    drain(held.as_mut().unwrap(), &Waker::from(Arc::clone(&task)));
    waking.recv().unwrap(); // the thread wakes, and waits for the lock
    drop(held.take());
    drop(held);
    assert!(session.feed("more").is_ok());
}

#[test]
fn a_stream_that_is_dropped_lets_go_of_its_waker() {
    let mut session = session(50_000);
    let mut stream = session.stream(&going_on(1)).unwrap();
    let (counting, waker, _woken) = counting();
    drain(&mut stream, &waker);
    drop((stream, waker));
    while Arc::strong_count(&counting) > 1 {
        thread::yield_now(); // the thread may just be waking it
    }
}

#[test]
fn the_wait_handle_is_a_descriptor() {
    let mut session = session(5);
    let stream = session.stream(&going_on(1)).unwrap();
    let (handle, kind) = stream.wait_handle().unwrap();
    assert_eq!(kind, quire::sys::QUIRE_WAIT_FD);
    assert!(std::fs::metadata(format!("/proc/self/fd/{handle}")).is_ok());
}
