'use strict';

// The module in C: a function for each one of quire.h, in the shape that bindings/plans.py describes. raw.async has the same functions
// as promises, which run on a thread of libuv's pool.

const path = require('node:path');
const { constants } = require('./interface');
const { QuireError } = require('./errors');

const raw = require(path.join(__dirname, '..', 'prebuilds', `${process.platform}-${process.arch}`, 'quire.node'));

raw.setErrorFactory((code, message, offset, osError) => new QuireError(raw.getStatusName(code), message, { code, offset, osError }));

// Until 1.0 a minor version may break the ABI, then a major one.
function hasAbiOf(wanted, found) {
  const unit = wanted < 10000 ? 100 : 10000;
  return found >= wanted && Math.floor(found / unit) === Math.floor(wanted / unit);
}

function asText(version) {
  return [version / 10000, (version / 100) % 100, version % 100].map(Math.floor).join('.');
}

if (!hasAbiOf(constants.VERSION, raw.getVersion())) {
  throw new Error(`libquire.so is of version ${asText(raw.getVersion())}; this package needs ${asText(constants.VERSION)}, or a later ` +
    'one with its ABI');
}

module.exports = raw;
