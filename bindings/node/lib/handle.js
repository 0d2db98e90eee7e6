'use strict';

const raw = require('./raw');

/** Owns one reference until it is closed or collected. Handles keep their parents alive, so they may go in any order. */
class Handle {
  constructor(handle) {
    /** What the raw layer takes. */
    Object.defineProperty(this, 'raw', { value: handle });
  }

  /** Drops the reference now. Calls afterwards throw a QuireError of the status CLOSED; a second close does nothing. */
  close() {
    raw.release(this.raw);
  }
}

// Node.js has these symbols from version 18.18 on; until then `using` can only be compiled with helpers that define them.
if (Symbol.dispose) {
  Handle.prototype[Symbol.dispose] = function dispose() {
    this.close();
  };
}
if (Symbol.asyncDispose) {
  Handle.prototype[Symbol.asyncDispose] = async function asyncDispose() {
    await (this.closeAsync ?? this.close).call(this);
  };
}

module.exports = { Handle };
