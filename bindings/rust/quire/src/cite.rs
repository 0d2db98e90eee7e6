//! Labels of what was fed, and where an answer looked.

use std::ops::Range;

use crate::record::record;
use crate::{call, sys, Result, Session, TextOptions};

/// A name for a part of a fed text, such as a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// In bytes of the text of that call.
    pub bytes: Range<i64>,
    /// Any number; several labels may share one, and labels may overlap.
    pub id: i64,
}

pub(crate) fn raw_labels(labels: &[Label]) -> Vec<sys::quire_label> {
    let raw = |label: &Label| sys::quire_label { begin: label.bytes.start, end: label.bytes.end, id: label.id };
    labels.iter().map(raw).collect()
}

record! {
    /// How much of an answer's attention, or of its choices of chunks, fell on a label.
    pub struct LabelShare of quire_label_attention {
        /// Of the label.
        id: i64,
        /// The first token that begins in the labelled part.
        first_token: i64,
        /// Tokens that begin in it.
        n_tokens: i64,
        /// Between 0 and 1.
        share: f64,
    }
}

/// Up to 64 consecutive tokens of one feed that an answer looked at.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Passage {
    /// Counted from the beginning of the session's text.
    pub first_token: i64,
    /// How many tokens it has.
    pub n_tokens: i64,
    /// Which call fed it, from 0 on.
    pub feed: i64,
    /// Its bytes in the text of that call.
    pub bytes: Range<i64>,
    /// The label that has most of its tokens: its index in the order fed, and its id.
    pub label: Option<(i64, i64)>,
    /// Between 0 and 1.
    pub share: f64,
}

impl From<&sys::quire_passage> for Passage {
    fn from(raw: &sys::quire_passage) -> Passage {
        Passage {
            first_token: raw.first_token,
            n_tokens: raw.n_tokens,
            feed: raw.feed,
            bytes: raw.begin..raw.end,
            label: (raw.label >= 0).then_some((raw.label, raw.label_id)),
            share: raw.share,
        }
    }
}

/// First token and number of tokens; `None`: all of the answer.
fn span(tokens: Option<Range<i64>>) -> (i64, i64) {
    tokens.map_or((-1, 0), |tokens| (tokens.start, tokens.end.saturating_sub(tokens.start)))
}

impl Session {
    /// Queues one segment of text with names for parts of it.
    ///
    /// See [`sys::quire_session_feed_labelled`].
    pub fn feed_labelled(&mut self, text: &str, options: TextOptions, labels: &[Label]) -> Result<()> {
        let labels = raw_labels(labels);
        let ((data, len), (labels, n_labels)) = (call::text(text), call::slice(&labels));
        call::call(|error| unsafe {
            sys::quire_session_feed_labelled(self.raw(), data, len, options.flags(), labels, n_labels, error)
        })?;
        Ok(())
    }

    /// The passages that an answer looked at most, the greatest share first, at most `max_passages` (1 to 1024); of all of the
    /// answer, or of these tokens of it. Needs a stream with [`StreamOptions::cite`](crate::StreamOptions::cite).
    ///
    /// See [`sys::quire_session_get_passages`].
    ///
    /// ```no_run
    /// # fn run(mut session: quire::Session, document: &str) -> quire::Result<()> {
    /// use quire::StreamOptions;
    /// session.feed(document)?;
    /// let cite_end = session.token_counts()?.n_pending;
    /// session.feed("\nWho is Ishmael?\n")?;
    /// session.generate(&StreamOptions { cite: true, cite_end, ..StreamOptions::new(100) })?;
    /// for passage in session.passages(None, 3)? {
    ///     println!("{:.0} %: {}", 100.0 * passage.share, &document[passage.bytes.start as usize..passage.bytes.end as usize]);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn passages(&self, tokens: Option<Range<i64>>, max_passages: i32) -> Result<Vec<Passage>> {
        let (first, n) = span(tokens);
        let found = call::read(16, |passages, capacity, needed, error| unsafe {
            sys::quire_session_get_passages(self.raw(), first, n, max_passages, passages, capacity, needed, error)
        })?;
        Ok(found.iter().map(Passage::from).collect())
    }

    /// The same shares by label, for each label in the order fed.
    ///
    /// See [`sys::quire_session_get_label_shares`].
    pub fn label_shares(&self, tokens: Option<Range<i64>>) -> Result<Vec<LabelShare>> {
        let (first, n) = span(tokens);
        let found = call::read(16, |labels, capacity, needed, error| unsafe {
            sys::quire_session_get_label_shares(self.raw(), first, n, labels, capacity, needed, error)
        })?;
        Ok(found.iter().map(LabelShare::from).collect())
    }

    /// For each label, in the order fed: how the last stream's choices of chunks fell on it. Only strategies that choose
    /// chunks know (longheads, dca_topk).
    ///
    /// See [`sys::quire_session_get_label_attention`].
    pub fn label_attention(&self) -> Result<Vec<LabelShare>> {
        let found = call::read(16, |labels, capacity, needed, error| unsafe {
            sys::quire_session_get_label_attention(self.raw(), labels, capacity, needed, error)
        })?;
        Ok(found.iter().map(LabelShare::from).collect())
    }
}
