//! Closures that the library calls, and their panics.

use std::alloc::{GlobalAlloc, Layout};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use quire::snapshot::ReadAt;
use quire::{
    Cancel, LogLevel, Model, ModelOptions, QuantizeOptions, Runtime, RuntimeOptions, SessionOptions, Status,
    StreamOptions, Watch,
};
use quire_tests::{failure, generated, ids, model, runtime, tiny_model, Folder};

fn logging(log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Runtime {
    let (log, log_level) = (Some(Box::new(log) as Box<_>), Some(LogLevel::Debug));
    Runtime::new(RuntimeOptions { n_threads: 1, log, log_level, ..Default::default() }).unwrap()
}

#[test]
fn log() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let runtime = logging(move |level, line| sink.lock().unwrap().push((level, line.to_string())));
    runtime.load_model(tiny_model()).unwrap();
    runtime.close().unwrap();
    drop(runtime);
    let found = lines.lock().unwrap();
    assert!(found.iter().any(|(level, line)| *level == LogLevel::Info && line.contains("text_256")), "{found:?}");
    assert_eq!(Arc::strong_count(&lines), 1, "the sink goes with the runtime");
}

#[test]
fn kept_log_lines() {
    let log_level = Some(LogLevel::Info);
    let runtime =
        Runtime::new(RuntimeOptions { n_threads: 1, n_kept_log_lines: 2, log_level, ..Default::default() }).unwrap();
    assert_eq!(runtime.take_log_line().unwrap(), None);
    for _ in 0..3 {
        runtime.load_model(tiny_model()).unwrap();
    }
    for _ in 0..2 {
        let line = runtime.take_log_line().unwrap().unwrap();
        assert!(line.text.contains("text_256"), "{line:?}");
        assert_eq!((line.level, line.n_lost), (LogLevel::Info, 0));
    }
    assert_eq!(runtime.take_log_line().unwrap(), None);
    runtime.load_model(tiny_model()).unwrap();
    assert_eq!(runtime.take_log_line().unwrap().unwrap().n_lost, 1);
    runtime.close().unwrap();
    assert_eq!(runtime.take_log_line().unwrap_err().status(), Status::Closed);
}

/// A payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_log_that_panics() {
    let n_lines = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&n_lines);
    let runtime = logging(move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::panic::panic_any(Bomb);
    });
    let mut session = runtime.load_model(tiny_model()).unwrap().session(&Default::default()).unwrap();
    session.feed_tokens(&ids(5)).unwrap();
    assert_eq!(session.generate(&StreamOptions { ignore_eos: true, ..StreamOptions::new(3) }).map(drop), Ok(()));
    assert!(n_lines.load(Ordering::Relaxed) > 0);
}

#[test]
fn progress_that_panics() {
    let (runtime, mut n_calls) = (runtime(1), 0);
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        let mut progress = |_, _| {
            n_calls += 1;
            panic!("enough of it");
        };
        runtime.load_model_with(tiny_model(), &ModelOptions::default(), Watch::new().progress(&mut progress))
    }));
    assert_eq!(loaded.err().and_then(|panic| panic.downcast_ref::<&str>().copied()), Some("enough of it"));
    assert_eq!(n_calls, 1);
    runtime.load_model(tiny_model()).unwrap();

    // The call ends, and leaves what one that is cancelled leaves.
    let (folder, cancel) = (Folder::new(), Cancel::new().unwrap());
    let recipe = QuantizeOptions { recipe: Some("q8_0".into()), n_threads: 1 };
    let path = folder.join("model.gguf");
    for given in [None, Some(&cancel)] {
        let quantized = catch_unwind(AssertUnwindSafe(|| {
            let mut progress = |_, _| panic!("enough of it");
            let watch = given.map_or_else(Watch::new, |cancel| Watch::new().cancel(cancel));
            quire::quantize(tiny_model(), &path, &recipe, watch.progress(&mut progress))
        }));
        assert!(quantized.is_err() && !path.exists());
    }
    let stopped = runtime.load_model_with(tiny_model(), &ModelOptions::default(), Watch::new().cancel(&cancel));
    assert_eq!(failure(stopped), Status::Cancelled);
}

/// Memory that panics when it is told to.
struct Panicking(Arc<AtomicBool>);

// SAFETY: memory is the system's.
unsafe impl GlobalAlloc for Panicking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert!(!self.0.load(Ordering::Relaxed), "no memory today");
        std::alloc::System.alloc(layout)
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        std::alloc::System.dealloc(memory, layout);
    }
}

#[test]
fn memory_that_panics() {
    let switch = Arc::new(AtomicBool::new(false));
    let allocator = Some(Box::new(Panicking(Arc::clone(&switch))) as Box<_>);
    let runtime = Runtime::new(RuntimeOptions { n_threads: 1, allocator, ..Default::default() }).unwrap();
    let model = runtime.load_model(tiny_model()).unwrap();
    switch.store(true, Ordering::Relaxed);
    assert_eq!(failure(runtime.load_model(tiny_model())), Status::OutOfMemory);
    switch.store(false, Ordering::Relaxed);
    let mut session = model.session(&Default::default()).unwrap();
    session.feed_tokens(&ids(5)).unwrap();
    session.generate(&StreamOptions::new(1)).unwrap();
    drop((session, model));
    runtime.close().unwrap();
    drop(runtime);
    assert_eq!(Arc::strong_count(&switch), 1, "the allocator goes with the runtime");
}

#[test]
fn options_of_a_runtime_that_is_not_made() {
    let mark = Arc::new(());
    let kept = Arc::clone(&mark);
    let log = move |_: LogLevel, _: &str| drop(Arc::clone(&kept));
    let made = Runtime::new(RuntimeOptions { n_threads: -1, log: Some(Box::new(log)), ..Default::default() });
    assert_eq!(failure(made), Status::InvalidArgument);
    assert_eq!(Arc::strong_count(&mark), 1);
}

/// A snapshot whose reads panic once it is told to.
struct Reader {
    bytes: Vec<u8>,
    switch: Arc<AtomicBool>,
}

impl ReadAt for Reader {
    fn size(&self) -> std::io::Result<u64> {
        self.bytes.size()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        assert!(!self.switch.load(Ordering::Relaxed), "the page is torn");
        self.bytes.read_at(offset, buffer)
    }
}

fn saved(model: &Model, options: &SessionOptions) -> Vec<u8> {
    let (mut session, mut bytes) = (model.session(options).unwrap(), Vec::new());
    session.feed_tokens(&ids(300)).unwrap();
    session.generate(&StreamOptions::new(0)).unwrap();
    session.save_to(&mut bytes, Watch::new()).unwrap();
    bytes
}

#[test]
fn readers_and_writers_that_panic() {
    let options = SessionOptions { no_prefix_reuse: true, ..SessionOptions::new("dca(kv_chunk=16)") };
    let (bytes, switch) = (saved(model(), &options), Arc::new(AtomicBool::new(false)));
    let reader = || Reader { bytes: bytes.clone(), switch: Arc::clone(&switch) };
    let mut session = model().load_session_from(reader(), &options).unwrap();
    let more = StreamOptions { ignore_eos: true, ..StreamOptions::new(4) };
    switch.store(true, Ordering::Relaxed);
    let error = session.generate(&more).unwrap_err();
    assert_eq!(error.status(), Status::Io);
    assert!(error.message().contains("panicked: the page is torn"), "{error}");
    assert_eq!(failure(model().load_session_from(reader(), &options)), Status::Io);
    assert_eq!(failure(quire::snapshot::verify_from(&reader(), Watch::new())), Status::Io);
    switch.store(false, Ordering::Relaxed);
    let n_generated = generated(session.stream(&more).unwrap()).len();
    assert_eq!(n_generated, 4, "the session goes on");
    session.close().unwrap();
    assert_eq!(Arc::strong_count(&switch), 1, "readers go with their sessions, or with the call that failed");

    struct Writer;
    impl std::io::Write for Writer {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            panic!("out of {}", "ink")
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = model().session(&options).unwrap().save_to(Writer, Watch::new()).unwrap_err();
    assert!(error.status() == Status::Io && error.message().contains("panicked: out of ink"), "{error}");
}
