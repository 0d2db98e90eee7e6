//! What a stream does.

use std::ptr::NonNull;
use std::time::Duration;

use crate::text::{flag, raw_texts};
use crate::{call, sys, Sampler};

/// What a stream does; zero, `None`, `false` and empty are the defaults, which are greedy.
///
/// ```no_run
/// use quire::StreamOptions;
/// let options = StreamOptions { temperature: 0.7, top_p: 0.95, seed: 1, ..StreamOptions::new(200) };
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamOptions {
    /// Generate at most so many; 0: process what was fed and generate nothing.
    pub max_tokens: i64,
    /// 0: the most probable token.
    pub temperature: f32,
    /// Keep the so many most probable; 0: all.
    pub top_k: i32,
    /// Keep the smallest set with at least this probability; 0: all.
    pub top_p: f32,
    /// Drop tokens less probable than so many times the most probable; 0: none.
    pub min_p: f32,
    /// The n-th token of the session draws from (seed, n).
    pub seed: u64,
    /// Generation ends after one of these, which is not delivered; at most 4096.
    pub stop_ids: Vec<i32>,
    /// Generation ends before one of these appears in the text; at most 64, each 1 to 1024 bytes.
    pub stop_strings: Vec<String>,
    /// A chain in any order instead of `temperature`, `top_k`, `top_p` and `min_p`, which must be 0 then; at most 64.
    pub samplers: Vec<Sampler>,
    /// Added to the logits of these ids; negative infinity: not this token. At most 4096.
    pub logit_bias: Vec<(i32, f32)>,
    /// Texts that repetitions do not reach across ([`Sampler::Dry`]); `None`: newline, colon, double quote, asterisk.
    pub dry_breakers: Option<Vec<String>>,
    /// Before so many were generated, stop ids and end-of-text tokens are not chosen.
    pub min_tokens: i64,
    /// So long after it was opened the stream ends, in whole milliseconds, at least one.
    pub deadline: Option<Duration>,
    /// So many of the most probable tokens come with each token; at most 64.
    pub n_top_logprobs: i32,
    /// Generate at most so many tokens ahead of their delivery; 0: 8, or 1 with `constrain`; at most 4096.
    pub max_undelivered: i32,
    /// With `cite`: tokens before this one may be cited; 0: all but the last 64 before the answer.
    pub cite_end: i64,
    /// Prompt lookup: at most so many tokens are drafted from the session's text; 0: none; at most 31.
    pub draft_tokens: i32,
    /// Only where so many of the last tokens stood before; 0: 2; at most 64.
    pub draft_match: i32,
    /// Keep log p of each token that is processed ([`Session::scores`](crate::Session::scores)).
    pub score: bool,
    /// Keep the logits of all positions ([`Session::logits`](crate::Session::logits)).
    pub keep_logits: bool,
    /// End-of-text tokens do not end the stream.
    pub ignore_eos: bool,
    /// Each token waits for its [`experimental::allow`](crate::experimental::allow).
    pub constrain: bool,
    /// Keep the last hidden states of all positions ([`Session::hidden_states`](crate::Session::hidden_states)).
    pub keep_hidden: bool,
    /// Keep where the tokens of the answer looked ([`Session::passages`](crate::Session::passages)).
    pub cite: bool,
}

impl StreamOptions {
    /// The defaults, generating at most so many tokens.
    pub fn new(max_tokens: i64) -> StreamOptions {
        StreamOptions { max_tokens, ..Default::default() }
    }

    fn flags(&self) -> u32 {
        flag(self.score, sys::QUIRE_STREAM_SCORE)
            | flag(self.keep_logits, sys::QUIRE_STREAM_KEEP_LOGITS)
            | flag(self.ignore_eos, sys::QUIRE_STREAM_IGNORE_EOS)
            | flag(self.constrain, sys::QUIRE_STREAM_CONSTRAIN)
            | flag(self.keep_hidden, sys::QUIRE_STREAM_KEEP_HIDDEN)
            | flag(self.cite, sys::QUIRE_STREAM_CITE)
    }

    /// Calls the function with the options as C has them.
    pub(crate) fn with_raw<R>(&self, function: impl FnOnce(&sys::quire_stream_options) -> R) -> R {
        let stops = raw_texts(&self.stop_strings);
        let chain: Vec<_> = self.samplers.iter().map(Sampler::raw).collect();
        let biases: Vec<_> =
            self.logit_bias.iter().map(|&(token, bias)| sys::quire_logit_bias { token, bias }).collect();
        let breakers = self.dry_breakers.as_deref().map(raw_texts);
        let mut raw: sys::quire_stream_options = call::init(sys::quire_stream_options_init);
        raw.flags = self.flags();
        raw.max_tokens = self.max_tokens;
        raw.temperature = self.temperature;
        raw.top_k = self.top_k;
        raw.top_p = self.top_p;
        raw.min_p = self.min_p;
        raw.seed = self.seed;
        (raw.stop_ids, raw.n_stop_ids) = call::slice(&self.stop_ids);
        (raw.stop_strings, raw.n_stop_strings) = call::slice(&stops);
        (raw.samplers, raw.n_samplers) = call::slice(&chain);
        (raw.logit_bias, raw.n_logit_bias) = call::slice(&biases);
        if let Some(breakers) = &breakers {
            // Not NULL with none means that no text is a breaker.
            raw.dry_breakers = if breakers.is_empty() { NonNull::dangling().as_ptr() } else { breakers.as_ptr() };
            raw.n_dry_breakers = breakers.len();
        }
        raw.min_tokens = self.min_tokens;
        raw.deadline_ms = self.deadline.map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1));
        raw.n_top_logprobs = self.n_top_logprobs;
        raw.max_undelivered = self.max_undelivered;
        raw.cite_end = self.cite_end;
        raw.draft_tokens = self.draft_tokens;
        raw.draft_match = self.draft_match;
        function(&raw)
    }
}
