//! Sessions in files, in memory and elsewhere.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use quire::{snapshot, Cancel, ElementType, Session, SessionOptions, Status, StreamOptions, Tier, Watch};
use quire_tests::json::Json;
use quire_tests::{failure, generated, ids, model, Folder};

fn options() -> SessionOptions {
    SessionOptions {
        kv_type: Some(ElementType::F32),
        prefill_block: 64,
        no_prefix_reuse: true,
        ..SessionOptions::new("dca(kv_chunk=16)")
    }
}

fn read() -> Session {
    let mut session = model().session(&options()).unwrap();
    session.feed_tokens(&ids(300)).unwrap();
    session.generate(&StreamOptions::new(0)).unwrap();
    session
}

fn answer(session: &mut Session) -> Vec<i32> {
    generated(session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(12) }).unwrap())
}

#[test]
fn files() {
    let (folder, mut session) = (Folder::new(), read());
    let path = folder.join("saved.quire");
    let mut seen = Vec::new();
    session.save_with(&path, true, Watch::new().progress(&mut |done, total| seen.push((done, total)))).unwrap();
    assert!(seen.len() > 2 && seen.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert_eq!(seen[seen.len() - 1].0, seen[0].1);
    snapshot::verify(&path, Watch::new()).unwrap();
    let described = Json::parse(&snapshot::describe(&path).unwrap());
    assert_eq!(described.at("n_tokens").integer(), 300);
    assert_eq!(described.at("origin").at("model").text(), model().metadata("identity").unwrap());
    let unchanged = SessionOptions { no_prefix_reuse: true, ..Default::default() };
    let mut loaded = model().load_session(&path, &unchanged).unwrap();
    assert_eq!(loaded.strategy().unwrap(), session.strategy().unwrap());
    assert_eq!(answer(&mut loaded), answer(&mut session));
    assert_eq!(loaded.logits(-1, 1).unwrap(), session.logits(-1, 1).unwrap());
    assert!(loaded.tier_stats(Tier::Snapshot).unwrap().n_hits > 0);
    loaded.save(&path).unwrap(); // what is new goes behind what is there
    assert_eq!(Json::parse(&snapshot::describe(&path).unwrap()).at("n_generated").integer(), 12);
    let other = SessionOptions { kv_type: Some(ElementType::F16), ..unchanged };
    assert_eq!(failure(model().load_session(&path, &other)), Status::InvalidArgument);
    assert_eq!(failure(model().load_session(folder.join("none"), &options())), Status::NotFound);
}

#[test]
fn cancelled_and_damaged() {
    let (folder, session, cancel) = (Folder::new(), read(), Cancel::new().unwrap());
    let path = folder.join("saved.quire");
    let mut stop = |_, _| cancel.trigger();
    let cancelled = session.save_with(&path, false, Watch::new().progress(&mut stop).cancel(&cancel));
    assert_eq!(failure(cancelled), Status::Cancelled);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    session.save(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    assert_eq!(failure(snapshot::verify_from(&bytes, Watch::new())), Status::BadFile);
    assert_eq!(failure(snapshot::verify_from(&bytes, Watch::new().cancel(&cancel))), Status::Cancelled);
    bytes.truncate(100);
    assert_eq!(failure(snapshot::describe_from(&bytes)), Status::BadFile);
}

#[test]
fn memory_files_and_what_can_be_sought() {
    let (folder, mut session, mut bytes) = (Folder::new(), read(), Vec::new());
    let path = folder.join("saved.quire");
    session.save(&path).unwrap();
    session.save_to(&mut bytes, Watch::new()).unwrap();
    assert_eq!(bytes, std::fs::read(&path).unwrap());
    assert_eq!(snapshot::describe_from(&bytes).unwrap(), snapshot::describe(&path).unwrap());
    snapshot::verify_from(&bytes, Watch::new()).unwrap();
    let expected = answer(&mut session);
    let from_file = model().load_session_from(std::fs::File::open(&path).unwrap(), &options());
    let from_seek = model().load_session_from(Mutex::new(Cursor::new(bytes.clone())), &options());
    let shared: Arc<[u8]> = bytes.clone().into();
    let from_shared = model().load_session_from(Arc::clone(&shared), &options());
    let borrowed: &'static [u8] = Box::leak(bytes.into_boxed_slice());
    let from_static = model().load_session_from(borrowed, &options());
    for loaded in [from_file, from_seek, from_shared, from_static] {
        let loaded = loaded.unwrap();
        let mut fork = loaded.fork().unwrap();
        drop(loaded); // the fork keeps the reader
        assert_eq!(answer(&mut fork), expected);
        fork.close().unwrap();
    }
    assert_eq!(Arc::strong_count(&shared), 1, "the reader goes with the last session that reads");
    // SAFETY: it was leaked above, and nothing reads it any more.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(borrowed).cast_mut()) });
}

/// Fails from its n-th call on.
struct Failing(usize);

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => return Err(std::io::Error::from_raw_os_error(28)),
        }
        Ok(bytes.len().min(1000)) // the rest comes again
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.write(&[0]).map(drop)
    }
}

#[test]
fn errors_of_writers() {
    let session = read();
    let mut counting = Failing(usize::MAX);
    session.save_to(&mut counting, Watch::new()).unwrap();
    let n_calls = usize::MAX - counting.0;
    assert!(n_calls > 10);
    for good in [0, 1, n_calls / 2, n_calls - 1] {
        let error = session.save_to(Failing(good), Watch::new()).unwrap_err();
        assert_eq!((error.status(), error.os_error()), (Status::Io, Some(28)));
    }
}
