//! Times answers through the crate `quire`, for the comparison of bindings with C.
//!
//!     overhead MODEL_DIR N_TOKENS
//!
//! Prints {"ready":true} once the text is read. Then, for each line of its input, it generates N_TOKENS tokens behind the
//! same text and prints {"tokens":N,"seconds":S,"allocations":A}, A being allocations on Rust's heap for each token.

use std::io::{BufRead, Write};
use std::time::Instant;

use quire::{Overflow, Runtime, RuntimeOptions, SessionOptions, StreamOptions};
use quire_tests::counting::Counting;

#[global_allocator]
static HEAP: Counting = Counting::new();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, path, n_tokens] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: overhead MODEL_DIR N_TOKENS".into());
    };
    let model = Runtime::new(RuntimeOptions { n_threads: 1, ..Default::default() })?.load_model(path)?;
    let options = SessionOptions { overflow: Some(Overflow::Extrapolate), ..SessionOptions::new("full") };
    let mut session = model.session(&options)?;
    session.feed("Once upon a time")?;
    session.generate(&StreamOptions::new(0))?;
    let n_prompt = session.token_counts()?.n_tokens;
    let answer = StreamOptions { ignore_eos: true, ..StreamOptions::new(n_tokens.parse()?) };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{{\"ready\":true}}")?;
    for line in std::io::stdin().lock().lines() {
        line?;
        session.truncate(n_prompt)?;
        let allocations = HEAP.allocations();
        let (begin, mut text_len) = (Instant::now(), 0);
        for event in session.stream(&answer)? {
            text_len += event?.text.len();
        }
        let seconds = begin.elapsed().as_secs_f64();
        assert!(text_len > 0, "the answer has no text");
        let each = (HEAP.allocations() - allocations) as f64 / answer.max_tokens as f64;
        writeln!(out, "{{\"tokens\":{n_tokens},\"seconds\":{seconds},\"allocations\":{each}}}")?;
    }
    Ok(())
}
