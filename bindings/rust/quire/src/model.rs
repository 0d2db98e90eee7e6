//! Models: immutable weights, shared by any number of sessions.

use std::path::Path;

use crate::handle::{opaque_debug, Handle};
use crate::record::record;
use crate::{call, sys, Adapter, ElementType, Result, Session, SessionOptions, Tokenizer, Watch};

/// Immutable weights, shared by any number of sessions. [`Runtime::load_model`](crate::Runtime::load_model) makes one; a
/// clone is the same model.
#[derive(Clone)]
pub struct Model(pub(crate) Handle<sys::quire_model>);

opaque_debug!(Model);

record! {
    /// What a model is made of.
    pub struct ModelInfo of quire_model_info {
        /// Layers.
        n_layers: i32,
        /// Query heads of a layer.
        n_query_heads: i32,
        /// KV heads of a layer.
        n_kv_heads: i32,
        /// Numbers of a head.
        head_dim: i32,
        /// Numbers of a hidden state.
        hidden_size: i32,
        /// Numbers between up and down projection.
        intermediate_size: i32,
        /// Number of token ids.
        vocab_size: i32,
        /// Of most elements of the projection matrices in memory.
        weight_type: ElementType,
        /// Positions that the weights were trained for.
        train_len: i64,
        /// Weights, tied embeddings counted once.
        n_parameters: i64,
        /// Bytes of weights in memory and mapped.
        weight_bytes: i64,
        /// The RoPE base.
        rope_theta: f64,
        /// A token sees only so many tokens back, itself included; 0: all, in some layers at least.
        sliding_window: i64,
    }
}

record! {
    /// How long a session would take.
    pub struct RateEstimate of quire_rate_estimate {
        /// Of reading all tokens, from an empty session.
        prefill_ns: i64,
        /// Of a generated token behind them, if what it chooses is in memory.
        decode_token_ns: i64,
        /// The same if none of what it chooses is.
        decode_token_cold_ns: i64,
        /// Up to this length costs were measured; beyond, extrapolated.
        measured_tokens: i64,
        /// Of records in the last tier, from the disk; 0: no tier below memory.
        tier_read_bytes_per_second: i64,
        /// How long the call measured.
        calibration_ns: i64,
    }
}

impl Model {
    /// What the model is made of.
    ///
    /// See [`sys::quire_model_get_info`].
    pub fn info(&self) -> Result<ModelInfo> {
        let raw = call::fill(|info, error| unsafe { sys::quire_model_get_info(self.0.raw(), info, error) })?;
        Ok(ModelInfo::from(&raw))
    }

    /// Metadata by key: "architecture", "device", "identity", "config.json" and others (`quire.h` lists them).
    ///
    /// See [`sys::quire_model_get_metadata`].
    pub fn metadata(&self, key: &str) -> Result<String> {
        let (key, key_len) = call::text(key);
        call::read_text(256, |buffer, capacity, needed, error| unsafe {
            sys::quire_model_get_metadata(self.0.raw(), key, key_len, buffer, capacity, needed, error)
        })
    }

    /// The model's tokenizer.
    ///
    /// See [`sys::quire_model_get_tokenizer`].
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let made = call::make(|out, error| unsafe { sys::quire_model_get_tokenizer(self.0.raw(), out, error) })?;
        Ok(Tokenizer(Handle::own(made)))
    }

    /// Loads a PEFT LoRA directory for sessions of this model.
    pub fn load_adapter(&self, path: impl AsRef<Path>, watch: Watch<'_>) -> Result<Adapter> {
        Adapter::load(self, path.as_ref(), watch)
    }

    /// An empty session.
    ///
    /// See [`sys::quire_session_create`].
    pub fn session(&self, options: &SessionOptions) -> Result<Session> {
        options.with_raw(|raw| {
            call::make(|out, error| unsafe { sys::quire_session_create(self.0.raw(), raw, out, error) })
                .map(Session::own)
        })?
    }

    /// Whether such a session would work; makes nothing.
    ///
    /// See [`sys::quire_model_check_session`].
    pub fn check_session(&self, options: &SessionOptions) -> Result<()> {
        options.with_raw(|raw| {
            call::call(|error| unsafe { sys::quire_model_check_session(self.0.raw(), raw, error) }).map(drop)
        })?
    }

    /// The canonical strategy that such a session would have.
    ///
    /// See [`sys::quire_model_describe_strategy`].
    pub fn describe_strategy(&self, options: &SessionOptions) -> Result<String> {
        options.with_raw(|raw| {
            call::read_text(256, |buffer, capacity, needed, error| unsafe {
                sys::quire_model_describe_strategy(self.0.raw(), raw, buffer, capacity, needed, error)
            })
        })?
    }

    /// How long such a session would take to read `n_tokens` tokens and to answer, by a short measurement that this call
    /// waits for.
    ///
    /// See [`sys::quire_model_estimate_rates`].
    pub fn estimate_rates(&self, options: &SessionOptions, n_tokens: i64) -> Result<RateEstimate> {
        let raw = options.with_raw(|raw| {
            call::fill(|estimate, error| unsafe {
                sys::quire_model_estimate_rates(self.0.raw(), raw, n_tokens, estimate, error)
            })
        })??;
        Ok(RateEstimate::from(&raw))
    }

    /// A session that goes on where one stood that [`Session::save`] wrote. What the options leave out is that of the saved
    /// session. The file must stay as it is while the session lives; it may be removed.
    ///
    /// See [`sys::quire_session_load`].
    pub fn load_session(&self, path: impl AsRef<Path>, options: &SessionOptions) -> Result<Session> {
        let (path, len) = call::path(path.as_ref())?;
        options.with_raw(|raw| {
            call::make(|out, error| unsafe { sys::quire_session_load(self.0.raw(), path, len, raw, out, error) })
                .map(Session::own)
        })?
    }
}

/// What the files of a model hold, of either format, as JSON (`quire_model_describe_files` in `quire.h`).
///
/// See [`sys::quire_model_describe_files`].
pub fn describe_files(path: impl AsRef<Path>) -> Result<String> {
    let (path, len) = call::path(path.as_ref())?;
    call::read_text(0, |buffer, capacity, needed, error| unsafe {
        sys::quire_model_describe_files(path, len, buffer, capacity, needed, error)
    })
}
