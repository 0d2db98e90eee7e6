//! What a session is made of.

use std::path::PathBuf;

use crate::text::flag;
use crate::{call, sys, Adapter, ElementType, Overflow, Result};

/// For [`SessionOptions::old_after`]: no distance, all chunks before the token's own are old.
pub const OLD_AT_ONCE: i64 = sys::QUIRE_OLD_AT_ONCE as i64;

/// What a session is made of; zero, `None` and empty are the defaults.
///
/// ```no_run
/// use quire::{ElementType, SessionOptions};
///
/// let options = SessionOptions {
///     kv_type: Some(ElementType::Bf16),
///     kv_host_budget_bytes: 500_000_000,
///     kv_file_directory: Some("/var/tmp".into()),
///     ..SessionOptions::new("dca")
/// };
/// ```
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// A strategy expression, such as "dca(chunk=3072) + yarn(factor=2)"; `None`: "full", or that of a saved session.
    pub strategy: Option<String>,
    /// Keys and values are stored so; `None`: F16, or that of a saved session.
    pub kv_type: Option<ElementType>,
    /// What happens beyond the strategy's reach.
    pub overflow: Option<Overflow>,
    /// Length that the session will reach, for auto, beacon, dynamic_ntk, longrope; 0: unknown.
    pub expected_tokens: i64,
    /// Tokens of a forward pass while fed text is processed; 0: 256, or 1024 on a GPU; at most 65536.
    pub prefill_block: i32,
    /// Most bytes of the KV cache on the device; 0: what it has, but for some working memory.
    pub kv_device_budget_bytes: i64,
    /// Most bytes of the KV cache in the machine's memory; 0: no limit.
    pub kv_host_budget_bytes: i64,
    /// Most bytes of the KV cache in compressed memory; 0: no such tier.
    pub kv_compressed_budget_bytes: i64,
    /// Most bytes of the KV cache in a file; 0: no limit but the disk's.
    pub kv_file_budget_bytes: i64,
    /// Where the file tier has its unnamed temporary file; `None`: no file tier.
    pub kv_file_directory: Option<PathBuf>,
    /// Adapters, each with its scale (1 as it was trained).
    pub adapters: Vec<(Adapter, f64)>,
    /// Old text is read in this type: [`ElementType::Int8`] or [`ElementType::Int4`]; `None`: as all other.
    pub kv_old_type: Option<ElementType>,
    /// Tokens from which on text is old; 0: 4096; [`OLD_AT_ONCE`].
    pub old_after: i64,
    /// The session takes nothing over from others, and gives them nothing.
    pub no_prefix_reuse: bool,
    /// Layers with a window of their own keep what lies behind it, so that the text can be cut and edited anywhere.
    pub keep_behind_windows: bool,
}

impl SessionOptions {
    /// The defaults with this strategy.
    pub fn new(strategy: impl Into<String>) -> SessionOptions {
        SessionOptions { strategy: Some(strategy.into()), ..Default::default() }
    }

    /// Calls the function with the options as C has them.
    pub(crate) fn with_raw<R>(&self, function: impl FnOnce(&sys::quire_session_options) -> R) -> Result<R> {
        let adapter =
            |(adapter, scale): &(Adapter, f64)| sys::quire_session_adapter { adapter: adapter.raw(), scale: *scale };
        let adapters: Vec<_> = self.adapters.iter().map(adapter).collect();
        let mut raw: sys::quire_session_options = call::init(sys::quire_session_options_init);
        raw.flags = flag(self.no_prefix_reuse, sys::QUIRE_SESSION_NO_PREFIX_REUSE)
            | flag(self.keep_behind_windows, sys::QUIRE_SESSION_KEEP_BEHIND_WINDOWS);
        (raw.strategy, raw.strategy_len) = call::option(&self.strategy);
        raw.kv_type = ElementType::or_default(self.kv_type);
        raw.overflow = self.overflow.map_or(sys::QUIRE_OVERFLOW_DEFAULT, Overflow::raw);
        raw.expected_tokens = self.expected_tokens;
        raw.prefill_block = self.prefill_block;
        raw.kv_device_budget_bytes = self.kv_device_budget_bytes;
        raw.kv_host_budget_bytes = self.kv_host_budget_bytes;
        raw.kv_compressed_budget_bytes = self.kv_compressed_budget_bytes;
        raw.kv_file_budget_bytes = self.kv_file_budget_bytes;
        if let Some(directory) = &self.kv_file_directory {
            (raw.kv_file_directory, raw.kv_file_directory_len) = call::path(directory)?;
        }
        (raw.adapters, raw.n_adapters) = call::slice(&adapters);
        raw.kv_old_type = ElementType::or_default(self.kv_old_type);
        raw.old_after = self.old_after;
        Ok(function(&raw))
    }
}
