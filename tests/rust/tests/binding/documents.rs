//! What sessions hold: tiers, forks, edits, passages, and what they share.

use quire::{
    EditOptions, ElementType, EventKind, Label, Model, Reuse, ReuseMiss, RuntimeOptions, Session, SessionOptions,
};
use quire::{Overflow, Runtime, Status, StreamOptions, TextOptions, Tier, OLD_AT_ONCE};
use quire_tests::{failure, generated, ids, model, runtime, tiny_model, token, Folder};

fn session(strategy: &str) -> Session {
    model().session(&SessionOptions { no_prefix_reuse: true, ..SessionOptions::new(strategy) }).unwrap()
}

fn prefill(session: &mut Session) {
    session.generate(&StreamOptions::new(0)).unwrap();
}

fn going_on(max_tokens: i64) -> StreamOptions {
    StreamOptions { ignore_eos: true, ..StreamOptions::new(max_tokens) }
}

#[test]
fn tiers() {
    let folder = Folder::new();
    let options = SessionOptions {
        kv_host_budget_bytes: 60_000,
        kv_file_directory: Some(folder.path().into()),
        prefill_block: 16,
        no_prefix_reuse: true,
        ..SessionOptions::new("full")
    };
    let mut session = model().session(&options).unwrap();
    session.feed_tokens(&ids(200)).unwrap();
    prefill(&mut session);
    let (host, file) = (session.tier_stats(Tier::Host).unwrap(), session.tier_stats(Tier::File).unwrap());
    assert!(host.bytes_peak <= host.budget_bytes && host.n_evicted > 0 && file.bytes_written > 0);
    assert_eq!(session.control().tier_stats(Tier::Device).unwrap().bytes, 0);
    assert_eq!(failure(session.tier_stats(Tier::Other(99))), Status::InvalidArgument);
    let small = SessionOptions { kv_compressed_budget_bytes: 1, ..options };
    assert_eq!(failure(model().session(&small)), Status::Budget);
}

#[test]
fn windows_of_some_layers() {
    let model = runtime(2).load_model(tiny_model().with_file_name("qwen2_window_layers")).unwrap();
    for keep_behind_windows in [false, true] {
        let options = SessionOptions { keep_behind_windows, ..SessionOptions::new("full(kv_chunk=16)") };
        let mut session = model.session(&options).unwrap();
        session.feed_tokens(&[5; 240]).unwrap();
        prefill(&mut session);
        assert_eq!(session.stats().unwrap().kv_chunks_dropped == 0, keep_behind_windows);
    }
}

#[test]
fn old_text_in_a_narrower_type() {
    let options = SessionOptions {
        kv_old_type: Some(ElementType::Int8),
        old_after: OLD_AT_ONCE,
        ..SessionOptions::new("dca(kv_chunk=16)")
    };
    let mut session = model().session(&options).unwrap();
    session.feed_tokens(&ids(200)).unwrap();
    prefill(&mut session);
    assert!(session.stats().unwrap().kv_old_bytes > 0);
}

#[test]
fn feeds_and_forks() {
    let mut session = session("full");
    session.feed_positions(&[5, 6], &[9, 11]).unwrap();
    assert_eq!(failure(session.feed_positions(&[5, 6], &[12, 12])), Status::InvalidArgument);
    assert_eq!(failure(session.feed_positions(&[5, 6], &[12])), Status::InvalidArgument);
    session.discard_pending().unwrap();
    session.feed_with("Every chapter began with a map.", TextOptions { no_bos: true, ..Default::default() }).unwrap();
    prefill(&mut session);
    let tokens = session.tokens().unwrap();
    let mut fork = session.fork().unwrap();
    fork.feed_tokens(&ids(3)).unwrap();
    assert_eq!(fork.tokens().unwrap(), [&tokens[..], &ids(3)].concat());
    fork.truncate(tokens.len() as i64).unwrap();
    assert_eq!(generated(fork.stream(&going_on(10)).unwrap()), generated(session.stream(&going_on(10)).unwrap()));
    session.reset().unwrap();
    assert_eq!(session.tokens().unwrap(), []);
    assert_eq!(session.fingerprint().unwrap(), fork.fingerprint().unwrap());
}

#[test]
fn passages_and_labels() {
    let pages: Vec<String> = (0..12).map(|i| format!("page {i} tells of the number {} alone. ", i * 7)).collect();
    let (mut text, mut labels) = (String::new(), Vec::new());
    for (i, page) in pages.iter().enumerate() {
        let begin = text.len() as i64;
        text.push_str(page);
        labels.push(Label { bytes: begin..text.len() as i64, id: 50 + i as i64 });
    }
    let mut session = session("dca");
    session.feed_labelled(&text, Default::default(), &labels).unwrap();
    let cite_end = session.token_counts().unwrap().n_pending;
    session.feed("which number is it? ").unwrap();
    session.generate(&StreamOptions { cite: true, cite_end, ..going_on(4) }).unwrap();
    let passages = session.passages(None, 3).unwrap();
    assert_eq!(passages.len(), 3);
    let (tokens, tokenizer) = (session.tokens().unwrap(), model().tokenizer().unwrap());
    for passage in &passages {
        let (first, n) = (passage.first_token as usize, passage.n_tokens as usize);
        let cited = &text[passage.bytes.start as usize..passage.bytes.end as usize];
        assert_eq!(tokenizer.decode(&tokens[first..first + n]).unwrap().trim(), cited.trim());
        let (index, id) = passage.label.unwrap();
        assert_eq!((passage.feed, id), (0, 50 + index));
    }
    let shares = session.label_shares(None).unwrap();
    assert_eq!(shares.iter().map(|label| label.id).collect::<Vec<_>>(), (50..62).collect::<Vec<_>>());
    assert!((shares.iter().map(|label| label.share).sum::<f64>() - 1.0).abs() < 1e-6);
    let last = session.token_counts().unwrap().n_tokens - 1;
    assert_ne!(session.label_shares(Some(last..last + 1)).unwrap(), shares);
    assert_eq!(failure(session.label_attention()), Status::Unsupported);
}

#[test]
fn label_attention() {
    let mut session = session("longheads(chunk=16, chunks=4)");
    let text = "page one tells of rain and page two of wind ".repeat(12);
    let labels = [Label { bytes: 0..200, id: 1 }, Label { bytes: 200..text.len() as i64, id: 2 }];
    session.feed_labelled(&text, Default::default(), &labels).unwrap();
    generated(session.stream(&going_on(4)).unwrap());
    let shares = session.label_attention().unwrap();
    assert_eq!(shares.iter().map(|label| label.id).collect::<Vec<_>>(), [1, 2]);
    assert!(shares.iter().any(|label| label.share > 0.0));
}

#[test]
fn edits() {
    let old: Vec<i32> = (0..200).map(|i: i32| 3 + (i * i * i + 7 * i) % 299).collect();
    let new = [&old[..80], &old[100..]].concat();
    let mut session = session("dca(kv_chunk=16)");
    session.feed_tokens(&old).unwrap();
    prefill(&mut session);
    let exact = session.fork().unwrap().edit_tokens(&new, &Default::default()).unwrap();
    assert_eq!((exact.n_tokens, exact.n_kept, exact.n_moved), (180, 80, 0));
    let options = EditOptions { reuse: Reuse::Approximate, ..Default::default() };
    let edited = session.edit_tokens(&new, &options).unwrap();
    assert_eq!((edited.n_tokens, edited.n_kept, edited.n_moved), (180, 80, 96));
    prefill(&mut session);
    assert_eq!(session.stats().unwrap().n_moved, 96);
    let labels = vec![Label { bytes: 0..7, id: 1 }];
    assert_eq!(session.edit("The sky is grey.", &EditOptions { labels, ..Default::default() }).unwrap().n_kept, 0);
}

/// What a new session with this text takes over, why it computes, and its tokens.
fn read(model: &Model, no_prefix_reuse: bool) -> (i64, ReuseMiss, Vec<i32>) {
    let options = SessionOptions { no_prefix_reuse, ..SessionOptions::new("dca(kv_chunk=32)") };
    let mut session = model.session(&options).unwrap();
    session.feed_tokens(&ids(300)).unwrap();
    let events: Vec<_> = session.stream(&going_on(4)).unwrap().map(Result::unwrap).collect();
    let last = events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Prefill(prefill) => Some((prefill.reused, prefill.reuse_miss)),
        _ => None,
    });
    let (reused, miss) = last.unwrap();
    (reused, miss, events.iter().filter_map(token).collect())
}

#[test]
fn prefix_cache() {
    for (limit, reused, miss) in [(0, 0, ReuseMiss::Unknown), (1 << 30, 288, ReuseMiss::Complete)] {
        let options = RuntimeOptions { n_threads: 2, prefix_cache_bytes: limit, ..Default::default() };
        let runtime = Runtime::new(options).unwrap();
        let model = runtime.load_model(tiny_model()).unwrap();
        let (none, unknown, tokens) = read(&model, false);
        assert_eq!((none, unknown), (0, ReuseMiss::Unknown));
        // A session that was dropped is taken down on the runtime's threads: until then it shares its chunks itself.
        while limit > 0 && runtime.stats().unwrap().prefix_cache_texts == 0 {
            std::thread::yield_now();
        }
        if limit > 0 {
            assert_eq!(read(&model, false), (reused, miss, tokens));
            assert_eq!(runtime.stats().unwrap().prefix_cache_tokens, 288);
            assert!(runtime.stats().unwrap().prefix_cache_bytes > 0);
        }
        assert_eq!(read(&model, true).1, ReuseMiss::Off);
    }
}

#[test]
fn budgets_of_a_runtime() {
    let options = RuntimeOptions { n_threads: 2, kv_host_budget_bytes: 1 << 20, ..Default::default() };
    let model = Runtime::new(options).unwrap().load_model(tiny_model()).unwrap();
    let options = SessionOptions { overflow: Some(Overflow::Extrapolate), ..Default::default() };
    let mut session = model.session(&options).unwrap();
    session.feed_tokens(&ids(4000)).unwrap();
    assert_eq!(failure(session.generate(&StreamOptions::new(0))), Status::Budget);
}
