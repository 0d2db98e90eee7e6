'use strict';

// A tiny model for the tests, which need Node.js alone. It notes which functions of quire.h are called.

const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const raw = require('quire/lib/raw');
const { QuireError, Runtime } = require('quire');

const SOURCE = path.join(__dirname, '../..');
const MODEL = path.join(SOURCE, 'tests/golden/models/text_256');
const EMBEDDED = path.join(SOURCE, 'examples/embedded_model/model');
const ADAPTERS = path.join(SOURCE, 'tests/golden/adapters');

const called = new Set();
for (const functions of [raw, raw.async]) {
  for (const [name, value] of Object.entries(functions)) {
    if (typeof value !== 'function') continue;
    functions[name] = (...values) => {
      called.add(name);
      return value(...values);
    };
  }
}

/** Where the module has ASan, which keeps freed memory and takes terabytes of addresses. */
const sanitized = Boolean(process.env.QUIRE_TEST_SANITIZED);

let runtime;
let model;

/** One runtime and model for all tests that need no own. */
async function shared() {
  runtime ??= new Runtime({ threads: 2 });
  model ??= await runtime.load(MODEL);
  return { runtime, model };
}

/** Calls f with a directory, which is gone afterwards. */
async function withFolder(f) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'quire-node-'));
  try {
    return await f(folder);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
}

function ids(n, first = 0) {
  return Int32Array.from({ length: n }, (_, i) => 3 + ((first + i) % 300));
}

/** That f throws, or rejects with, the error of this status with `part` in its message: the error. */
async function failure(status, f, part = '') {
  let error;
  try {
    await f();
  } catch (caught) {
    error = caught;
  }
  assert.ok(error instanceof QuireError, `expected ${status}, found ${error}`);
  assert.equal(error.status, status, error.message);
  assert.ok(error.message.includes(part), error.message);
  return error;
}

async function events(stream) {
  const found = [];
  for await (const event of stream) found.push(event);
  return found;
}

async function tokens(session, maxTokens, options = {}) {
  const all = await events(session.stream({ maxTokens, ignoreEos: true, ...options }));
  return all.filter((event) => event.kind === 'token').map((event) => event.token);
}

/** All of a text. */
async function text(pieces) {
  const found = [];
  for await (const piece of pieces) found.push(piece);
  return found.join('');
}

/** When everything that can be collected was collected, and its finalizers ran. */
async function collected(done) {
  for (let i = 0; i < 1000 && !done(); ++i) {
    global.gc();
    await new Promise(setImmediate);
  }
  assert.ok(done());
}

module.exports = { ADAPTERS, EMBEDDED, MODEL, SOURCE, called, collected, events, failure, ids, sanitized, shared, text, tokens, withFolder };
