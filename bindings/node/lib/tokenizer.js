'use strict';

const raw = require('./raw');
const options = require('./options');
const { Handle } = require('./handle');
const { constants: C } = require('./interface');

/** Text to token ids, ids to text, and conversations. */
class Tokenizer extends Handle {
  /** The ids of a text, as an Int32Array. continued: as a later segment. */
  encode(text, { continued = false, ...others } = {}) {
    return raw.tokenizerEncode(this.raw, text, options.textFlags(others) | options.bit('continued', continued, C.TEXT_CONTINUE));
  }

  /** The text of ids. special: control tokens as their pieces. */
  decode(ids, { special = false, ...others } = {}) {
    options.refuse(others);
    return raw.tokenizerDecode(this.raw, ids, options.bit('special', special, C.DECODE_SPECIAL));
  }

  /** The bytes that one id stands for, as a Buffer; they need not be UTF-8. */
  tokenBytes(id) {
    return raw.tokenizerGetTokenBytes(this.raw, id);
  }

  /** Number of ids. */
  get vocabSize() {
    return raw.tokenizerGetVocabSize(this.raw);
  }

  /** The beginning-of-sequence id; undefined where there is none. */
  get bos() {
    const bos = raw.tokenizerGetBos(this.raw);
    return bos < 0 ? undefined : bos;
  }

  /** Whether this id ends a text. */
  isEos(id) {
    return raw.tokenizerIsEos(this.raw, id) === 1;
  }

  /** The name of the checkpoint's own chat template. */
  chatTemplate() {
    return raw.tokenizerGetChatTemplate(this.raw);
  }

  /** A conversation as one text, for looking at. Options: template, date ('2025-06-30'), answer (false: begin none), thinking. */
  renderChat(messages, given) {
    return raw.tokenizerRenderChat(this.raw, ...options.chat(messages, given));
  }

  /** The same as ids, an Int32Array. */
  encodeChat(messages, given) {
    return raw.tokenizerEncodeChat(this.raw, ...options.chat(messages, given));
  }
}

module.exports = { Tokenizer };
