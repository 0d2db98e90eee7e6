//! How text becomes tokens.

use crate::sys;

/// How a segment of text is tokenized. The default is that of text from outside: no control tokens in it.
///
/// ```no_run
/// # fn run(mut session: quire::Session) -> quire::Result<()> {
/// use quire::TextOptions;
/// session.feed_with("<s>[INST] Hello [/INST]", TextOptions { parse_special: true, no_bos: true, ..Default::default() })?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// "&lt;s>", "<|im_end|>" and the like in the text are control tokens.
    pub parse_special: bool,
    /// No beginning-of-sequence token, even at the start.
    pub no_bos: bool,
    /// Of a tokenizer alone: as a later segment (no beginning-of-sequence token, no dummy prefix).
    pub continued: bool,
}

impl TextOptions {
    pub(crate) fn flags(self) -> u32 {
        flag(self.parse_special, sys::QUIRE_TEXT_PARSE_SPECIAL)
            | flag(self.no_bos, sys::QUIRE_TEXT_NO_BOS)
            | flag(self.continued, sys::QUIRE_TEXT_CONTINUE)
    }
}

/// The bit where it is set, else zero.
pub(crate) fn flag(set: bool, bit: u32) -> u32 {
    if set {
        bit
    } else {
        0
    }
}

/// Texts as C has them. They borrow from `texts`.
pub(crate) fn raw_texts(texts: &[String]) -> Vec<sys::quire_text> {
    texts.iter().map(|text| sys::quire_text { data: text.as_ptr().cast(), len: text.len() }).collect()
}
