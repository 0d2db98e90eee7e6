//! Models: what they are made of, tokenizers, adapters, devices, plans.

use quire::{
    Cancel, ElementType, ModelOptions, QuantizeOptions, Session, SessionOptions, Status, StreamOptions, Watch,
};
use quire::{DeviceKind, LoadMode, TextOptions};
use quire_tests::json::Json;
use quire_tests::{failure, model, runtime, source, tiny_model, Folder};

#[test]
fn info_and_metadata() {
    let info = model().info().unwrap();
    assert_eq!((info.n_layers, info.n_query_heads, info.n_kv_heads, info.head_dim), (2, 4, 2, 24));
    assert_eq!((info.vocab_size, info.train_len, info.weight_type), (320, 256, ElementType::F32));
    assert_eq!(model().metadata("architecture").unwrap(), "LlamaForCausalLM");
    assert_eq!(failure(model().metadata("colour")), Status::NotFound);
}

#[test]
fn load_is_watched_and_cancelled() {
    let (runtime, cancel) = (runtime(1), Cancel::new().unwrap());
    let (mut seen, mut done_before) = ((0, 1), 0);
    let mut progress = |done, total| {
        assert!(done >= done_before);
        (done_before, seen) = (done, (done, total));
    };
    let options = ModelOptions { load: Some(LoadMode::Mmap), device: Some("cpu".into()), ..Default::default() };
    let watch = Watch::new().progress(&mut progress).cancel(&cancel);
    let model = runtime.load_model_with(tiny_model(), &options, watch).unwrap();
    assert_eq!(model.metadata("device_reason").unwrap(), "asked for");
    assert_eq!(seen.0, seen.1);
    cancel.clone().trigger();
    let again = runtime.load_model_with(tiny_model(), &options, Watch::new().cancel(&cancel));
    assert_eq!(failure(again), Status::Cancelled);
}

#[test]
fn quantize_and_describe_files() {
    assert!(quire::quantizations().contains(&"q4_k_m"));
    let (folder, runtime, mut seen) = (Folder::new(), runtime(1), (0, 1));
    let path = folder.join("model.gguf");
    let recipe = |name: &str| QuantizeOptions { recipe: Some(name.into()), n_threads: 1 };
    let mut progress = |done, total| seen = (done, total);
    quire::quantize(tiny_model(), &path, &recipe("q8_0"), Watch::new().progress(&mut progress)).unwrap();
    assert_eq!(seen.0, seen.1);
    let files = Json::parse(&quire::describe_files(&path).unwrap());
    assert_eq!(files.at("format").text(), "gguf");
    assert!(files.at("tensors").items().iter().any(|tensor| tensor.at("type").text() == "Q8_0"));
    let exact = ModelOptions { activation_type: Some(ElementType::F32), ..Default::default() };
    let last = |options: &ModelOptions| {
        let model = runtime.load_model_with(&path, options, Watch::new()).unwrap();
        assert_eq!(model.info().unwrap().weight_type, ElementType::Q8_0);
        let mut session = model.session(&Default::default()).unwrap();
        session.feed("The quick brown fox").unwrap();
        session.generate(&StreamOptions::new(0)).unwrap();
        session.logits(-1, 1).unwrap()
    };
    assert_ne!(last(&Default::default()), last(&exact));
    assert_eq!(failure(quire::quantize(tiny_model(), &path, &recipe("q1"), Watch::new())), Status::InvalidArgument);
    let packed = ModelOptions { packed_directory: Some(folder.join("packed")), ..Default::default() };
    runtime.load_model_with(&path, &packed, Watch::new()).unwrap();
    assert_eq!(std::fs::read_dir(folder.join("packed")).unwrap().count(), 1);
}

#[test]
fn devices() {
    let devices = runtime(1).devices().unwrap();
    let cpu = devices.iter().find(|device| device.kind == DeviceKind::Cpu).unwrap();
    assert!(cpu.usable && cpu.name == "cpu" && cpu.obstacle.is_empty() && !cpu.description.is_empty());
    assert!(cpu.memory_bytes >= cpu.free_bytes && cpu.free_bytes > 0);
    let other = ModelOptions { device: Some("gpu".into()), ..Default::default() };
    assert_eq!(failure(runtime(1).load_model_with(tiny_model(), &other, Watch::new())), Status::InvalidArgument);
}

#[test]
fn adapters() {
    let answer = |session: quire::Result<Session>| {
        let mut session = session.unwrap();
        session.feed("Rain fell on the harbour all night.").unwrap();
        let text = session.generate(&StreamOptions { ignore_eos: true, ..StreamOptions::new(24) }).unwrap();
        (text, session.fingerprint().unwrap())
    };
    let plain =
        || SessionOptions { kv_type: Some(ElementType::F32), ..SessionOptions::new("full + base(theta=10000)") };
    let path = source("tests/golden/adapters/attention");
    let mut seen = (0, 1);
    let mut progress = |done, total| seen = (done, total);
    let adapter = model().load_adapter(&path, Watch::new().progress(&mut progress)).unwrap();
    assert_eq!(seen.0, seen.1);
    let info = adapter.info().unwrap();
    assert!(info.replaces_embedding && info.changes_queries_or_keys && !info.replaces_norms && info.rank == 4);
    assert_eq!(adapter.metadata("base_model").unwrap(), "text_256");
    let with = |scale| SessionOptions { adapters: vec![(adapter.clone(), scale)], ..plain() };
    let (without, once, twice) =
        (answer(model().session(&plain())), answer(model().session(&with(1.0))), answer(model().session(&with(2.0))));
    assert!(without.0 != once.0 && once.0 != twice.0 && without.1 != once.1 && once.1 != twice.1);
    let merged = ModelOptions { merge: vec![(path, 2.0)], ..Default::default() };
    let merged = runtime(1).load_model_with(tiny_model(), &merged, Watch::new()).unwrap();
    assert_eq!(answer(merged.session(&plain())).0, twice.0);
    assert_eq!(failure(model().load_adapter("/no/such/adapter", Watch::new())), Status::NotFound);
    assert_eq!(failure(model().session(&with(0.0))), Status::InvalidArgument);
}

#[test]
fn tokenizer() {
    let (tokenizer, text) = (model().tokenizer().unwrap(), "Rain fell on the harbour: 雨 😀");
    let ids = tokenizer.encode(text, Default::default()).unwrap();
    assert_eq!((Some(ids[0]), tokenizer.vocab_size()), (tokenizer.bos(), 320));
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert!(tokenizer.decode_special(&ids).unwrap().starts_with("<s>"));
    assert_eq!(tokenizer.encode(text, TextOptions { no_bos: true, ..Default::default() }).unwrap(), ids[1..]);
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap().trim(), text);
    assert!(tokenizer.is_eos(2) && !tokenizer.is_eos(3));
    let alone = runtime(1).load_tokenizer(tiny_model().join("tokenizer.model")).unwrap();
    assert_eq!(alone.encode(text, Default::default()).unwrap(), ids);
}

#[test]
fn what_needs_no_weights() {
    let (runtime, plain) = (runtime(1), ModelOptions::default());
    let options = |strategy: &str| SessionOptions { expected_tokens: 5000, ..SessionOptions::new(strategy) };
    runtime.check_session(tiny_model(), &plain, &options("dca")).unwrap();
    for (strategy, status) in
        [("full", Status::Overflow), ("fool", Status::BadStrategy), ("beacon", Status::Unsupported)]
    {
        assert_eq!(failure(runtime.check_session(tiny_model(), &plain, &options(strategy))), status);
        assert_eq!(failure(model().check_session(&options(strategy))), status);
    }
    let described = runtime.describe_strategy(tiny_model(), &plain, &options("auto")).unwrap();
    assert_eq!(described, model().describe_strategy(&options("auto")).unwrap());
    let plan = runtime.plan_memory(tiny_model(), &plain, &options("dca"), 1000).unwrap();
    assert!(plan.weight_bytes > 0 && plan.kv_host_bytes > 0 && plan.kv_file_bytes == 0 && plan.reach == i64::MAX);
    let estimate = model().estimate_rates(&options("dca"), 1000).unwrap();
    assert!(estimate.prefill_ns > 0 && estimate.tier_read_bytes_per_second == 0);
}
