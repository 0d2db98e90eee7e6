//! Options as the suite writes them.

use quire::{ChatOptions, ElementType, Overflow, Reuse, SessionOptions, StreamOptions, TextOptions};
use quire_tests::json::Json;

/// The entries of a step's options.
fn entries(options: Option<&Json>) -> &[(String, Json)] {
    options.map_or(&[], Json::entries)
}

fn element_type(name: &Json) -> Option<ElementType> {
    Some(match name.text() {
        "f32" => ElementType::F32,
        "f16" => ElementType::F16,
        "bf16" => ElementType::Bf16,
        "int8" => ElementType::Int8,
        "int4" => ElementType::Int4,
        other => panic!("a type that the runner does not know: {other}"),
    })
}

fn overflow(name: &Json) -> Option<Overflow> {
    Some(match name.text() {
        "error" => Overflow::Error,
        "stop" => Overflow::Stop,
        "extrapolate" => Overflow::Extrapolate,
        other => panic!("an overflow policy that the runner does not know: {other}"),
    })
}

pub fn session(step: &Json) -> SessionOptions {
    let strategy = step.get("strategy").map(|name| name.text().to_string());
    let mut options = SessionOptions { strategy, ..Default::default() };
    for (key, value) in entries(step.get("options")) {
        match key.as_str() {
            "kv_type" => options.kv_type = element_type(value),
            "kv_old_type" => options.kv_old_type = element_type(value),
            "old_after" => options.old_after = value.integer(),
            "overflow" => options.overflow = overflow(value),
            "prefill_block" => options.prefill_block = value.integer() as i32,
            "expected_tokens" => options.expected_tokens = value.integer(),
            "kv_host_budget_bytes" => options.kv_host_budget_bytes = value.integer(),
            other => panic!("an option of sessions that the runner does not know: {other}"),
        }
    }
    options
}

pub fn stream(step: &Json) -> StreamOptions {
    let mut options = StreamOptions::default();
    for (key, value) in entries(step.get("options")) {
        match key.as_str() {
            "max_tokens" => options.max_tokens = value.integer(),
            "temperature" => options.temperature = value.number() as f32,
            "top_k" => options.top_k = value.integer() as i32,
            "top_p" => options.top_p = value.number() as f32,
            "min_p" => options.min_p = value.number() as f32,
            "seed" => options.seed = value.integer() as u64,
            "stop" => options.stop_strings = value.items().iter().map(|stop| stop.text().to_string()).collect(),
            "stop_ids" => options.stop_ids = value.ids(),
            "min_tokens" => options.min_tokens = value.integer(),
            "max_undelivered" => options.max_undelivered = value.integer() as i32,
            "draft_tokens" => options.draft_tokens = value.integer() as i32,
            "draft_match" => options.draft_match = value.integer() as i32,
            "n_top_logprobs" => options.n_top_logprobs = value.integer() as i32,
            "ignore_eos" => options.ignore_eos = value.bool(),
            "score" => options.score = value.bool(),
            "keep_logits" => options.keep_logits = value.bool(),
            "cite" => options.cite = value.bool(),
            other => panic!("an option of streams that the runner does not know: {other}"),
        }
    }
    options
}

fn is(step: &Json, key: &str, default: bool) -> bool {
    step.get(key).map_or(default, Json::bool)
}

/// How a step's text is tokenized.
pub fn text(step: &Json) -> TextOptions {
    let (no_bos, continued) = (!is(step, "add_bos", true), !is(step, "first", true));
    TextOptions { parse_special: is(step, "parse_special", false), no_bos, continued }
}

pub fn chat(step: &Json) -> ChatOptions {
    let template = step.get("template").map(|name| name.text().to_string());
    ChatOptions { template, no_answer: !is(step, "answer", true), ..Default::default() }
}

pub fn reuse(step: &Json) -> Reuse {
    match step.get("reuse").map_or("exact", Json::text) {
        "exact" => Reuse::Exact,
        "approximate" => Reuse::Approximate,
        other => panic!("a reuse that the runner does not know: {other}"),
    }
}
