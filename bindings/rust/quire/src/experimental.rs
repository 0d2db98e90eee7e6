//! For tools, benchmarks and tests: what `quire.h` has in its section *Experimental*. It may change or go in any version.

use crate::names::c_enum;
use crate::record::record;
use crate::{call, sys, Matrix, Result, Session, StrategyOptions, Stream};

c_enum! {
    /// What the rows or columns of a matrix of positions are.
    pub enum KvKind {
        /// Tokens.
        Text = sys::QUIRE_KV_TEXT,
        /// Condensed entries (beacon), counted from 0 as they are made.
        Condensed = sys::QUIRE_KV_CONDENSED,
    }
}

/// A part of a strategy's relative-position matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionView {
    /// Which query head.
    pub head: i32,
    /// What the rows are.
    pub queries: KvKind,
    /// What the columns are.
    pub keys: KvKind,
    /// The first row.
    pub first_query: i64,
    /// How many rows.
    pub n_queries: i64,
    /// How many columns, from the first key on.
    pub n_keys: i64,
}

impl PositionView {
    /// The first tokens as queries and keys, of the first head.
    pub fn new(n_tokens: i64) -> PositionView {
        let (queries, keys) = (KvKind::Text, KvKind::Text);
        PositionView { head: 0, queries, keys, first_query: 0, n_queries: n_tokens, n_keys: n_tokens }
    }
}

/// The distance that the model sees between each query (a row) and each key, NaN where the key is not visible.
///
/// See [`sys::quire_strategy_get_positions`].
///
/// ```
/// use quire::{experimental::{positions, PositionView}, StrategyOptions};
/// let matrix = positions(&StrategyOptions::new("dca(chunk=6, cap=9)", 10), &PositionView::new(12))?;
/// assert_eq!(matrix.row(11), [9., 8., 7., 6., 5., 4., 5., 4., 3., 2., 1., 0.]);
/// # Ok::<(), quire::Error>(())
/// ```
pub fn positions(strategy: &StrategyOptions, view: &PositionView) -> Result<Matrix<f64>> {
    let strategy = strategy.raw();
    let raw = sys::quire_position_view {
        head: view.head,
        query_kind: view.queries.raw(),
        key_kind: view.keys.raw(),
        first_query: view.first_query,
        n_queries: view.n_queries,
        n_keys: view.n_keys,
        ..call::init(sys::quire_position_view_init)
    };
    let values = call::read(0, |matrix, capacity, needed, error| unsafe {
        sys::quire_strategy_get_positions(&strategy, &raw, matrix, capacity, needed, error)
    })?;
    Ok(Matrix::new(view.n_queries as usize, values))
}

/// For benchmarks: an empty session becomes one of so many random tokens without computing them.
///
/// See [`sys::quire_session_fill_random`].
pub fn fill_random(session: &mut Session, n_tokens: i64, seed: u64) -> Result<()> {
    call::call(|error| unsafe { sys::quire_session_fill_random(session.raw(), n_tokens, seed, error) })?;
    Ok(())
}

record! {
    /// What tests of cancelling look at.
    pub struct SessionProbes of quire_session_probes {
        /// Tasks started after the last cancel was seen by the caller.
        tasks_after_cancel: i64,
        /// From the last cancel to the moment the session stood still.
        cancel_latency_ns: i64,
    }
}

/// What tests of cancelling look at.
///
/// See [`sys::quire_session_get_probes`].
pub fn probes(session: &Session) -> Result<SessionProbes> {
    let raw = call::fill(|probes, error| unsafe { sys::quire_session_get_probes(session.raw(), probes, error) })?;
    Ok(SessionProbes::from(&raw))
}

/// A set of token ids of one vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    vocab_size: i32,
    words: Vec<u32>,
}

impl TokenMask {
    /// An empty set.
    pub fn new(vocab_size: i32) -> TokenMask {
        TokenMask { vocab_size, words: vec![0; (vocab_size.max(0) as usize + 31) / 32] }
    }

    /// Adds an id. Panics if it is outside the vocabulary.
    pub fn insert(&mut self, id: i32) {
        assert!((0..self.vocab_size).contains(&id), "token {id} of {}", self.vocab_size);
        self.words[id as usize / 32] |= 1 << (id % 32);
    }
}

/// With [`StreamOptions::constrain`](crate::StreamOptions::constrain) says which tokens may come next (`None`: any): once before
/// the first token, and once after each that was taken.
///
/// See [`sys::quire_stream_allow`].
///
/// ```no_run
/// # fn run(mut stream: quire::Stream, vocab_size: i32) -> quire::Result<()> {
/// use quire::experimental::{allow, TokenMask};
/// let mut digits = TokenMask::new(vocab_size);
/// (48..58).for_each(|id| digits.insert(id));
/// allow(&mut stream, Some(&digits))?;
/// # Ok(()) }
/// ```
pub fn allow(stream: &mut Stream, allowed: Option<&TokenMask>) -> Result<()> {
    let (words, len) = allowed.map_or((std::ptr::null(), 0), |mask| call::slice(&mask.words));
    call::call(|error| unsafe { sys::quire_stream_allow(stream.raw(), words, len, error) })?;
    Ok(())
}
