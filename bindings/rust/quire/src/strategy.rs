//! What strategy expressions mean; no model is needed.

use crate::{call, sys, Result};

/// A strategy expression, and what it must know of a model that is not at hand.
///
/// ```
/// use quire::StrategyOptions;
/// let canonical = StrategyOptions::new("dca", 4096).describe()?;
/// assert!(canonical.contains("chunk=3072"));
/// # Ok::<(), quire::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrategyOptions {
    /// A strategy expression; `None`: "full".
    pub strategy: Option<String>,
    /// Positions that the model was trained for, 1 to 2^40; there is no default.
    pub train_len: i64,
    /// Length of the text, for auto, beacon, dynamic_ntk, longrope; 0: unknown.
    pub expected_tokens: i64,
    /// Query heads, where heads differ; 0: 32; at most 65536.
    pub n_heads: i32,
}

impl StrategyOptions {
    /// An expression for a model that was trained for so many positions.
    pub fn new(strategy: impl Into<String>, train_len: i64) -> StrategyOptions {
        StrategyOptions { strategy: Some(strategy.into()), train_len, ..Default::default() }
    }

    /// The expression in canonical form, with every default written out.
    ///
    /// See [`sys::quire_strategy_describe`].
    pub fn describe(&self) -> Result<String> {
        let raw = self.raw();
        call::read_text(256, |buffer, capacity, needed, error| unsafe {
            sys::quire_strategy_describe(&raw, buffer, capacity, needed, error)
        })
    }

    /// What expressions may be made of, as JSON, for settings dialogs and completion (`quire_strategy_get_list` in
    /// `quire.h`). `strategy` must be `None`.
    ///
    /// See [`sys::quire_strategy_get_list`].
    pub fn list(&self) -> Result<String> {
        let raw = self.raw();
        call::read_text(0, |buffer, capacity, needed, error| unsafe {
            sys::quire_strategy_get_list(&raw, buffer, capacity, needed, error)
        })
    }

    pub(crate) fn raw(&self) -> sys::quire_strategy_options {
        let (strategy, strategy_len) = call::option(&self.strategy);
        sys::quire_strategy_options {
            strategy,
            strategy_len,
            train_len: self.train_len,
            expected_tokens: self.expected_tokens,
            n_heads: self.n_heads,
            ..call::init(sys::quire_strategy_options_init)
        }
    }
}
