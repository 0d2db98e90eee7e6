//! Stores of documents.

use quire::{Cancel, SessionOptions, Status, Store, StoreOptions, StreamOptions, Watch};
use quire_tests::json::Json;
use quire_tests::{failure, generated, ids, model, Folder};

#[test]
fn stores() {
    let (folder, ids) = (Folder::new(), ids(400));
    let path = folder.join("store");
    let options = SessionOptions { no_prefix_reuse: true, ..SessionOptions::new("dca") };
    let existing = StoreOptions { must_exist: true, ..Default::default() };
    assert_eq!(failure(Store::open(&path, &existing)), Status::NotFound);
    let store = Store::open(&path, &StoreOptions { budget_bytes: 10_000_000, ..Default::default() }).unwrap();
    assert_eq!(store.find(model(), &options, &ids).unwrap().reason, "the store is empty");
    assert_eq!(failure(store.load(model(), &options, &ids)), Status::NotFound);
    let mut session = model().session(&options).unwrap();
    session.feed_tokens(&ids[..300]).unwrap();
    session.generate(&StreamOptions::new(0)).unwrap();
    let mut seen = (0, 1);
    let put = store.put(&session, "Größe", Watch::new().progress(&mut |done, total| seen = (done, total))).unwrap();
    assert_eq!((put.n_tokens, seen.0), (300, seen.1));
    let found = store.clone().find(model(), &options, &ids).unwrap();
    assert_eq!((found.n_tokens, found.n_computed, found.name == put.name), (300, 300, true));
    let entry = || Json::parse(&store.describe().unwrap()).at("entries").items().first().cloned();
    assert_eq!(entry().unwrap().at("title").text(), "Größe");
    let (mut loaded, held) = store.load(model(), &options, &ids).unwrap();
    assert!(entry().unwrap().at("in_use").bool());
    assert_eq!((loaded.tokens().unwrap(), held.name), (ids[..300].to_vec(), put.name.clone()));
    store.verify(&put.name, Watch::new()).unwrap();
    let cancel = Cancel::new().unwrap();
    cancel.trigger();
    assert_eq!(failure(store.verify(&put.name, Watch::new().cancel(&cancel))), Status::Cancelled);
    store.remove(&put.name).unwrap();
    assert_eq!(entry(), None);
    let [first, second] = [&mut session, &mut loaded].map(|session| {
        session.feed_tokens(&ids[300..]).unwrap();
        generated(session.stream(&StreamOptions { ignore_eos: true, ..StreamOptions::new(12) }).unwrap())
    });
    assert_eq!(first, second);
    assert_eq!(failure(store.remove("../store.lock")), Status::InvalidArgument);
}

#[test]
fn all_of_a_session_is_put() {
    let folder = Folder::new();
    let n_bytes = |whole: bool| {
        let store = Store::open(folder.join(&whole.to_string()), &StoreOptions::default()).unwrap();
        let mut session = model().session(&SessionOptions::new("dca")).unwrap();
        for n in [300, 100] {
            session.feed_tokens(&ids(n)).unwrap();
            session.generate(&StreamOptions::new(0)).unwrap();
            let put = if whole { Store::put_whole } else { Store::put };
            assert!(put(&store, &session, "", Watch::new()).unwrap().n_tokens >= 300);
        }
        Json::parse(&store.describe().unwrap()).at("bytes").integer()
    };
    let (whole, added) = (n_bytes(true), n_bytes(false));
    assert!(whole < added, "{whole} bytes, and with what an addition leaves unused {added}");
}
