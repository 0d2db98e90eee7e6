//! What the tests of the Rust binding share.

pub mod counting;
pub mod json;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use quire::{Error, Event, EventKind, Model, Runtime, RuntimeOptions, Status, Stream};

/// A path from the root of the repository.
pub fn source(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

/// A tiny model with random weights: 320 ids, a window of 256 tokens.
pub fn tiny_model() -> PathBuf {
    source("tests/golden/models/text_256")
}

pub fn runtime(n_threads: i32) -> Runtime {
    Runtime::new(RuntimeOptions { n_threads, ..Default::default() }).unwrap()
}

/// The tiny model in a runtime that the tests of a program share.
pub fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| runtime(2).load_model(tiny_model()).unwrap())
}

/// Ids that are in the tiny model's vocabulary.
pub fn ids(n: i32) -> Vec<i32> {
    (0..n).map(|i| 3 + i % 300).collect()
}

/// The ids of the tokens that a stream generates, to its end.
pub fn generated(stream: Stream) -> Vec<i32> {
    stream.filter_map(|event| token(&event.unwrap())).collect()
}

/// The id, if a token was generated.
pub fn token(event: &Event) -> Option<i32> {
    match &event.kind {
        EventKind::Token(token) => Some(token.id),
        _ => None,
    }
}

/// Why the call failed, as the header calls it. Panics if it did not, or if the error has no message.
pub fn failure<T>(result: Result<T, Error>) -> Status {
    let Err(error) = result else { panic!("the call succeeded") };
    assert!(!error.message().is_empty(), "{error:?}");
    error.status()
}

/// A folder that goes when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("quire-rust-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Folder {
    fn default() -> Folder {
        Folder::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
