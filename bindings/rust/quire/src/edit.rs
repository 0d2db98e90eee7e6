//! Edits: a session's text becomes another one.

use crate::cite::{raw_labels, Label};
use crate::record::record;
use crate::{call, sys, Result, Reuse, Session, TextOptions};

/// How a text takes the place of the one before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EditOptions {
    /// How the text is tokenized; of token ids the default.
    pub text: TextOptions,
    /// What is taken over of the text before it.
    pub reuse: Reuse,
    /// [`Reuse::Approximate`]: of each run that is taken over so many tokens are computed first.
    pub reread_tokens: i64,
    /// Of a text: names for parts of it.
    pub labels: Vec<Label>,
}

record! {
    /// What an edit came to, in tokens. Those that are neither kept nor moved will be computed.
    pub struct Edited of quire_edit_result {
        /// Of the new text.
        n_tokens: i64,
        /// The first so many stay computed.
        n_kept: i64,
        /// So many will be taken over from elsewhere in the text before.
        n_moved: i64,
    }
}

impl EditOptions {
    fn raw(&self, labels: &[sys::quire_label]) -> sys::quire_edit_options {
        let (labels, n_labels) = call::slice(labels);
        sys::quire_edit_options {
            flags: self.text.flags(),
            reuse: self.reuse.raw(),
            reread_tokens: self.reread_tokens,
            labels,
            n_labels,
            ..call::init(sys::quire_edit_options_init)
        }
    }
}

impl Session {
    /// The session's text becomes this one, the whole of it. What was computed before the first difference stays; nothing is
    /// computed until a stream is opened.
    ///
    /// See [`sys::quire_session_edit_text`].
    ///
    /// ```no_run
    /// # fn run(mut session: quire::Session, log: &str) -> quire::Result<()> {
    /// use quire::{EditOptions, Reuse};
    /// let options = EditOptions { reuse: Reuse::Approximate, ..Default::default() };
    /// let edited = session.edit(log, &options)?;
    /// println!("{} of {} tokens need not be read again", edited.n_kept + edited.n_moved, edited.n_tokens);
    /// # Ok(()) }
    /// ```
    pub fn edit(&mut self, text: &str, options: &EditOptions) -> Result<Edited> {
        let labels = raw_labels(&options.labels);
        let ((data, len), options) = (call::text(text), options.raw(&labels));
        edited(|result, error| unsafe { sys::quire_session_edit_text(self.raw(), data, len, &options, result, error) })
    }

    /// The same with token ids as they are.
    ///
    /// See [`sys::quire_session_edit_tokens`].
    pub fn edit_tokens(&mut self, ids: &[i32], options: &EditOptions) -> Result<Edited> {
        let labels = raw_labels(&options.labels);
        let ((data, len), options) = (call::slice(ids), options.raw(&labels));
        edited(|result, error| unsafe {
            sys::quire_session_edit_tokens(self.raw(), data, len, &options, result, error)
        })
    }
}

fn edited(function: impl FnOnce(*mut sys::quire_edit_result, *mut sys::quire_error) -> i32) -> Result<Edited> {
    let mut result = call::init(sys::quire_edit_result_init);
    call::call(|error| function(&mut result, error))?;
    Ok(Edited::from(&result))
}
