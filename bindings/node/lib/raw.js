'use strict';

// The module in C: a function for each one of quire.h, in the shape that bindings/plans.py describes. raw.async has the same functions
// as promises, which run on a thread of libuv's pool.

const path = require('node:path');
const { constants } = require('./interface');
const { QuireError } = require('./errors');

const raw = require(path.join(__dirname, '..', 'prebuilds', `${process.platform}-${process.arch}`, 'quire.node'));

raw.setErrorFactory((code, message, offset, osError) => new QuireError(raw.getStatusName(code), message, { code, offset, osError }));

if (raw.getVersion() < constants.VERSION) {
  throw new Error(`libquire.so is of version ${raw.getVersionString()}, older than this package`);
}

module.exports = raw;
