'use strict';

// Sessions in files, in memory and in stores.

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const raw = require('quire/lib/raw');
const { Store, describeSnapshot, verifySnapshot } = require('quire');
const { collected, failure, ids, shared, tokens, withFolder } = require('./helper');

const STRATEGY = 'dca(kv_chunk=16)';
const OPTIONS = { strategy: STRATEGY, kvType: 'f32', prefixReuse: false };

async function read(n) {
  const { model } = await shared();
  const session = model.session(OPTIONS).feedTokens(ids(n));
  await session.prefill();
  return session;
}

test('files', async () => withFolder(async (folder) => {
  const { model } = await shared();
  const file = path.join(folder, 'saved.quire');
  const session = await read(300);
  let seen;
  await session.save(file, { whole: true, progress: (...numbers) => { seen = numbers; } });
  assert.equal(seen[0], seen[1]);
  const { nTokens, bytes, origin } = await describeSnapshot(file).then((d) => ({ nTokens: d.n_tokens, bytes: d.bytes, origin: d.origin }));
  assert.deepEqual([nTokens, bytes, origin.model], [300, fs.statSync(file).size, model.metadata('identity')]);
  await verifySnapshot(file);
  const loaded = await model.loadSession(file, { prefixReuse: false });
  assert.deepEqual(loaded.tokens(), session.tokens());
  assert.deepEqual(await tokens(loaded, 12), await tokens(session, 12));
  assert.ok(loaded.tier('snapshot').bytesRead > 0);
  await failure('INVALID_ARGUMENT', () => model.loadSession(file, { strategy: 'full' }), 'its strategy is dca(');
  await failure('NOT_FOUND', () => model.loadSession(path.join(folder, 'none')));
  const damaged = fs.readFileSync(file);
  damaged.write('damage', damaged.length / 2);
  await failure('BAD_FILE', () => verifySnapshot(damaged), 'is damaged');
}));

test('memory', async () => withFolder(async (folder) => {
  const { model } = await shared();
  const file = path.join(folder, 'saved.quire');
  const session = await read(200);
  await session.save(file);
  let seen;
  let memory = await session.toBuffer({ progress: (...numbers) => { seen = numbers; } });
  assert.equal(seen[0], seen[1]);
  assert.ok(memory.equals(fs.readFileSync(file)));
  assert.deepEqual(await describeSnapshot(memory), await describeSnapshot(file));
  await verifySnapshot(memory, { progress() {} });
  const loaded = await model.loadSession(memory, { prefixReuse: false });
  await failure('BAD_FILE', () => model.loadSession(memory.subarray(0, 100)));
  await failure('CANCELLED', () => session.toBuffer({ signal: AbortSignal.abort() }));
  const collect = (most) => raw.async.sessionSaveTo(session.raw, { write: most }, {});
  assert.equal((await collect(memory.length)).length, memory.length);
  await assert.rejects(collect(memory.length - 1), { name: 'RangeError', message: /use save\(path\)/ });
  // What is read is a copy: the caller's may change, and go.
  let gone = false;
  const registry = new FinalizationRegistry(() => { gone = true; });
  registry.register(memory);
  memory.fill(0);
  memory = undefined;
  await collected(() => gone);
  const fork = loaded.fork();
  loaded.close();
  assert.deepEqual(await tokens(fork, 12), await tokens(session, 12));
}));

test('stores', async () => withFolder(async (folder) => {
  const { model } = await shared();
  const directory = path.join(folder, 'store');
  await failure('NOT_FOUND', () => Store.open(directory, { mustExist: true }));
  const store = await Store.open(directory, { budgetBytes: 10_000_000 });
  const session = await read(300);
  const text = ids(400);
  assert.equal((await store.find(model, text, OPTIONS)).reason, 'the store is empty');
  await failure('NOT_FOUND', () => store.load(model, text, OPTIONS), 'the store is empty');
  let seen;
  const put = await store.put(session, { title: 'Größe', progress: (...numbers) => { seen = numbers; } });
  assert.deepEqual([put.nTokens, seen[0]], [300, seen[1]]);
  assert.equal((await store.find(model, text, OPTIONS)).nComputed, 300);
  assert.ok((await store.find(model, text, { strategy: STRATEGY })).reason.includes('its kv_type is f32; here it is f16'));
  const [entry] = (await store.describe()).entries;
  assert.deepEqual([entry.name, entry.title, entry.n_tokens], [put.name, 'Größe', 300]);
  const loaded = await store.load(model, text, OPTIONS);
  assert.equal(loaded.counts().nTokens, 300);
  loaded.close();
  await store.verify(put.name);
  await failure('CANCELLED', () => store.verify(put.name, { signal: AbortSignal.abort() }));
  await store.remove(put.name);
  assert.deepEqual((await store.describe()).entries, []);
  await failure('INVALID_ARGUMENT', () => store.remove('../store.lock'));
  store.close();
  await failure('CLOSED', () => store.describe(), 'this Store was closed');
}));
