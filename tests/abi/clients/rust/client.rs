//! A client over the crate `quire`. Prints what ../README.md says.

use quire::{EventKind, Finish, Runtime, RuntimeOptions, SessionOptions, StrategyOptions, StreamOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: client MODEL_DIR")?;
    let model = Runtime::new(RuntimeOptions { n_threads: 1, ..Default::default() })?.load_model(path)?;
    let mut session = model.session(&SessionOptions::new("dca"))?;
    session.feed("Once upon a time")?;
    let (mut tokens, mut finish) = (Vec::new(), "another");
    for event in session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(16) })? {
        match event?.kind {
            EventKind::Token(token) => tokens.push(token.id.to_string()),
            EventKind::End(end) if end.finish == Finish::MaxTokens => finish = "MAX_TOKENS",
            _ => {}
        }
    }
    println!("{}", tokens.join(" "));
    let counts = session.token_counts()?;
    println!("{finish} {} {}", counts.n_tokens, counts.n_pending);
    let error = StrategyOptions::new("full(wheels=3)", 4096).describe().err().ok_or("there is no error")?;
    println!("{} {}", error.status().name(), error.offset().ok_or("the error has no offset")?);
    Ok(())
}
