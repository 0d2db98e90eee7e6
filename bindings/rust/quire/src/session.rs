//! Sessions: a model, a strategy, and the text read so far.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::handle::{opaque_debug, Handle};
use crate::{call, sys, Error, Matrix, Result, SessionControl, SessionStats, Stream, StreamOptions};
use crate::{TextOptions, Tier, TierStats, TokenCounts};

/// A model, a strategy, and the text read so far with its KV cache. [`Model::session`](crate::Model::session) makes one.
///
/// While a [`Stream`] is open on it, all but what [`SessionControl`] has returns [`Status::Busy`](crate::Status::Busy).
pub struct Session {
    handle: Arc<Handle<sys::quire_session>>,
    /// One thread at a time may call what is not any thread's: the type is not `Sync`.
    _not_sync: PhantomData<Cell<()>>,
}

opaque_debug!(Session);

impl Session {
    pub(crate) fn own(made: *mut sys::quire_session) -> Session {
        Session { handle: Arc::new(Handle::own(made)), _not_sync: PhantomData }
    }

    pub(crate) fn raw(&self) -> *mut sys::quire_session {
        self.handle.raw()
    }

    /// What any thread may do with the session while this one uses it.
    pub fn control(&self) -> SessionControl {
        SessionControl(Arc::downgrade(&self.handle))
    }

    /// Queues one segment of text; nothing is computed until a stream is opened. Tokens never span two segments.
    pub fn feed(&mut self, text: &str) -> Result<()> {
        self.feed_with(text, TextOptions::default())
    }

    /// The same, tokenized as the options say.
    ///
    /// See [`sys::quire_session_feed_text`].
    pub fn feed_with(&mut self, text: &str, options: TextOptions) -> Result<()> {
        let (data, len) = call::text(text);
        call::call(|error| unsafe { sys::quire_session_feed_text(self.raw(), data, len, options.flags(), error) })?;
        Ok(())
    }

    /// Queues token ids as they are.
    ///
    /// See [`sys::quire_session_feed_tokens`].
    pub fn feed_tokens(&mut self, ids: &[i32]) -> Result<()> {
        let (data, len) = call::slice(ids);
        call::call(|error| unsafe { sys::quire_session_feed_tokens(self.raw(), data, len, error) })?;
        Ok(())
    }

    /// The same at positions of their own, strictly increasing, one for each id.
    ///
    /// See [`sys::quire_session_feed_positions`].
    pub fn feed_positions(&mut self, ids: &[i32], positions: &[i64]) -> Result<()> {
        if ids.len() != positions.len() {
            return Err(Error::invalid(format!("{} positions for {} ids", positions.len(), ids.len())));
        }
        let ((data, len), (places, _)) = (call::slice(ids), call::slice(positions));
        call::call(|error| unsafe { sys::quire_session_feed_positions(self.raw(), data, places, len, error) })?;
        Ok(())
    }

    /// Forgets what was fed and not yet processed.
    ///
    /// See [`sys::quire_session_discard_pending`].
    pub fn discard_pending(&mut self) -> Result<()> {
        call::call(|error| unsafe { sys::quire_session_discard_pending(self.raw(), error) })?;
        Ok(())
    }

    /// Forgets everything; the session is as new.
    ///
    /// See [`sys::quire_session_reset`].
    pub fn reset(&mut self) -> Result<()> {
        call::call(|error| unsafe { sys::quire_session_reset(self.raw(), error) })?;
        Ok(())
    }

    /// Forgets the tokens from the `n_tokens`-th on, pending ones too.
    ///
    /// See [`sys::quire_session_truncate`].
    pub fn truncate(&mut self, n_tokens: i64) -> Result<()> {
        call::call(|error| unsafe { sys::quire_session_truncate(self.raw(), n_tokens, error) })?;
        Ok(())
    }

    /// Another session that stands where this one does, with the same options, and shares with it what both hold: the way
    /// to ask a document several questions.
    ///
    /// See [`sys::quire_session_fork`].
    pub fn fork(&self) -> Result<Session> {
        let made = call::make(|out, error| unsafe { sys::quire_session_fork(self.raw(), out, error) })?;
        Ok(Session::own(made))
    }

    /// Starts to process what was fed and then to generate. Returns at once; the runtime's threads compute.
    ///
    /// See [`sys::quire_stream_open`].
    pub fn stream(&mut self, options: &StreamOptions) -> Result<Stream> {
        let open = |raw: &sys::quire_stream_options| {
            call::make(|out, error| unsafe { sys::quire_stream_open(self.raw(), raw, out, error) })
        };
        Ok(Stream::own(options.with_raw(open)?))
    }

    /// The same, waiting for all of it: the text of the answer.
    pub fn generate(&mut self, options: &StreamOptions) -> Result<String> {
        self.stream(options)?.map(|event| event.map(|event| event.text)).collect()
    }

    /// The ids of all tokens of the text, pending ones last.
    ///
    /// See [`sys::quire_session_get_tokens`].
    pub fn tokens(&self) -> Result<Vec<i32>> {
        call::read(0, |ids, capacity, needed, error| unsafe {
            sys::quire_session_get_tokens(self.raw(), ids, capacity, needed, error)
        })
    }

    /// Raw logits after so many tokens from `first_token` on (-1: the last processed one), a row of `vocab_size` each. Those
    /// of others than the last one need a stream with [`StreamOptions::keep_logits`].
    ///
    /// See [`sys::quire_session_get_logits`].
    pub fn logits(&self, first_token: i64, n_rows: i64) -> Result<Matrix<f32>> {
        let values = call::read(0, |logits, capacity, needed, error| unsafe {
            sys::quire_session_get_logits(self.raw(), first_token, n_rows, logits, capacity, needed, error)
        })?;
        Ok(Matrix::new(n_rows as usize, values))
    }

    /// log p of `n` tokens from `first_token` on, each given all before it; needs a stream with [`StreamOptions::score`]. NaN
    /// where the logits before a token are not known.
    ///
    /// See [`sys::quire_session_get_scores`].
    pub fn scores(&self, first_token: i64, n: i64) -> Result<Vec<f32>> {
        call::read(0, |scores, capacity, needed, error| unsafe {
            sys::quire_session_get_scores(self.raw(), first_token, n, scores, capacity, needed, error)
        })
    }

    /// Last hidden states of so many tokens from `first_token` on, a row of `hidden_size` each; needs a stream with
    /// [`StreamOptions::keep_hidden`].
    ///
    /// See [`sys::quire_session_get_hidden_states`].
    pub fn hidden_states(&self, first_token: i64, n_rows: i64) -> Result<Matrix<f32>> {
        let values = call::read(0, |states, capacity, needed, error| unsafe {
            sys::quire_session_get_hidden_states(self.raw(), first_token, n_rows, states, capacity, needed, error)
        })?;
        Ok(Matrix::new(n_rows as usize, values))
    }

    /// How much of its text the session has read.
    pub fn token_counts(&self) -> Result<TokenCounts> {
        self.control().token_counts()
    }

    /// What the session holds and did.
    pub fn stats(&self) -> Result<SessionStats> {
        self.control().stats()
    }

    /// What one tier of the KV cache holds.
    pub fn tier_stats(&self, tier: Tier) -> Result<TierStats> {
        self.control().tier_stats(tier)
    }

    /// The strategy in canonical form; for `auto`, the chosen one.
    pub fn strategy(&self) -> Result<String> {
        self.control().strategy()
    }

    /// 32 hexadecimal digits that name all that keys and values depend on beside the tokens.
    pub fn fingerprint(&self) -> Result<String> {
        self.control().fingerprint()
    }

    /// Ends an open stream, waits, and frees the KV cache ([`SessionControl::close`]).
    pub fn close(&self) -> Result<()> {
        self.control().close()
    }
}
