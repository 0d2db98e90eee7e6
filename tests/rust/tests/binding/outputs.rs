//! What a session keeps of a stream: logits, scores, hidden states.

use quire::{ElementType, SessionOptions, Status, StreamOptions};
use quire_tests::{failure, ids, model};

#[test]
fn logits_and_scores_agree() {
    let options = SessionOptions { kv_type: Some(ElementType::F32), ..SessionOptions::new("dca") };
    let (mut session, fed) = (model().session(&options).unwrap(), [1, 300, 301, 302, 303, 304]);
    session.feed_tokens(&fed).unwrap();
    session.generate(&StreamOptions { score: true, keep_logits: true, ..Default::default() }).unwrap();
    let (logits, scores) = (session.logits(0, 6).unwrap(), session.scores(0, 6).unwrap());
    assert_eq!((logits.n_rows(), logits.n_columns()), (6, 320));
    assert!(scores[0].is_nan());
    for (position, row) in logits.rows().enumerate().take(5) {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = f64::from(row[fed[position + 1] as usize]) - sum.ln();
        assert!((f64::from(scores[position + 1]) - expected).abs() < 1e-4);
    }
    assert_eq!(session.logits(-1, 1).unwrap().row(0), logits.row(5));
    assert_eq!(failure(session.logits(7, 1)), Status::NotFound);
}

#[test]
fn hidden_states() {
    let mut session = model().session(&Default::default()).unwrap();
    session.feed_tokens(&ids(4)).unwrap();
    session.generate(&StreamOptions { keep_hidden: true, ..Default::default() }).unwrap();
    let states = session.hidden_states(1, 3).unwrap();
    assert_eq!((states.n_rows(), states.n_columns() as i32), (3, model().info().unwrap().hidden_size));
    assert_eq!(session.hidden_states(3, 1).unwrap().row(0), states.row(2));
}

#[test]
fn most_probable_tokens() {
    let mut session = model().session(&Default::default()).unwrap();
    session.feed_tokens(&ids(9)).unwrap();
    let options = StreamOptions { n_top_logprobs: 3, ignore_eos: true, ..StreamOptions::new(2) };
    let mut n_tokens = 0;
    for event in session.stream(&options).unwrap() {
        if let quire::EventKind::Token(token) = event.unwrap().kind {
            n_tokens += 1;
            assert_eq!(token.top_logprobs.len(), 3);
            assert_eq!(token.top_logprobs[0], (token.id, token.logprob));
            assert!(token.top_logprobs.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        }
    }
    assert_eq!(n_tokens, 2);
}
