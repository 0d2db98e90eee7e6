//! Asks a document: reads it once, then answers each line of the input. Ctrl-C ends the answer, and not the program.
//!
//!     ask MODEL_DIR DOCUMENT [STRATEGY]

use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use quire::{EventKind, Finish, Runtime, Session, SessionOptions, StreamOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, strategy @ ..] = &arguments[..] else {
        return Err("usage: ask MODEL_DIR DOCUMENT [STRATEGY]".into());
    };
    let strategy = strategy.first().map_or("dca", String::as_str);
    let model = Runtime::new(Default::default())?.load_model(model)?;
    let mut session = model.session(&SessionOptions::new(strategy))?;
    session.feed(&std::fs::read_to_string(document)?)?;
    session.generate(&StreamOptions::new(0))?; // reads the document, and generates nothing
    eprintln!("{} tokens read; ask, a question a line", session.token_counts()?.n_tokens);
    for question in std::io::stdin().lock().lines() {
        let mut asked = session.fork()?; // the document is not read again
        asked.feed(&question?)?;
        interrupt::while_caught(|interrupted| answer(&mut asked, interrupted))?;
    }
    Ok(())
}

/// Prints the answer as it comes, until it ends or is interrupted.
fn answer(session: &mut Session, interrupted: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let options = StreamOptions { stop_strings: vec!["\n".to_string()], ..StreamOptions::new(200) };
    let (mut stream, mut out) = (session.stream(&options)?, std::io::stdout());
    loop {
        if interrupted.swap(false, Ordering::Relaxed) {
            stream.cancel()?; // its last event comes soon
        }
        let event = match stream.next_timeout(Duration::from_millis(50)) {
            Poll::Pending => continue,
            Poll::Ready(None) => return Ok(()),
            Poll::Ready(Some(event)) => event?,
        };
        out.write_all(event.text.as_bytes())?;
        out.flush()?;
        match event.kind {
            EventKind::Prefill(read) => eprint!("\r{} of {} tokens\r", read.done, read.total),
            EventKind::Warning(warning) => eprintln!("{}", warning.message),
            EventKind::End(end) if end.finish == Finish::Cancelled => println!(" (interrupted)"),
            EventKind::End(_) => println!(),
            _ => {}
        }
    }
}

/// Ctrl-C with the standard library alone, which knows no signals. A program with dependencies takes the crate `ctrlc`.
mod interrupt {
    use std::os::raw::c_int;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SIGINT: c_int = 2;
    static CAUGHT: AtomicBool = AtomicBool::new(false);

    extern "C" {
        fn signal(number: c_int, handler: usize) -> usize;
    }

    extern "C" fn catch(_: c_int) {
        CAUGHT.store(true, Ordering::Relaxed);
    }

    /// Calls the function with what Ctrl-C sets meanwhile, instead of ending the program.
    pub fn while_caught<R>(function: impl FnOnce(&AtomicBool) -> R) -> R {
        // SAFETY: the handler only stores a number, which a signal handler may.
        let before = unsafe { signal(SIGINT, catch as extern "C" fn(c_int) as usize) };
        let result = function(&CAUGHT);
        // SAFETY: the handler that was there before.
        unsafe { signal(SIGINT, before) };
        CAUGHT.store(false, Ordering::Relaxed);
        result
    }
}
