//! LoRA adapters.

use std::path::Path;

use crate::handle::{opaque_debug, Handle};
use crate::{call, sys, Model, Result, Watch};

/// A LoRA adapter that was loaded beside a model's weights, for [`SessionOptions::adapters`](crate::SessionOptions::adapters).
/// A clone is the same adapter.
///
/// ```no_run
/// # fn run(model: quire::Model) -> quire::Result<()> {
/// use quire::{SessionOptions, Watch};
/// let adapter = model.load_adapter("path/to/lora", Watch::new())?;
/// let session = model.session(&SessionOptions { adapters: vec![(adapter, 1.0)], ..Default::default() })?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Adapter(Handle<sys::quire_adapter>);

opaque_debug!(Adapter);

/// What an adapter is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterInfo {
    /// The largest of its ranks; 0: it only replaces.
    pub rank: i32,
    /// Tensors in memory.
    pub n_tensors: i32,
    /// Numbers in them.
    pub n_parameters: i64,
    /// Bytes of memory, once for all sessions.
    pub bytes: i64,
    /// It has an embedding of its own.
    pub replaces_embedding: bool,
    /// It has an `lm_head` of its own.
    pub replaces_lm_head: bool,
    /// It has norms of its own.
    pub replaces_norms: bool,
    /// It changes what is rotated by RoPE.
    pub changes_queries_or_keys: bool,
}

impl Adapter {
    pub(crate) fn load(model: &Model, path: &Path, watch: Watch<'_>) -> Result<Adapter> {
        let (path, len) = call::path(path)?;
        watch.during(|watch| {
            let options = sys::quire_adapter_options {
                cancel: watch.cancel,
                progress: watch.progress,
                progress_user_data: watch.user_data,
                ..call::init(sys::quire_adapter_options_init)
            };
            call::make(|out, error| unsafe { sys::quire_adapter_load(model.0.raw(), path, len, &options, out, error) })
                .map(|made| Adapter(Handle::own(made)))
        })
    }

    pub(crate) fn raw(&self) -> *mut sys::quire_adapter {
        self.0.raw()
    }

    /// What the adapter is made of.
    ///
    /// See [`sys::quire_adapter_get_info`].
    pub fn info(&self) -> Result<AdapterInfo> {
        let raw: sys::quire_adapter_info =
            call::fill(|info, error| unsafe { sys::quire_adapter_get_info(self.raw(), info, error) })?;
        let has = |bit| raw.flags & bit != 0;
        Ok(AdapterInfo {
            rank: raw.rank,
            n_tensors: raw.n_tensors,
            n_parameters: raw.n_parameters,
            bytes: raw.bytes,
            replaces_embedding: has(sys::QUIRE_ADAPTER_REPLACES_EMBEDDING),
            replaces_lm_head: has(sys::QUIRE_ADAPTER_REPLACES_LM_HEAD),
            replaces_norms: has(sys::QUIRE_ADAPTER_REPLACES_NORMS),
            changes_queries_or_keys: has(sys::QUIRE_ADAPTER_CHANGES_QUERIES_OR_KEYS),
        })
    }

    /// Metadata by key: "identity" or "base_model".
    ///
    /// See [`sys::quire_adapter_get_metadata`].
    pub fn metadata(&self, key: &str) -> Result<String> {
        let (key, key_len) = call::text(key);
        call::read_text(64, |buffer, capacity, needed, error| unsafe {
            sys::quire_adapter_get_metadata(self.raw(), key, key_len, buffer, capacity, needed, error)
        })
    }
}
