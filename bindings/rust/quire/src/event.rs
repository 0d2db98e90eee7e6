//! What a stream reports.

use crate::{call, sys, Finish, MessageCode, ReuseMiss};

/// What a stream reports. The texts of all events, one after the other, are the answer.
///
/// ```no_run
/// # fn run(stream: quire::Stream) -> quire::Result<()> {
/// use quire::EventKind;
/// for event in stream {
///     let event = event?;
///     print!("{}", event.text);
///     match event.kind {
///         EventKind::Prefill(prefill) => eprint!("\r{} of {} tokens", prefill.done, prefill.total),
///         EventKind::Warning(notice) => eprintln!("{}", notice.message),
///         EventKind::End(end) => println!("\n({:?})", end.finish),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// Of the answer, and nothing else; often empty.
    pub text: String,
    /// Tokens of the session after this event.
    pub n_tokens: i64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// So much of what was fed is processed.
    Prefill(Prefill),
    /// A token was generated.
    Token(Token),
    /// Something is probably not as it was meant.
    Warning(Notice),
    /// Something that is good to know.
    Notice(Notice),
    /// The last event.
    End(End),
    /// A kind that this version of the crate does not know.
    Other(i32),
}

/// How far processing what was fed is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Prefill {
    /// Tokens to process.
    pub total: i64,
    /// Of them taken over from other sessions so far.
    pub reused: i64,
    /// Of them taken over from elsewhere in a text before an edit so far.
    pub moved: i64,
    /// Of them computed so far.
    pub done: i64,
    /// Tokens a second so far in this stream.
    pub n_per_second: f64,
    /// The last reason so far why a chunk was computed that might have been reused.
    pub reuse_miss: ReuseMiss,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: i32,
    /// log p under the model's unmodified distribution.
    pub logprob: f32,
    /// Ids and log p of the most probable tokens, the most probable first ([`StreamOptions::n_top_logprobs`]).
    ///
    /// [`StreamOptions::n_top_logprobs`]: crate::StreamOptions::n_top_logprobs
    pub top_logprobs: Vec<(i32, f32)>,
}

/// A message for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notice {
    /// What it is about.
    pub code: MessageCode,
    /// What it says.
    pub message: String,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// The id that ended it, by a stop id or an end of text.
    pub token: Option<i32>,
    /// The index of the stop string that ended it.
    pub stop_index: Option<usize>,
}

impl Event {
    /// # Safety
    /// What the event points to must be alive.
    pub(crate) unsafe fn new(raw: &sys::quire_event) -> Event {
        let kind = match raw.kind {
            sys::QUIRE_EVENT_PREFILL => EventKind::Prefill(Prefill {
                total: raw.total,
                reused: raw.reused,
                moved: raw.moved,
                done: raw.done,
                n_per_second: raw.n_per_second,
                reuse_miss: raw.reuse_miss.into(),
            }),
            sys::QUIRE_EVENT_TOKEN => {
                EventKind::Token(Token { id: raw.token, logprob: raw.logprob, top_logprobs: top_logprobs(raw) })
            }
            sys::QUIRE_EVENT_WARNING => EventKind::Warning(notice(raw)),
            sys::QUIRE_EVENT_NOTICE => EventKind::Notice(notice(raw)),
            sys::QUIRE_EVENT_END => EventKind::End(End {
                finish: raw.finish_reason.into(),
                token: (raw.token >= 0).then_some(raw.token),
                stop_index: usize::try_from(raw.stop_index).ok(),
            }),
            other => EventKind::Other(other),
        };
        Event { text: call::lent_text(raw.text, raw.text_len), n_tokens: raw.n_tokens, kind }
    }
}

unsafe fn notice(raw: &sys::quire_event) -> Notice {
    Notice { code: raw.code.into(), message: call::lent_text(raw.message, raw.message_len) }
}

unsafe fn top_logprobs(raw: &sys::quire_event) -> Vec<(i32, f32)> {
    if raw.top_logprobs.is_null() {
        return Vec::new();
    }
    let found = std::slice::from_raw_parts(raw.top_logprobs, raw.n_top_logprobs);
    found.iter().map(|one| (one.token, one.logprob)).collect()
}
