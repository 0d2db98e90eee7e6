//! The steps of a case.

use std::collections::HashMap;

use quire::{
    EditOptions, Event, EventKind, Finish, Label, LabelShare, Message, Model, Result, Session, StrategyOptions,
};
use quire_tests::json::Json;
use quire_tests::Folder;

use crate::options;

/// What the steps of one case work on.
pub struct Case<'a> {
    model: &'a Model,
    sessions: HashMap<String, Session>,
    folder: Folder,
}

/// An object of these entries.
macro_rules! object {
    ($($key:ident: $value:expr),* $(,)?) => {
        Json::Object(vec![$((stringify!($key).to_string(), Json::from($value))),*])
    };
}

impl<'a> Case<'a> {
    pub fn new(model: &'a Model) -> Case<'a> {
        Case { model, sessions: HashMap::new(), folder: Folder::new() }
    }

    /// Does a step.
    pub fn step(&mut self, step: &Json) -> Result<Json> {
        match step.at("do").text() {
            "encode" => {
                let ids = self.model.tokenizer()?.encode(step.at("text").text(), options::text(step))?;
                Ok(object! { ids: ids.into_iter().collect::<Json>() })
            }
            "decode" => Ok(object! { text: self.model.tokenizer()?.decode(&step.at("ids").ids())?.as_str() }),
            "describe_strategy" => {
                let strategy = StrategyOptions::new(step.at("strategy").text(), step.at("train_len").integer());
                Ok(object! { canonical: strategy.describe()?.as_str() })
            }
            "session" => self.keep(step, self.model.session(&options::session(step))?),
            "fork" => self.keep(step, self.sessions[step.at("session").text()].fork()?),
            "load" => self.keep(step, self.model.load_session(self.file(step, "from"), &Default::default())?),
            "save" => {
                self.sessions[step.at("session").text()].save(self.file(step, "to"))?;
                Ok(object! {})
            }
            _ => {
                let name = step.at("session").text();
                on_session(self.sessions.get_mut(name).unwrap_or_else(|| panic!("no session {name}")), step)
            }
        }
    }

    fn file(&self, step: &Json, key: &str) -> std::path::PathBuf {
        self.folder.join(&format!("{}.quire", step.at(key).text()))
    }

    /// Gives a session the step's name.
    fn keep(&mut self, step: &Json, session: Session) -> Result<Json> {
        let result = counts(&session);
        self.sessions.insert(step.at("as").text().to_string(), session);
        result
    }
}

/// A step on a session that is there.
fn on_session(session: &mut Session, step: &Json) -> Result<Json> {
    let text = || step.at("text").text();
    match step.at("do").text() {
        "feed" => session.feed_with(text(), options::text(step))?,
        "feed_tokens" => session.feed_tokens(&step.at("ids").ids())?,
        "feed_labelled" => session.feed_labelled(text(), Default::default(), &labels(step))?,
        "feed_messages" => session.feed_messages(&messages(step), &options::chat(step))?,
        "truncate" => session.truncate(step.at("n_tokens").integer())?,
        "discard_pending" => session.discard_pending()?,
        "reset" => session.reset()?,
        "counts" => {}
        "close" => {
            session.close()?;
            return Ok(object! {});
        }
        "edit" => {
            let options = EditOptions { reuse: options::reuse(step), ..Default::default() };
            let edited = session.edit(text(), &options)?;
            return Ok(object! { n_tokens: edited.n_tokens, n_kept: edited.n_kept, n_moved: edited.n_moved });
        }
        "stream" => return stream(session, step),
        _ => return look(session, step),
    }
    counts(session)
}

/// A step that only asks.
fn look(session: &Session, step: &Json) -> Result<Json> {
    let integer = |key| step.at(key).integer();
    Ok(match step.at("do").text() {
        "tokens" => {
            let (first, n) = (integer("first") as usize, integer("n") as usize);
            object! { ids: session.tokens()?.into_iter().skip(first).take(n).collect::<Json>() }
        }
        "scores" => {
            let scores = session.scores(integer("first"), integer("n"))?;
            object! { values: scores.into_iter().map(f64::from).collect::<Json>() }
        }
        "argmax" => {
            let logits = session.logits(integer("token"), 1)?;
            let row = logits.row(0);
            let best = (1..row.len()).fold(0, |best, id| if row[id] > row[best] { id } else { best });
            object! { id: best as i64 }
        }
        "stats" => stats(session)?,
        "strategy" => object! { canonical: session.strategy()?.as_str() },
        "label_attention" => object! { shares: shares(session.label_attention()?) },
        "label_shares" => object! { shares: shares(session.label_shares(None)?) },
        "passages" => {
            let passages = session.passages(None, integer("most") as i32)?.into_iter().map(|passage| {
                let id = passage.label.map_or(0, |(_, id)| id);
                [passage.feed, passage.bytes.start, passage.bytes.end, id].into_iter().collect::<Json>()
            });
            object! { passages: passages.collect::<Json>() }
        }
        other => panic!("a step that the runner does not know: {other}"),
    })
}

fn counts(session: &Session) -> Result<Json> {
    let counts = session.token_counts()?;
    Ok(object! { n_tokens: counts.n_tokens, n_pending: counts.n_pending })
}

fn stats(session: &Session) -> Result<Json> {
    let stats = session.stats()?;
    macro_rules! fields {
        ($($field:ident)*) => { object! { $($field: stats.$field),* } };
    }
    Ok(
        fields! { n_tokens n_pending n_prefilled n_generated prefill_ns decode_ns kv_chunks kv_chunks_dropped scratch_bytes reach
        n_reused n_moved kv_full_bytes kv_old_bytes n_drafted n_accepted },
    )
}

fn shares(labels: Vec<LabelShare>) -> Json {
    labels.iter().map(|label| Json::Array(vec![label.id.into(), label.share.into()])).collect()
}

fn labels(step: &Json) -> Vec<Label> {
    let label = |label: &Json| match label.items() {
        [begin, end, id] => Label { bytes: begin.integer()..end.integer(), id: id.integer() },
        other => panic!("no label: {other:?}"),
    };
    step.at("labels").items().iter().map(label).collect()
}

fn messages(step: &Json) -> Vec<Message<'_>> {
    step.at("messages").items().iter().map(message).collect()
}

fn message(message: &Json) -> Message<'_> {
    match message.items() {
        [role, text] => Message { role: role.text(), text: text.text() },
        other => panic!("no message: {other:?}"),
    }
}

fn stream(session: &mut Session, step: &Json) -> Result<Json> {
    let take = step.get("take").map(|n| n.integer() as usize);
    let (mut events, mut n_taken): (Vec<Event>, _) = (Vec::new(), 0);
    let mut stream = session.stream(&options::stream(step))?;
    while take != Some(n_taken) {
        let Some(event) = stream.next() else { break };
        n_taken += usize::from(matches!(event.as_ref().map(|event| &event.kind), Ok(EventKind::Token(_))));
        events.push(event?);
    }
    stream.close()?;
    Ok(summary(&events))
}

fn summary(events: &[Event]) -> Json {
    let (mut tokens, mut logprobs, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    let (mut finish, mut stop_index, mut end_token) = ("none", -1, -1);
    for event in events {
        kinds.push(match &event.kind {
            EventKind::Prefill(_) => "prefill",
            EventKind::Warning(_) => "warning",
            EventKind::Notice(_) => "notice",
            EventKind::Token(token) => {
                tokens.push(token.id);
                logprobs.push(f64::from(token.logprob));
                "token"
            }
            EventKind::End(end) => {
                finish = finish_name(end.finish);
                stop_index = end.stop_index.map_or(-1, |index| index as i64);
                end_token = end.token.unwrap_or(-1);
                "end"
            }
            other => panic!("an event that the runner does not know: {other:?}"),
        });
    }
    kinds.dedup();
    let text: String = events.iter().map(|event| event.text.as_str()).collect();
    object! {
        tokens: tokens.into_iter().collect::<Json>(), logprobs: logprobs.into_iter().collect::<Json>(), text: text.as_str(),
        finish: finish, stop_index: stop_index, end_token: end_token, n_tokens: events.last().map_or(-1, |e| e.n_tokens),
        kinds: kinds.into_iter().collect::<Json>(),
    }
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::MaxTokens => "max_tokens",
        Finish::Eos => "eos",
        Finish::StopId => "stop_id",
        Finish::StopString => "stop_string",
        Finish::Reach => "reach",
        Finish::Cancelled => "cancelled",
        Finish::Deadline => "deadline",
        other => panic!("an end that the runner does not know: {other:?}"),
    }
}
