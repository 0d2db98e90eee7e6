'use strict';

const { constants } = require('node:buffer');
const raw = require('./raw');
const options = require('./options');
const results = require('./session_results');
const { Handle } = require('./handle');
const { Stream } = require('./stream');
const { constants: C } = require('./interface');
const { longCall } = require('./long_call');
const { number } = require('./names');

/** A text that a model has read, and its KV cache. While a promise of it is pending, other calls fail with the status BUSY. */
class Session extends Handle {
  #model;

  /** Model.session and others make sessions. */
  constructor(handle, model) {
    super(handle);
    this.#model = model;
  }

  /** Queues one segment of text, and returns the session. Options: parseSpecial, bos, labels ([begin, end, id] each, in bytes of it). */
  feed(text, { labels, ...others } = {}) {
    this.#feed(raw, text, labels, others);
    return this;
  }

  /** The same on another thread, for texts of megabytes. */
  async feedAsync(text, { labels, ...others } = {}) {
    await this.#feed(raw.async, text, labels, others);
    return this;
  }

  #feed(by, text, labels, others) {
    const flags = options.textFlags(others);
    return labels ? by.sessionFeedLabelled(this.raw, text, flags, options.labels(labels)) : by.sessionFeedText(this.raw, text, flags);
  }

  /** Queues token ids. positions: one for each id, strictly increasing; each token follows the one before where not given. */
  feedTokens(ids, { positions, ...others } = {}) {
    options.refuse(others);
    if (positions) raw.sessionFeedPositions(this.raw, ids, positions);
    else raw.sessionFeedTokens(this.raw, ids);
    return this;
  }

  /** Queues messages; behind an answer they end its turn first. Options as of Tokenizer.renderChat. */
  feedMessages(messages, given) {
    raw.sessionFeedMessages(this.raw, ...options.chat(messages, given));
    return this;
  }

  /**
   * The session's text becomes this one: a string, or token ids. Options: reuse ('exact', 'approximate'), rereadTokens, and for a string
   * parseSpecial, bos, labels. Returns { nTokens, nKept, nMoved }; what is neither kept nor moved will be computed.
   */
  edit(text, { reuse, rereadTokens, labels, ...others } = {}) {
    const given = { flags: options.textFlags(others), reuse: number('reuse', reuse), rereadTokens, labels: options.labels(labels) };
    const edit = typeof text === 'string' || text instanceof Uint8Array ? raw.sessionEditText : raw.sessionEditTokens;
    const { nTokens, nKept, nMoved } = edit(this.raw, text, given);
    return { nTokens, nKept, nMoved };
  }

  /** Forgets what was fed and not yet processed. */
  discardPending() {
    raw.sessionDiscardPending(this.raw);
  }

  /** Forgets everything. */
  reset() {
    raw.sessionReset(this.raw);
  }

  /** Forgets the tokens from the nTokens-th on. */
  truncate(nTokens) {
    raw.sessionTruncate(this.raw, nTokens);
  }

  /** Makes an empty session one of nTokens random tokens, for benchmarks. */
  async fillRandom(nTokens, seed = 0) {
    return raw.async.sessionFillRandom(this.raw, nTokens, seed);
  }

  /**
   * Starts to process what was fed and then to generate: a Stream. Options: those of quire_stream_options; stop (a string or several),
   * samplers ([{ kind: 'penalties', a: 1.1, n: 64 }]), logitBias (a Map of tokens), deadline (milliseconds), topLogprobs, true for score,
   * keepLogits, ignoreEos, constrain, keepHidden, cite; and signal, which cancels it.
   */
  stream({ signal, ...given } = {}) {
    const watched = options.signal(signal);
    const handle = raw.streamOpen(this.raw, options.stream(given));
    return new Stream(handle, watched, this.#model.vocabSize);
  }

  /** The pieces of an answer's text: an async iterable. Leaving it early ends the answer. Options as of stream. */
  async* generate(given) {
    for await (const event of this.stream(given)) {
      if (event.text) yield event.text;
    }
  }

  /** Processes what was fed and generates nothing: the end event. Options: score, keepLogits, keepHidden, signal. */
  async prefill(given) {
    let last;
    for await (const event of this.stream({ ...given, maxTokens: 0 })) last = event;
    return last;
  }

  /** Another session that stands where this one does, and shares with it what both hold. */
  fork() {
    return new Session(raw.sessionFork(this.raw), this.#model);
  }

  /** Writes the session to the file `path`, where it appears whole or not at all. whole: all of it anew. Also progress and signal. */
  save(path, { whole = false, ...watched } = {}) {
    const flags = options.bit('whole', whole, C.SNAPSHOT_WHOLE);
    return longCall(watched, (more) => raw.async.sessionSave(this.raw, options.path(path), { flags, ...more }));
  }

  /** The same bytes as a Buffer; a RangeError where they are more than one can have. Options: progress, signal. */
  toBuffer(watched = {}) {
    return longCall(watched, (more) => raw.async.sessionSaveTo(this.raw, { write: constants.MAX_LENGTH }, more));
  }

  /** Ends an open stream, waits, frees the KV cache and drops the reference. */
  close() {
    this.#close(raw);
  }

  /** The same without holding up the event loop. */
  async closeAsync() {
    await this.#close(raw.async);
  }

  #closed = false;

  #close(by) {
    if (this.#closed) return undefined;
    this.#closed = true;
    const closing = by.sessionClose(this.raw);
    super.close();
    return closing;
  }
}

Object.defineProperties(Session.prototype, Object.getOwnPropertyDescriptors(results));

module.exports = { Session };
