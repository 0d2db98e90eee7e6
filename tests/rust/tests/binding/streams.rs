//! Streams: what is generated, and how it ends.

use std::task::Poll;
use std::time::Duration;

use quire::experimental::{allow, fill_random, probes, TokenMask};
use quire::{Event, EventKind, Finish, MessageCode, Overflow, Sampler, Session, SessionOptions, Status, StreamOptions};
use quire_tests::{failure, generated, ids, model, token};

fn fed() -> Session {
    let mut session = model().session(&SessionOptions::new("dca")).unwrap();
    session.feed("The reader turns the leaves").unwrap();
    session
}

fn going_on(max_tokens: i64) -> StreamOptions {
    StreamOptions { ignore_eos: true, ..StreamOptions::new(max_tokens) }
}

fn events(options: &StreamOptions) -> Vec<Event> {
    fed().stream(options).unwrap().map(Result::unwrap).collect()
}

fn end(events: &[Event]) -> &quire::End {
    match &events.last().unwrap().kind {
        EventKind::End(end) => end,
        other => panic!("no end: {other:?}"),
    }
}

#[test]
fn events_come_in_order() {
    let mut session = fed();
    let n_prompt = session.token_counts().unwrap().n_pending;
    let mut stream = session.stream(&going_on(5)).unwrap();
    let (mut n_tokens, mut done) = (0, 0);
    for event in &mut stream {
        let event = event.unwrap();
        match event.kind {
            EventKind::Prefill(prefill) => {
                assert_eq!((prefill.total, n_tokens), (n_prompt, 0));
                done = prefill.done + prefill.reused;
            }
            EventKind::Token(token) => {
                n_tokens += 1;
                assert!(token.logprob < 0.0 && token.top_logprobs.is_empty());
                assert_eq!(event.n_tokens, n_prompt + n_tokens);
            }
            EventKind::End(end) => assert_eq!((end.finish, end.token, end.stop_index), (Finish::MaxTokens, None, None)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((n_tokens, done), (5, n_prompt));
    assert!(stream.next().is_none());
    assert_eq!(session.stats().unwrap().n_generated, 5);
}

#[test]
fn stop_conditions() {
    let whole: Vec<i32> = events(&going_on(12)).iter().filter_map(token).collect();
    let text: String = events(&going_on(12)).iter().map(|event| event.text.as_str()).collect();
    let found = events(&StreamOptions { stop_ids: vec![whole[5]], ..going_on(12) });
    assert_eq!((end(&found).finish, end(&found).token), (Finish::StopId, Some(whole[5])));
    let third: String = text.chars().skip(3).take(2).collect();
    let found = events(&StreamOptions { stop_strings: vec!["\u{1}never".into(), third.clone()], ..going_on(12) });
    assert_eq!((end(&found).finish, end(&found).stop_index), (Finish::StopString, Some(1)));
    let before: String = found.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(before, text[..text.find(&third).unwrap()]);
    let found = events(&StreamOptions { min_tokens: 8, stop_ids: vec![whole[5]], ..going_on(12) });
    assert_ne!(found.iter().filter_map(token).nth(5), Some(whole[5]));
    let found = events(&StreamOptions { logit_bias: vec![(whole[0], f32::NEG_INFINITY)], ..going_on(1) });
    assert_ne!(found.iter().find_map(token), Some(whole[0]));
}

#[test]
fn stops_may_be_added() {
    let whole: Vec<i32> = events(&going_on(12)).iter().filter_map(token).collect();
    let mut session = fed();
    let mut stream = session.stream(&StreamOptions { max_undelivered: 8, ..going_on(12) }).unwrap();
    let first = stream.by_ref().find_map(|event| token(&event.unwrap())).unwrap();
    stream.add_stop_ids(&[whole[5]]).unwrap();
    stream.add_stop_strings(&["never this, surely".into()]).unwrap();
    let rest: Vec<i32> = generated(stream);
    let expected = whole.iter().skip(1).position(|&id| id == whole[5]).unwrap();
    assert_eq!((first, &rest[..]), (whole[0], &whole[1..1 + expected]));
}

#[test]
fn sampling() {
    let seeded = |seed| StreamOptions { temperature: 1.5, top_k: 40, seed, ..going_on(12) };
    let tokens = |options: &StreamOptions| events(options).iter().filter_map(token).collect::<Vec<_>>();
    assert_eq!(tokens(&seeded(7)), tokens(&seeded(7)));
    assert_ne!(tokens(&seeded(7)), tokens(&seeded(8)));
    let chain = |samplers| StreamOptions { samplers, seed: 7, ..going_on(12) };
    assert_eq!(tokens(&chain(vec![Sampler::Temperature(1.5), Sampler::TopK(40)])).len(), 12);
    let greedy = [Sampler::Typical(0.9), Sampler::MinP(0.1), Sampler::TopP(0.9), Sampler::Temperature(0.5)];
    assert_eq!(tokens(&chain([&greedy[1..], &[Sampler::TopK(1)]].concat())), tokens(&going_on(12)));
    assert_eq!(tokens(&chain(greedy.to_vec())).len(), 12);
    let penalties = Sampler::Penalties { last: 64, repetition: 2.0, frequency: 1.0, presence: 1.0 };
    let dry = Sampler::Dry { last: 0, min_length: 1, multiplier: 5.0, base: 2.0 };
    let repeated = StreamOptions { dry_breakers: Some(vec![]), ..chain(vec![penalties, dry, Sampler::TopK(1)]) };
    assert_ne!(tokens(&repeated), tokens(&going_on(12)));
    let wrong = fed().stream(&chain(vec![Sampler::TopK(0)])).err().unwrap();
    assert_eq!(wrong.status(), Status::InvalidArgument);
    let drafted = StreamOptions { draft_tokens: 8, draft_match: 1, ..going_on(12) };
    assert_eq!(tokens(&drafted), tokens(&going_on(12)));
}

#[test]
fn auto_gives_notice() {
    let options = SessionOptions { expected_tokens: 100, ..SessionOptions::new("auto") };
    let mut session = model().session(&options).unwrap();
    session.feed_tokens(&ids(9)).unwrap();
    let first = session.stream(&going_on(1)).unwrap().next().unwrap().unwrap();
    let EventKind::Notice(notice) = first.kind else { panic!("{first:?}") };
    assert_eq!(notice.code, MessageCode::AutoChoice);
    assert!(notice.message.contains(&session.strategy().unwrap()));
}

#[test]
fn warning_beyond_the_reach() {
    let options = SessionOptions { overflow: Some(Overflow::Extrapolate), ..SessionOptions::new("full") };
    let mut session = model().session(&options).unwrap();
    session.feed_tokens(&ids(250)).unwrap();
    let first = session.stream(&going_on(10)).unwrap().next().unwrap().unwrap();
    assert!(matches!(first.kind, EventKind::Warning(warning) if warning.code == MessageCode::UntrainedPositions));
}

#[test]
fn constrained() {
    let mut session = fed();
    let mut stream = session.stream(&StreamOptions { constrain: true, ..going_on(3) }).unwrap();
    for wanted in [vec![300, 301], vec![17], vec![]] {
        let mut mask = TokenMask::new(320);
        wanted.iter().for_each(|&id| mask.insert(id));
        allow(&mut stream, (!wanted.is_empty()).then_some(&mask)).unwrap();
        let id = stream.by_ref().find_map(|event| token(&event.unwrap())).unwrap();
        assert!(wanted.is_empty() || wanted.contains(&id));
    }
    assert!(matches!(stream.next().unwrap().unwrap().kind, EventKind::End(end) if end.finish == Finish::MaxTokens));
}

#[test]
fn deadline() {
    let mut session = model().session(&SessionOptions { prefill_block: 16, ..SessionOptions::new("dca") }).unwrap();
    session.feed_tokens(&ids(200_000)).unwrap();
    let options = StreamOptions { deadline: Some(Duration::from_millis(20)), ..Default::default() };
    let events: Vec<_> = session.stream(&options).unwrap().map(Result::unwrap).collect();
    assert_eq!(end(&events).finish, Finish::Deadline);
    let counts = session.token_counts().unwrap();
    assert!(counts.n_pending > 0 && counts.n_tokens + counts.n_pending == 200_000);
}

#[test]
fn timeouts() {
    let mut session = model().session(&SessionOptions { prefill_block: 16, ..SessionOptions::new("dca") }).unwrap();
    session.feed_tokens(&ids(50_000)).unwrap();
    let mut stream = session.stream(&Default::default()).unwrap();
    while stream.next_timeout(Duration::ZERO).is_ready() {} // until nothing waits
    assert!(matches!(stream.next_timeout(Duration::from_secs(60)), Poll::Ready(Some(Ok(_)))));
    stream.cancel().unwrap();
    assert!(
        matches!(stream.by_ref().last().unwrap().unwrap().kind, EventKind::End(end) if end.finish == Finish::Cancelled)
    );
    assert!(matches!(stream.next_timeout(Duration::from_secs(1)), Poll::Ready(None)));
    assert!(probes(&session).unwrap().tasks_after_cancel <= 2);
}

#[test]
fn random_depth() {
    let mut session = model().session(&SessionOptions::new("dca")).unwrap();
    fill_random(&mut session, 2000, 7).unwrap();
    assert_eq!(session.token_counts().unwrap().n_tokens + session.token_counts().unwrap().n_pending, 2000);
    assert_eq!(generated(session.stream(&going_on(2)).unwrap()).len(), 2);
    assert_eq!(failure(fill_random(&mut session, 5, 7)), Status::InvalidArgument);
}
