//! A thousand sessions leave nothing behind: neither on Rust's heap nor in the runtime's memory, files and threads.

use std::alloc::{GlobalAlloc, Layout};
use std::future::{poll_fn, Future};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use quire::{Model, Runtime, RuntimeOptions, SessionOptions, StreamOptions, Watch};
use quire_tests::counting::Counting;
use quire_tests::{ids, tiny_model};

#[global_allocator]
static HEAP: Counting = Counting::new();
static MEMORY: Counting = Counting::new();

struct Memory;

// SAFETY: `MEMORY` does all of it.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MEMORY.alloc(layout)
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        MEMORY.dealloc(memory, layout);
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Uses of most that a session can hold; some are dropped in the middle.
fn use_session(model: &Model, round: i32) {
    let mut session = model.session(&SessionOptions::new("dca(kv_chunk=16)")).unwrap();
    session.feed_tokens(&ids(20 + round % 7)).unwrap();
    let mut stream = session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(4) }).unwrap();
    match round % 5 {
        0 => drop(stream),
        1 => assert!(stream.next().unwrap().is_ok()),
        2 => {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let mut next = Box::pin(poll_fn(|context| stream.poll_next(context)));
            while Future::poll(next.as_mut(), &mut Context::from_waker(&waker)).is_pending() {
                std::thread::park();
            }
        }
        3 => {
            stream.by_ref().for_each(|event| drop(event.unwrap()));
            let mut bytes = Vec::new();
            session.fork().unwrap().save_to(&mut bytes, Watch::new()).unwrap();
            model.load_session_from(bytes, &Default::default()).unwrap().tokens().unwrap();
        }
        _ => session.close().unwrap(),
    }
}

/// What is held: bytes of Rust's heap and of the runtime, open files, threads.
fn held() -> [i64; 4] {
    let entries = |folder| std::fs::read_dir(folder).unwrap().count() as i64;
    [entries("/proc/self/fd"), entries("/proc/self/task"), HEAP.bytes(), MEMORY.bytes()]
}

/// glibc's `struct mallinfo2`.
#[repr(C)]
struct MallInfo {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    mapped: usize,
    usmblks: usize,
    fsmblks: usize,
    in_use: usize,
    fordblks: usize,
    keepcost: usize,
}

extern "C" {
    fn mallinfo2() -> MallInfo;
}

/// What the system's allocator has given to the process: to the library's small objects too. Freed memory that it keeps
/// ready for each thread counts as well, so this number varies a little.
fn system_bytes() -> i64 {
    // SAFETY: it only counts.
    let info = unsafe { mallinfo2() };
    (info.in_use + info.mapped) as i64
}

/// Waits until no more is held than this: sessions that were dropped are taken down on the runtime's threads.
fn wait_for(limit: [i64; 4]) {
    let begin = Instant::now();
    while held().iter().zip(&limit).any(|(held, limit)| held > limit) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?} is held, {limit:?} was", held());
        std::thread::yield_now();
    }
}

#[test]
fn a_thousand_sessions() {
    let options = RuntimeOptions { n_threads: 1, allocator: Some(Box::new(Memory)), ..Default::default() };
    let runtime = Runtime::new(options).unwrap();
    let model = runtime.load_model(tiny_model()).unwrap();
    (0..200).for_each(|round| use_session(&model, round));
    let (before, system_before) = (held(), system_bytes());
    (0..1000).for_each(|round| use_session(&model, round));
    wait_for(before);
    let more = system_bytes() - system_before;
    println!("{before:?} before, {:?} after, {more} bytes more", held());
    assert!(more < 200 * 1000, "{more} bytes more: 200 or more a session");
    runtime.close().unwrap();
    drop((model, runtime));
    assert_eq!(MEMORY.bytes(), 0);
}
