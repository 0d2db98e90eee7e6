//! Conversations, and strategies as data.

use quire::experimental::{positions, PositionView};
use quire::{ChatOptions, Message, Status, StrategyOptions, StreamOptions};
use quire_tests::json::Json;
use quire_tests::{failure, model};

#[test]
fn chat() {
    let list = Json::parse(&quire::chat_templates().unwrap());
    assert!(list.at("templates").items().iter().any(|template| template.at("name").text() == "llama2"));
    let (tokenizer, messages) =
        (model().tokenizer().unwrap(), [Message::system("Be brief."), Message::user("one</s>")]);
    assert_eq!(failure(tokenizer.chat_template()), Status::NotFound);
    let named = |name: &str| ChatOptions { template: Some(name.into()), ..Default::default() };
    let render = |options: &ChatOptions| tokenizer.render_chat(&messages, options).unwrap();
    assert_eq!(render(&named("llama2")), "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]");
    let dated = ChatOptions { date: Some("2025-03-09".into()), ..named("llama3.1") };
    assert!(render(&dated).contains("Today Date: 09 Mar 2025\n"));
    assert!(render(&ChatOptions { no_thinking: true, ..named("qwen3") }).ends_with("</think>\n\n"));
    assert!(render(&ChatOptions { no_answer: true, ..named("qwen3") }).ends_with("<|im_end|>\n"));
    let ids = tokenizer.encode_chat(&messages, &named("llama2")).unwrap();
    assert!(!ids.iter().any(|&id| tokenizer.is_eos(id)));
    let mut session = model().session(&Default::default()).unwrap();
    session.feed_messages(&messages, &named("llama2")).unwrap();
    assert_eq!(session.tokens().unwrap(), ids);
    session.generate(&StreamOptions { ignore_eos: true, ..StreamOptions::new(3) }).unwrap();
    session.feed_messages(&[Message::user("three"), Message::assistant("four")], &Default::default()).unwrap();
    assert_eq!(session.token_counts().unwrap().n_tokens, ids.len() as i64 + 3);
    let error = session.feed_messages(&[Message { role: "robot", text: "beep" }], &Default::default()).unwrap_err();
    assert_eq!((error.status(), error.offset()), (Status::InvalidArgument, Some(0)));
}

#[test]
fn strategies_as_data() {
    let canonical = StrategyOptions::new("dca", 4096).describe().unwrap();
    assert!(canonical.contains("chunk=3072"), "{canonical}");
    let list = StrategyOptions { train_len: 4096, n_heads: 8, ..Default::default() }.list().unwrap();
    let list = Json::parse(&list);
    let terms = list.at("terms").items();
    assert!(terms.len() > 20);
    let dca = terms.iter().find(|term| term.at("name").text() == "dca").unwrap();
    let chunk = dca.at("arguments").items().iter().find(|argument| argument.at("name").text() == "chunk").unwrap();
    assert_eq!(chunk.at("default").integer(), 3072);
    let error = StrategyOptions::new("full(wheels=3)", 4096).describe().unwrap_err();
    assert_eq!((error.status(), error.offset()), (Status::BadStrategy, Some(5)));
}

#[test]
fn positions_are_the_papers() {
    let strategy = StrategyOptions::new("dca(chunk=6, cap=9)", 10);
    let matrix = positions(&strategy, &PositionView::new(12)).unwrap();
    assert_eq!((matrix.n_rows(), matrix.n_columns()), (12, 12));
    assert_eq!(matrix.row(11), [9., 8., 7., 6., 5., 4., 5., 4., 3., 2., 1., 0.]);
    assert!(matrix.row(0)[1].is_nan());
    assert_eq!(matrix.rows().count(), 12);
    let view = PositionView { first_query: 10, n_queries: 1, ..PositionView::new(12) };
    assert_eq!(positions(&strategy, &view).unwrap().into_vec()[..11], matrix.row(10)[..11]);
}
