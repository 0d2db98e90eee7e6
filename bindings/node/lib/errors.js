'use strict';

/** A failed call of the library. `status` is the status's name without QUIRE_ERROR_, such as 'BAD_FILE'. */
class QuireError extends Error {
  constructor(status, message, { code, offset = -1, osError = 0, cause } = {}) {
    super(`${status}: ${message}`, cause === undefined ? undefined : { cause });
    this.name = 'QuireError';
    this.status = status;
    /** The status as a number. */
    this.code = code;
    /** The byte, column or token index that the message speaks of; undefined where there is none. */
    this.offset = offset < 0 ? undefined : offset;
    /** errno where the system was the cause, else 0. */
    this.osError = osError;
  }
}

module.exports = { QuireError };
