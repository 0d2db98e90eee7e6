//! Text to token ids and back.

use crate::handle::{opaque_debug, Handle};
use crate::text::flag;
use crate::{call, sys, Result, TextOptions};

/// Text to token ids and back. Of a model ([`Model::tokenizer`](crate::Model::tokenizer)), or alone
/// ([`Runtime::load_tokenizer`](crate::Runtime::load_tokenizer)). A clone is the same tokenizer.
///
/// ```no_run
/// # fn run(model: quire::Model) -> quire::Result<()> {
/// let tokenizer = model.tokenizer()?;
/// let ids = tokenizer.encode("Rain fell", Default::default())?;
/// assert_eq!(tokenizer.decode(&ids)?, "Rain fell");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tokenizer(pub(crate) Handle<sys::quire_tokenizer>);

opaque_debug!(Tokenizer);

impl Tokenizer {
    /// The ids of a text.
    ///
    /// See [`sys::quire_tokenizer_encode`].
    pub fn encode(&self, text: &str, options: TextOptions) -> Result<Vec<i32>> {
        let (data, len) = call::text(text);
        call::read(len / 2 + 8, |ids, capacity, needed, error| unsafe {
            sys::quire_tokenizer_encode(self.0.raw(), data, len, options.flags(), ids, capacity, needed, error)
        })
    }

    /// The text of ids, as one first segment. Bytes that are not UTF-8 become U+FFFD; control tokens give nothing.
    pub fn decode(&self, ids: &[i32]) -> Result<String> {
        self.decode_ids(ids, false)
    }

    /// The same with control tokens written out.
    pub fn decode_special(&self, ids: &[i32]) -> Result<String> {
        self.decode_ids(ids, true)
    }

    fn decode_ids(&self, ids: &[i32], special: bool) -> Result<String> {
        let (data, len) = call::slice(ids);
        let flags = flag(special, sys::QUIRE_DECODE_SPECIAL);
        call::read_text(8 * len, |buffer, capacity, needed, error| unsafe {
            sys::quire_tokenizer_decode(self.0.raw(), data, len, flags, buffer, capacity, needed, error)
        })
    }

    /// The bytes that one id stands for; they need not be UTF-8.
    ///
    /// See [`sys::quire_tokenizer_get_token_bytes`].
    pub fn token_bytes(&self, id: i32) -> Result<Vec<u8>> {
        call::read::<u8>(32, |buffer, capacity, needed, error| unsafe {
            sys::quire_tokenizer_get_token_bytes(self.0.raw(), id, buffer.cast(), capacity, needed, error)
        })
    }

    /// Number of ids, of the model.
    ///
    /// See [`sys::quire_tokenizer_get_vocab_size`].
    pub fn vocab_size(&self) -> i32 {
        unsafe { sys::quire_tokenizer_get_vocab_size(self.0.raw()) }
    }

    /// Beginning-of-sequence id.
    ///
    /// See [`sys::quire_tokenizer_get_bos`].
    pub fn bos(&self) -> Option<i32> {
        let id = unsafe { sys::quire_tokenizer_get_bos(self.0.raw()) };
        (id >= 0).then_some(id)
    }

    /// Whether the id ends a text.
    ///
    /// See [`sys::quire_tokenizer_is_eos`].
    pub fn is_eos(&self, id: i32) -> bool {
        unsafe { sys::quire_tokenizer_is_eos(self.0.raw(), id) != 0 }
    }
}
