//! Every class of errors, raised and caught.

use std::collections::HashSet;
use std::path::Path;

use quire::{
    Cancel, Error, ModelOptions, Overflow, Runtime, RuntimeOptions, SessionOptions, Status, StreamOptions, Watch,
};
use quire_tests::counting::Counting;
use quire_tests::json::Json;
use quire_tests::{failure, ids, model, runtime, tiny_model, Folder};

/// The model with numbers that are none in its last norm.
fn copy_with_nan(to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(tiny_model()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let begin = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header = Json::parse(std::str::from_utf8(&bytes[8..begin]).unwrap());
            let [first, end] = header.at("model.norm.weight").at("data_offsets").ids()[..] else {
                panic!("two offsets")
            };
            bytes[begin + first as usize..begin + end as usize].fill(0xFF);
        }
        std::fs::write(to.join(path.file_name().unwrap()), bytes).unwrap();
    }
}

fn of_numbers() -> Error {
    let folder = Folder::new();
    copy_with_nan(&folder.join("model"));
    let mut session = runtime(1).load_model(folder.join("model")).unwrap().session(&Default::default()).unwrap();
    session.feed_tokens(&ids(5)).unwrap();
    session.generate(&StreamOptions::new(3)).unwrap_err()
}

fn of_memory() -> Error {
    static MEMORY: Counting = Counting::new();
    struct Shared;
    // SAFETY: `MEMORY` does all of it.
    unsafe impl std::alloc::GlobalAlloc for Shared {
        unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
            MEMORY.alloc(layout)
        }
        unsafe fn dealloc(&self, memory: *mut u8, layout: std::alloc::Layout) {
            MEMORY.dealloc(memory, layout);
        }
    }
    let options = RuntimeOptions { n_threads: 1, allocator: Some(Box::new(Shared)), ..Default::default() };
    let runtime = Runtime::new(options).unwrap();
    runtime.load_model(tiny_model()).unwrap().session(&Default::default()).unwrap();
    assert!(MEMORY.allocations() > 0);
    MEMORY.set_limit(1000);
    let error = runtime.load_model(tiny_model()).unwrap_err();
    runtime.close().unwrap();
    assert_eq!(MEMORY.bytes(), 0);
    error
}

/// Errors of a session, and of what is made for it.
fn of_sessions() -> Vec<Error> {
    let mut found = Vec::new();
    let mut session = model().session(&SessionOptions::new("full")).unwrap();
    found.push(session.stream(&StreamOptions::new(1)).unwrap_err()); // EMPTY
    let invalid = session.feed_tokens(&[5, 320]).unwrap_err();
    assert_eq!(invalid.offset(), Some(1));
    found.push(invalid); // INVALID_TOKEN
    found.push(session.passages(None, 0).unwrap_err()); // INVALID_ARGUMENT
    found.push(session.logits(7, 1).unwrap_err()); // NOT_FOUND
    found.push(session.label_attention().unwrap_err()); // UNSUPPORTED
    session.feed_tokens(&ids(250)).unwrap();
    let beyond = session.stream(&StreamOptions::new(100)).unwrap_err();
    assert_eq!(beyond.offset(), Some(350));
    found.push(beyond); // OVERFLOW
    let stream = session.stream(&StreamOptions::new(0)).unwrap();
    found.push(session.feed("more").unwrap_err()); // BUSY
    stream.close().unwrap();
    let broken = session.save_to(Broken, Watch::new()).unwrap_err();
    assert!(broken.message().contains("the shelf is full"));
    found.push(broken); // IO
    session.close().unwrap();
    found.push(session.feed("more").unwrap_err()); // CLOSED
    found.push(model().session(&SessionOptions::new("full(")).unwrap_err()); // BAD_STRATEGY
    let small = SessionOptions { kv_compressed_budget_bytes: 1, ..Default::default() };
    found.push(model().session(&small).unwrap_err()); // BUDGET
    found
}

struct Broken;

impl std::io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the shelf is full"))
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_class() {
    let mut found = of_sessions();
    found.push(of_numbers());
    found.push(of_memory());
    found.push(quire::snapshot::describe_from(&vec![0u8; 100]).unwrap_err()); // BAD_FILE
    let cancel = Cancel::new().unwrap();
    cancel.trigger();
    let watch = Watch::new().cancel(&cancel);
    found.push(runtime(1).load_model_with(tiny_model(), &ModelOptions::default(), watch).unwrap_err());
    let classes: HashSet<&str> = found.iter().map(|error| error.status().name()).collect();
    let mut missing: Vec<_> = (-19..0).map(|code| Status::from_raw(code).name()).collect();
    missing.retain(|name| !classes.contains(name));
    // raw.rs raises BUFFER_TOO_SMALL and INVALID_TEXT, which no method returns: text is `str`. DEVICE takes a GPU, and
    // INTERNAL would be a bug.
    assert_eq!(missing, ["DEVICE", "BUFFER_TOO_SMALL", "INVALID_TEXT", "INTERNAL"], "{found:?}");
    for error in &found {
        assert!(!error.message().is_empty());
        assert_eq!(error.to_string(), format!("{}: {}", error.status().name(), error.message()));
    }
}

#[test]
fn unknown_numbers_are_kept() {
    assert_eq!(Status::from_raw(-18), Status::BufferTooSmall);
    assert_eq!((Status::from_raw(-99).raw(), Status::from(-99).name()), (-99, "UNKNOWN"));
    let options = SessionOptions { overflow: Some(Overflow::Other(9)), ..Default::default() };
    assert_eq!(failure(model().session(&options)), Status::InvalidArgument);
}

#[test]
fn errors_are_errors() {
    fn asked() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        runtime(1).load_model("/no/such/model")?;
        Ok(())
    }
    let error = asked().unwrap_err();
    assert_eq!(error.downcast_ref::<Error>().map(Error::status), Some(Status::NotFound));
}
