'use strict';

const raw = require('./raw');
const { Handle } = require('./handle');
const { QuireError } = require('./errors');
const { Token, lastEvent } = require('./events');
const { constants: C } = require('./interface');

const DONE = Object.freeze({ value: undefined, done: true });
const rejected = (error) => Promise.reject(error);
const TURN = 64; // so many events in a row come without letting timers and other events of the loop run

/**
 * A computation on a session: an async iterable of events, which are taken one by one as they are asked for. A loop closes it,
 * whether it comes to the end, fails or is left early.
 */
class Stream extends Handle {
  #numbers = new Float64Array(5);
  #take;
  #vocabSize;
  #forget;
  #inARow = 0;
  #waits = false;
  #ended = false; // there is nothing behind its end event
  #closed = false;

  /** Session.stream makes streams. */
  constructor(handle, signal, vocabSize) {
    super(handle);
    this.#take = raw.streamTaker(handle, this.#numbers);
    this.#vocabSize = vocabSize;
    if (signal) this.#watch(signal);
  }

  /** The signal must not keep the stream alive, for it may live much longer. Whoever aborts cannot know that the session was closed. */
  #watch(signal) {
    const weak = new WeakRef(this);
    const abort = () => {
      try {
        weak.deref()?.cancel();
      } catch (error) {
        if (error.status !== 'CLOSED') throw error;
      }
    };
    this.#forget = () => signal.removeEventListener('abort', abort);
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) this.cancel();
  }

  /** For a loop, which does not call return() where next() fails: this next() closes the stream then. */
  [Symbol.asyncIterator]() {
    const fail = async (error) => {
      await this.closeAsync().catch(() => {}); // the first error says more
      throw error;
    };
    return {
      next: () => this.#next(fail),
      return: (value) => this.return(value),
      [Symbol.asyncIterator]() { return this; },
    };
  }

  /** The next event, as iterators give it: { value, done }. One at a time: BUSY while the one before is waited for. */
  next() {
    return this.#next(rejected);
  }

  /** What `fail` makes of an error is the promise where there is no event. */
  #next(fail) {
    try {
      if (this.#ended) return Promise.resolve(DONE);
      if (this.#waits) throw new QuireError('BUSY', 'the event before is still waited for', { code: C.ERROR_BUSY });
      const result = this.#inARow < TURN ? this.#now() : undefined;
      if (result) return Promise.resolve(result);
    } catch (error) {
      return fail(error);
    }
    return new Promise((resolve) => { this.#later(resolve, (error) => resolve(fail(error))); });
  }

  /** Ends an iteration that is left early: stops the stream and waits for it. */
  async return(value) {
    await this.closeAsync();
    return { value, done: true };
  }

  /** What waits, or undefined. While a thread closes the stream there may be nothing yet, and nobody would be told of more. */
  #now() {
    if (this.#closed) throw new QuireError('CLOSED', 'this Stream was closed', { code: C.ERROR_CLOSED });
    const text = this.#take();
    if (text === null) return undefined;
    if (text === undefined) {
      this.#ended = true;
      this.#close(raw); // its file descriptor is not left to the collector, which sees how few bytes it has
      return DONE;
    }
    ++this.#inARow;
    const numbers = this.#numbers;
    const value = numbers[0] === C.EVENT_TOKEN && numbers[4] === 0
      ? new Token(text, numbers[1], numbers[3], numbers[2], undefined)
      : lastEvent(this.raw);
    return { value, done: false };
  }

  /** When something waits, or the loop had its turn. */
  #later(resolve, reject) {
    const again = () => {
      this.#inARow = 0;
      this.#waits = false;
      try {
        const result = this.#now();
        if (result) {
          resolve(result);
          return;
        }
        this.#wait(again);
      } catch (error) {
        reject(error);
      }
    };
    this.#wait(again);
  }

  /** Calls back when an event waits, or may do so. */
  #wait(again) {
    if (this.#inARow >= TURN) setImmediate(again);
    else raw.streamWait(this.raw, again);
    this.#waits = true;
  }

  /** Asks it to stop: the next event is the end event, with the finishReason 'cancelled'. */
  cancel() {
    if (!this.#closed) raw.streamCancel(this.raw);
  }

  /** More strings and ids that end the answer, for all tokens not taken yet. */
  addStop(strings, ids = []) {
    if (this.#ended) return;
    raw.streamAddStopStrings(this.raw, typeof strings === 'string' ? [strings] : strings);
    raw.streamAddStopIds(this.raw, ids);
  }

  /** Of a stream with constrain: the ids that may come next; undefined: any. Before the first token and after each one. */
  allow(ids) {
    if (ids === undefined) {
      raw.streamAllow(this.raw, []);
      return;
    }
    const words = new Uint32Array(Math.ceil(this.#vocabSize / 32));
    for (const id of ids) {
      if (!Number.isInteger(id)) throw new TypeError('ids: expected an integer');
      if (!(id >= 0 && id < this.#vocabSize)) throw new RangeError(`${id} is outside the vocabulary`);
      words[id >>> 5] |= 1 << (id & 31);
    }
    raw.streamAllow(this.raw, words);
  }

  /** A file descriptor that is readable when an event waits, and sometimes when there is none yet. Only wait for it. */
  get waitHandle() {
    return raw.streamGetWaitHandle(this.raw)[0];
  }

  /** Stops it, waits until nothing works for it, and leaves the session at the last token taken. */
  close() {
    this.#close(raw);
  }

  /** The same without holding up the event loop. */
  async closeAsync() {
    await this.#close(raw.async);
  }

  #close(by) {
    if (this.#closed) return undefined;
    this.#closed = true;
    this.#forget?.();
    const closing = by.streamClose(this.raw);
    raw.streamWake(this.raw); // what is waited for will not come
    super.close();
    return closing;
  }
}

module.exports = { Stream };
