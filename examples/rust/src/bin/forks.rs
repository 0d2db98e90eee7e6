//! Asks two documents several questions, all at once. Each document is read once, and each question goes to a fork.
//!
//!     forks MODEL_DIR DOCUMENT DOCUMENT QUESTION...

use std::error::Error;
use std::thread;

use quire::{Model, Result, Runtime, Session, SessionOptions, StreamOptions};

fn read(model: &Model, text: &str) -> Result<Session> {
    let mut session = model.session(&SessionOptions::new("dca"))?;
    session.feed(text)?;
    session.generate(&StreamOptions::new(0))?;
    Ok(session)
}

/// The answer to a question, from a session that goes on behind the document.
fn ask(mut session: Session, question: &str) -> Result<String> {
    session.feed(question)?;
    session.generate(&StreamOptions { stop_strings: vec!["\n".to_string()], ..StreamOptions::new(100) })
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, first, second, questions @ ..] = &arguments[..] else {
        return Err("usage: forks MODEL_DIR DOCUMENT DOCUMENT QUESTION...".into());
    };
    let model = Runtime::new(Default::default())?.load_model(model)?;
    let texts = [std::fs::read_to_string(first)?, std::fs::read_to_string(second)?];
    thread::scope(|scope| {
        // The documents are read at once, too.
        let reading = texts.each_ref().map(|text| scope.spawn(|| read(&model, text)));
        let documents = reading.into_iter().map(|thread| thread.join().expect("reading does not panic"));
        let documents = documents.collect::<Result<Vec<Session>>>()?;
        let mut answering = Vec::new();
        for (path, document) in [first, second].into_iter().zip(&documents) {
            for question in questions {
                let fork = document.fork()?;
                answering.push((path, question, scope.spawn(move || ask(fork, question))));
            }
        }
        for (path, question, thread) in answering {
            println!("{path}: {question}{}", thread.join().expect("asking does not panic")?);
        }
        Ok(())
    })
}
