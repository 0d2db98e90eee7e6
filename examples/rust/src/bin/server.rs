//! Answers questions about one document over HTTP: it is read once, and each question goes on in a fork of the session,
//! on a thread of its own.
//!
//!     server MODEL_DIR DOCUMENT HOST:PORT
//!
//! The body of a POST is a question, and that of the response is the answer, which is sent as it comes:
//!
//!     curl -N --data "What is it about?" http://127.0.0.1:8080/
//!
//! Several are answered at once. A client that leaves ends its own answer, and Ctrl-C ends the server.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quire::{Runtime, Session, SessionOptions, StreamOptions};

const MAX_BYTES: u64 = 64 * 1024; // of a question
const MAX_TOKENS: i64 = 200; // of an answer
const TIMEOUT: Duration = Duration::from_secs(30); // of each read from a client
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\
Connection: close\r\n\r\n";

/// The body of a request, or the status that says why it is not read.
fn read_question(client: &TcpStream) -> io::Result<Result<String, &'static str>> {
    let mut reader = BufReader::new(client.take(2 * MAX_BYTES)); // with all headers
    let (mut line, mut length) = (String::new(), None);
    reader.read_line(&mut line)?;
    for header in reader.by_ref().lines() {
        match header?.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse().ok(),
            Some(_) => {}
            None => break, // the empty line behind them
        }
    }
    let length: u64 = match length {
        _ if !line.starts_with("POST ") => return Ok(Err("405 Method Not Allowed\r\nAllow: POST")),
        None => return Ok(Err("411 Length Required")),
        Some(length) if length > MAX_BYTES => return Ok(Err("413 Content Too Large")),
        Some(length) => length,
    };
    let mut question = vec![0; length as usize];
    reader.read_exact(&mut question)?;
    Ok(String::from_utf8(question).map_err(|_| "400 Bad Request"))
}

fn refuse(mut client: &TcpStream, status: &str) -> io::Result<()> {
    client.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    // A client that is still sending would not see the response otherwise.
    io::copy(&mut client.take(16 * MAX_BYTES), &mut io::sink()).map(drop)
}

/// Whether the client has, which is to be known while its question is read, too, when there is nothing to write.
fn has_left(client: &TcpStream) -> io::Result<bool> {
    client.set_nonblocking(true)?;
    let peeked = client.peek(&mut [0]);
    client.set_nonblocking(false)?;
    Ok(matches!(peeked, Ok(0)))
}

/// Does what one connection asks for.
fn serve(mut client: &TcpStream, document: &Mutex<Session>) -> Result<(), Box<dyn Error>> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_nodelay(true)?;
    let question = match read_question(client)? {
        Ok(question) => question,
        Err(status) => return Ok(refuse(client, status)?),
    };
    let mut session = document.lock().expect("a fork does not panic").fork()?;
    session.feed(&format!(" {question}"))?;
    client.write_all(OK)?;
    for event in session.stream(&StreamOptions::new(MAX_TOKENS))? {
        let text = event?.text;
        if has_left(client)? {
            return Err("the client left".into());
        }
        if !text.is_empty() {
            // Fails if the client has left, and the session ends.
            client.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?;
        }
    }
    Ok(client.write_all(b"0\r\n\r\n")?)
}

fn accept(listener: &TcpListener, document: Session) {
    let document = Arc::new(Mutex::new(document)); // which is for one thread at a time
    for client in listener.incoming() {
        let Ok(client) = client else {
            thread::sleep(Duration::from_millis(100)); // there may be no descriptors left
            continue;
        };
        let document = document.clone();
        let begun = thread::Builder::new().spawn(move || {
            if let Err(error) = serve(&client, &document) {
                eprintln!("a request ended early: {error}"); // and so did the response, which has no last chunk
            }
        });
        if let Err(error) = begun {
            eprintln!("a request is not answered: {error}"); // there may be no threads left
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, address] = &arguments[..] else {
        return Err("usage: server MODEL_DIR DOCUMENT HOST:PORT".into());
    };
    let runtime = Runtime::new(Default::default())?;
    let mut session = runtime.load_model(model)?.session(&SessionOptions::new("dca"))?;
    session.feed(&std::fs::read_to_string(document)?)?;
    session.generate(&StreamOptions::new(0))?; // reads the document, and generates nothing
    let listener = TcpListener::bind(address)?;
    interrupt::catch();
    println!("listening at http://{}/", listener.local_addr()?);
    thread::spawn(move || accept(&listener, session));
    interrupt::wait();
    Ok(runtime.close()?) // ends the answers
}

/// Ctrl-C and SIGTERM with the standard library alone, which knows no signals. A program with dependencies takes the
/// crate `ctrlc`.
mod interrupt {
    use std::os::raw::c_int;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{thread, time::Duration};

    const SIGINT: c_int = 2;
    const SIGTERM: c_int = 15;
    static CAUGHT: AtomicBool = AtomicBool::new(false);

    extern "C" {
        fn signal(number: c_int, handler: usize) -> usize;
    }

    extern "C" fn store(_: c_int) {
        CAUGHT.store(true, Ordering::Relaxed);
    }

    /// From now on they do not end the program by themselves.
    pub fn catch() {
        for number in [SIGINT, SIGTERM] {
            // SAFETY: the handler only stores a number, which a signal handler may.
            unsafe { signal(number, store as extern "C" fn(c_int) as usize) };
        }
    }

    pub fn wait() {
        while !CAUGHT.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
    }
}
