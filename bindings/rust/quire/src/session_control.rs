//! What any thread may do with a session.

use std::sync::{Arc, Weak};

use crate::handle::{opaque_debug, Handle};
use crate::record::record;
use crate::{call, sys, Error, Result, Tier};

/// What any thread may do with a session while another one uses it: look at it, and close it.
/// [`Session::control`](crate::Session::control) makes one. It does not keep the session: once that was dropped, all calls
/// return [`Status::Closed`](crate::Status::Closed).
///
/// ```no_run
/// # fn run(session: quire::Session) -> quire::Result<()> {
/// let control = session.control();
/// std::thread::spawn(move || println!("{} tokens so far", control.token_counts().unwrap().n_tokens));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SessionControl(pub(crate) Weak<Handle<sys::quire_session>>);

opaque_debug!(SessionControl);

/// How much of its text a session has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCounts {
    /// Processed prompt and delivered tokens.
    pub n_tokens: i64,
    /// Fed tokens that wait.
    pub n_pending: i64,
}

record! {
    /// What a session holds and did.
    pub struct SessionStats of quire_session_stats {
        /// Processed prompt and delivered tokens.
        n_tokens: i64,
        /// Fed tokens that wait.
        n_pending: i64,
        /// Tokens computed as prompt since creation.
        n_prefilled: i64,
        /// Tokens delivered since creation.
        n_generated: i64,
        /// Time inside prefill steps.
        prefill_ns: i64,
        /// Time inside decode steps.
        decode_ns: i64,
        /// Chunk records now held, over all layers, whatever tier they lie in.
        kv_chunks: i64,
        /// Records dropped since creation, which no token to come sees.
        kv_chunks_dropped: i64,
        /// Activations and RoPE tables, which sessions share.
        scratch_bytes: i64,
        /// Tokens the strategy can serve; `i64::MAX`: no limit.
        reach: i64,
        /// Tokens of prompts that were taken over from other sessions since creation.
        n_reused: i64,
        /// And from elsewhere in a text before an edit.
        n_moved: i64,
        /// Bytes of the chunks in `kv_type`.
        kv_full_bytes: i64,
        /// Bytes of the chunks in `kv_old_type`.
        kv_old_bytes: i64,
        /// Tokens drafted by prompt lookup since creation.
        n_drafted: i64,
        /// Those of them that the model generated as well.
        n_accepted: i64,
    }
}

record! {
    /// What one tier of a session's KV cache holds, and what went through it since creation (`quire_tier_stats` in `quire.h`
    /// says what each tier counts).
    pub struct TierStats of quire_tier_stats {
        /// Of the session; 0: no limit, or no such tier.
        budget_bytes: i64,
        /// Held now.
        bytes: i64,
        /// The most that was held.
        bytes_peak: i64,
        /// Chunk records in it.
        n_chunks: i64,
        /// Records that were asked for and there, or read from it.
        n_hits: i64,
        /// Records that were asked for and not there.
        n_misses: i64,
        /// Records that left it.
        n_evicted: i64,
        /// Bytes read from it.
        bytes_read: i64,
        /// Bytes written to it.
        bytes_written: i64,
        /// Time in which computing waited for records.
        stall_ns: i64,
    }
}

impl SessionControl {
    pub(crate) fn handle(&self) -> Result<Arc<Handle<sys::quire_session>>> {
        self.0.upgrade().ok_or_else(|| Error::closed("session"))
    }

    /// How much of its text the session has read.
    ///
    /// See [`sys::quire_session_get_token_counts`].
    pub fn token_counts(&self) -> Result<TokenCounts> {
        let session = self.handle()?;
        let (mut n_tokens, mut n_pending) = (0, 0);
        call::call(|error| unsafe {
            sys::quire_session_get_token_counts(session.raw(), &mut n_tokens, &mut n_pending, error)
        })?;
        Ok(TokenCounts { n_tokens, n_pending })
    }

    /// What the session holds and did, at a token boundary.
    ///
    /// See [`sys::quire_session_get_stats`].
    pub fn stats(&self) -> Result<SessionStats> {
        let session = self.handle()?;
        let raw = call::fill(|stats, error| unsafe { sys::quire_session_get_stats(session.raw(), stats, error) })?;
        Ok(SessionStats::from(&raw))
    }

    /// What one tier holds; zeros for a tier that the session does not have.
    ///
    /// See [`sys::quire_session_get_tier_stats`].
    pub fn tier_stats(&self, tier: Tier) -> Result<TierStats> {
        let session = self.handle()?;
        let raw = call::fill(|stats, error| unsafe {
            sys::quire_session_get_tier_stats(session.raw(), tier.raw(), stats, error)
        })?;
        Ok(TierStats::from(&raw))
    }

    /// The strategy in canonical form; for `auto`, the chosen one.
    ///
    /// See [`sys::quire_session_get_strategy`].
    pub fn strategy(&self) -> Result<String> {
        let session = self.handle()?;
        call::read_text(256, |buffer, capacity, needed, error| unsafe {
            sys::quire_session_get_strategy(session.raw(), buffer, capacity, needed, error)
        })
    }

    /// 32 hexadecimal digits that name all that keys and values depend on beside the tokens.
    ///
    /// See [`sys::quire_session_get_fingerprint`].
    pub fn fingerprint(&self) -> Result<String> {
        let session = self.handle()?;
        call::read_text(64, |buffer, capacity, needed, error| unsafe {
            sys::quire_session_get_fingerprint(session.raw(), buffer, capacity, needed, error)
        })
    }

    /// Cancels an open stream, waits until no thread works on the session, and frees its memory. Calls on it and on its
    /// stream return [`Status::Closed`](crate::Status::Closed) as soon as a close has begun. Not from a closure that Quire
    /// calls.
    ///
    /// See [`sys::quire_session_close`].
    pub fn close(&self) -> Result<()> {
        let session = self.handle()?;
        call::call(|error| unsafe { sys::quire_session_close(session.raw(), error) })?;
        Ok(())
    }
}
