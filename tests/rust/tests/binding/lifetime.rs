//! In which order, and on which threads, handles may go.

use std::thread;

use quire::{Finish, SessionOptions, Status, StreamOptions};
use quire_tests::{failure, generated, ids, runtime, source, tiny_model};

/// All orders of `0..n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let insert = |order: &Vec<usize>, at| [&order[..at], &[n - 1], &order[at..]].concat();
    orders(n - 1).iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
}

/// A value of any type that is waiting to be dropped.
type Thing = Box<dyn Send>;

#[test]
fn handles_go_in_every_order_on_other_threads() {
    let adapter_path = source("tests/golden/adapters/attention");
    let orders = orders(5);
    assert_eq!(orders.len(), 120);
    for (round, order) in orders.into_iter().enumerate() {
        let runtime = runtime(1);
        let model = runtime.load_model(tiny_model()).unwrap();
        let adapter = model.load_adapter(&adapter_path, Default::default()).unwrap();
        let options = SessionOptions { adapters: vec![(adapter.clone(), 1.0)], ..SessionOptions::new("dca") };
        let mut session = model.session(&options).unwrap();
        drop(options);
        session.feed_tokens(&ids(64)).unwrap();
        let mut stream = session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(1000) }).unwrap();
        stream.next().unwrap().unwrap();
        let mut things: Vec<Option<Thing>> = vec![
            Some(Box::new(runtime)),
            Some(Box::new(model)),
            Some(Box::new(adapter)),
            Some(Box::new(session)),
            Some(Box::new(stream)),
        ];
        for place in order {
            let thing = things[place].take();
            match round % 2 {
                0 => drop(thing),
                _ => thread::spawn(move || drop(thing)).join().unwrap(),
            }
        }
    }
}

#[test]
fn what_is_left_works() {
    let runtime = runtime(1);
    let model = runtime.load_model(tiny_model()).unwrap();
    let (tokenizer, mut session) = (model.tokenizer().unwrap(), model.session(&Default::default()).unwrap());
    drop((runtime, model));
    session.feed("Rain fell").unwrap();
    let stream = session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(3) }).unwrap();
    drop(session);
    assert_eq!(generated(stream).len(), 3);
    assert!(tokenizer.encode("Rain", Default::default()).unwrap().len() > 1);
}

#[test]
fn clones_are_the_same_object() {
    let first = runtime(1);
    let runtime = first.clone();
    let model = first.load_model(tiny_model()).unwrap().clone();
    drop(first);
    let tokenizer = model.tokenizer().unwrap().clone();
    assert_eq!(tokenizer.vocab_size(), model.info().unwrap().vocab_size);
    runtime.close().unwrap();
    assert_eq!(failure(model.session(&Default::default())), Status::Closed);
}

#[test]
fn controls_do_not_keep_what_they_control() {
    let model = runtime(1).load_model(tiny_model()).unwrap();
    let mut session = model.session(&Default::default()).unwrap();
    session.feed_tokens(&ids(5)).unwrap();
    let stream = session.stream(&StreamOptions::new(1)).unwrap();
    let (of_session, of_stream) = (session.control(), stream.control());
    drop((session, stream));
    assert_eq!(failure(of_session.token_counts()), Status::Closed);
    assert_eq!(failure(of_stream.cancel()), Status::Closed);
}

#[test]
fn closing_a_runtime_ends_everything() {
    let runtime = runtime(2);
    let model = runtime.load_model(tiny_model()).unwrap();
    let mut session = model.session(&SessionOptions::new("dca")).unwrap();
    session.feed_tokens(&ids(100_000)).unwrap();
    let stream = session.stream(&StreamOptions::new(1)).unwrap();
    runtime.close().unwrap();
    let last = stream.last().unwrap();
    assert_eq!(failure(last), Status::Closed);
    assert_eq!(failure(session.feed("more")), Status::Closed);
    assert_eq!(failure(model.session(&Default::default())), Status::Closed);
    assert_eq!(failure(runtime.devices()), Status::Closed);
    runtime.close().unwrap();
    session.close().unwrap();
}

#[test]
fn a_stream_that_is_dropped_leaves_its_session_whole() {
    let model = runtime(1).load_model(tiny_model()).unwrap();
    let mut session = model.session(&SessionOptions::new("dca")).unwrap();
    session.feed_tokens(&ids(40)).unwrap();
    let mut stream = session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(1000) }).unwrap();
    let first = stream.by_ref().find_map(|event| quire_tests::token(&event.unwrap())).unwrap();
    drop(stream);
    session.feed_tokens(&[5]).unwrap(); // waits until the stream has stopped
    assert_eq!(session.tokens().unwrap()[40..], [first, 5]);
    let events: Vec<_> = session.stream(&StreamOptions::new(0)).unwrap().map(Result::unwrap).collect();
    let end = match &events.last().unwrap().kind {
        quire::EventKind::End(end) => end.finish,
        other => panic!("{other:?}"),
    };
    assert_eq!(end, Finish::MaxTokens);
}
