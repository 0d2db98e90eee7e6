//! What several threads may do at once.

use std::sync::{Arc, Barrier};
use std::thread;

use quire::{
    Adapter, Cancel, Error, Event, Finish, Model, Runtime, Session, SessionControl, SessionOptions, Store, Stream,
};
use quire::{EventKind, StreamControl, StreamOptions, Tokenizer};
use quire_tests::{generated, ids, model, token};

fn send<T: Send>() {}
fn send_and_sync<T: Send + Sync>() {}

/// Types that are not `Sync` make the call ambiguous, so that it would not compile if they were.
macro_rules! not_sync {
    ($($kind:ty),*) => {$(
        {
            trait Ambiguous<Mark> {
                fn mark() {}
            }
            struct IsSync;
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + Sync> Ambiguous<IsSync> for T {}
            let _ = <$kind as Ambiguous<_>>::mark;
        }
    )*};
}

#[test]
fn send_and_sync_are_as_abi_md_says() {
    send_and_sync::<(Runtime, Model, Tokenizer, Adapter, Cancel, Store)>();
    send_and_sync::<(SessionControl, StreamControl, Error, Event)>();
    send::<(Session, Stream)>();
    not_sync!(Session, Stream);
}

#[test]
fn cancel_from_another_thread_while_reading() {
    let mut session = model().session(&SessionOptions { prefill_block: 16, ..SessionOptions::new("dca") }).unwrap();
    session.feed_tokens(&ids(200_000)).unwrap();
    let stream = session.stream(&StreamOptions::new(10)).unwrap();
    let (control, counts) = (stream.control(), session.control());
    let canceller = thread::spawn(move || {
        while counts.stats().unwrap().n_prefilled == 0 {
            thread::yield_now();
        }
        control.cancel().unwrap();
    });
    let last = stream.last().unwrap().unwrap();
    canceller.join().unwrap();
    assert!(matches!(last.kind, EventKind::End(end) if end.finish == Finish::Cancelled));
    let counts = session.token_counts().unwrap();
    assert!(counts.n_pending > 0 && counts.n_tokens > 0 && counts.n_tokens + counts.n_pending == 200_000);
    session.discard_pending().unwrap();
    assert_eq!(generated(session.stream(&going_on(2)).unwrap()).len(), 2);
}

#[test]
fn close_from_another_thread_while_reading() {
    let mut session = model().session(&SessionOptions { prefill_block: 16, ..SessionOptions::new("dca") }).unwrap();
    session.feed_tokens(&ids(100_000)).unwrap();
    let stream = session.stream(&StreamOptions::new(10)).unwrap();
    let control = stream.control();
    let closer = thread::spawn(move || control.close().unwrap());
    let last = stream.last().unwrap();
    closer.join().unwrap();
    // The event that it waited for when it was closed, or that there are none any more.
    assert!(!matches!(&last, Err(error) if error.status() != quire::Status::Closed), "{last:?}");
    assert!(session.token_counts().unwrap().n_pending > 0);
}

fn going_on(max_tokens: i64) -> StreamOptions {
    StreamOptions { ignore_eos: true, ..StreamOptions::new(max_tokens) }
}

fn prompt(i: usize) -> Vec<i32> {
    (0..60).map(|place| 3 + (place * (i as i32 + 2)) % 300).collect()
}

#[test]
fn eight_streams_at_once() {
    let tokens = |i: usize| {
        let mut session = model().session(&SessionOptions::new("dca")).unwrap();
        session.feed_tokens(&prompt(i)).unwrap();
        let mut stream = session.stream(&going_on(40)).unwrap();
        let found: Vec<i32> = stream.by_ref().filter_map(|event| token(&event.unwrap())).collect();
        assert_eq!(found.len(), 40);
        found
    };
    let alone: Vec<_> = (0..8).map(tokens).collect();
    let begin = Arc::new(Barrier::new(8));
    let together: Vec<_> = (0..8)
        .map(|i| {
            let begin = Arc::clone(&begin);
            thread::spawn(move || {
                begin.wait();
                tokens(i)
            })
        })
        .collect();
    let together: Vec<_> = together.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(together, alone);
}

#[test]
fn a_session_moves_between_threads() {
    let mut session = model().session(&SessionOptions::new("dca")).unwrap();
    session.feed_tokens(&prompt(1)).unwrap();
    let mut stream = session.stream(&going_on(6)).unwrap();
    let mut found = Vec::new();
    while let Some(event) = thread::scope(|scope| scope.spawn(|| stream.next()).join().unwrap()) {
        found.extend(token(&event.unwrap()));
    }
    assert_eq!(found.len(), 6);
    thread::spawn(move || drop((stream, session))).join().unwrap();
}
