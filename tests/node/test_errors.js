'use strict';

// Each status as an error: most by what really goes wrong.

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const {
  QuireError, Runtime, Store, describeSnapshot, describeStrategy, quantize, strategies, strategyPositions, verifySnapshot,
} = require('quire');
const raw = require('quire/lib/raw');
const { constants } = require('quire/lib/interface');
const { MODEL, events, failure, ids, sanitized, shared, text, withFolder } = require('./helper');

const STATUSES = Object.keys(constants).filter((name) => /^ERROR_/.test(name) && constants[name] < 0).map((name) => name.slice(6));
const provoked = new Set();

async function provoke(status, f) {
  const error = await failure(status, f);
  assert.equal(error.code, constants[`ERROR_${status}`]);
  provoked.add(status);
  return error;
}

/** A copy of the model whose last norm is not a number. */
function breakModel(copy) {
  fs.cpSync(MODEL, copy, { recursive: true });
  const file = path.join(copy, 'model.safetensors');
  const bytes = fs.readFileSync(file);
  const size = Number(bytes.readBigUInt64LE(0));
  const offset = JSON.parse(bytes.toString('utf8', 8, 8 + size))['model.norm.weight'].data_offsets[0];
  for (let i = 0; i < 4; ++i) bytes.writeFloatLE(NaN, 8 + size + offset + 4 * i);
  fs.chmodSync(file, 0o644);
  fs.writeFileSync(file, bytes);
}

/** The error of a process that may not have more memory, as that process says. */
function outOfMemory() {
  const script = `
    const { Runtime } = require('quire');
    const { execFileSync } = require('node:child_process');
    const fs = require('node:fs');
    (async () => {
      const model = await new Runtime({ threads: 1 }).load(${JSON.stringify(MODEL)});
      const session = model.session({ overflow: 'extrapolate', kvType: 'f32' });
      const bytes = Number(fs.readFileSync('/proc/self/statm', 'utf8').split(' ')[0]) * 4096;
      execFileSync('prlimit', ['--pid', process.pid, '--as=' + (bytes + (256 << 20))]);
      await session.fillRandom(3_000_000).catch((error) => console.log(JSON.stringify([error.status, error.message, error.code])));
      process.exit();
    })();`;
  const [status, message, code] = JSON.parse(execFileSync(process.execPath, ['-e', script], { encoding: 'utf8' }));
  return new QuireError(status, message, { code });
}

test('what goes wrong', async () => {
  const { runtime, model } = await shared();
  const session = model.session({ strategy: 'full' });
  assert.equal((await provoke('EMPTY', () => session.stream({ maxTokens: 1 }))).offset, undefined);
  assert.equal((await provoke('INVALID_TEXT', () => session.feed(Buffer.from('half a \xE9\x9B', 'latin1')))).offset, 7);
  assert.equal((await provoke('INVALID_TOKEN', () => session.feedTokens([5, 320]))).offset, 1);
  await provoke('BAD_STRATEGY', () => model.session({ strategy: 'full(' }));
  await provoke('NOT_FOUND', () => runtime.load('/no/such/folder'));
  await provoke('INVALID_ARGUMENT', () => session.truncate(7));
  await provoke('UNSUPPORTED', () => model.session({ strategy: 'beacon' }));
  await provoke('BUDGET', () => model.session({ kvCompressedBudgetBytes: 1 }));
  await provoke('BAD_FILE', () => describeSnapshot(path.join(MODEL, 'config.json')));
  session.feedTokens(ids(250));
  await provoke('OVERFLOW', () => session.stream({ maxTokens: 100 }));
  const stream = session.stream({ maxTokens: 1 });
  await provoke('BUSY', () => session.feed('more'));
  stream.close();
  await provoke('CLOSED', () => stream.next());
  await provoke('CANCELLED', () => runtime.load(MODEL, { signal: AbortSignal.abort('mine') }));
  await withFolder(async (folder) => {
    await provoke('IO', () => session.save(folder)); // it is a directory
    assert.equal((await failure('NOT_FOUND', () => session.save(path.join(folder, 'no/such')))).osError, 2);
    breakModel(path.join(folder, 'broken'));
    const broken = (await runtime.load(path.join(folder, 'broken'))).session().feed('Rain');
    await provoke('NUMERIC', () => text(broken.generate({ maxTokens: 2 })));
    broken.close();
  });
  if (!sanitized) await provoke('OUT_OF_MEMORY', () => { throw outOfMemory(); });
  // INTERNAL is a bug of the library, DEVICE takes a GPU, and the binding always offers room enough.
  const others = ['INTERNAL', ...(sanitized ? ['OUT_OF_MEMORY'] : []), 'BUFFER_TOO_SMALL', 'DEVICE'];
  assert.deepEqual(STATUSES.filter((status) => !provoked.has(status)), others);
});

test('errors have all that C says', () => {
  for (const status of STATUSES) {
    assert.equal(raw.getStatusName(constants[`ERROR_${status}`]), status);
    const error = new QuireError(status, 'why', { code: constants[`ERROR_${status}`], offset: 3, osError: 4 });
    assert.deepEqual([error.message, error.name, error.offset, error.osError], [`${status}: why`, 'QuireError', 3, 4]);
    assert.ok(error instanceof Error);
  }
  assert.equal(raw.getStatusName(-999), 'UNKNOWN');
});

test('options that there are not', async () => {
  const { runtime, model } = await shared();
  const session = model.session();
  const tokenizer = model.tokenizer();
  const wrong = [
    () => session.feed('Rain', { parse_special: true }), () => session.feedAsync('Rain', { noBos: true }), () => tokenizer.encode('Rain', { no_bos: true }),
    () => session.feedTokens([5], { position: [1] }), () => tokenizer.decode([5], { specials: true }), () => session.edit('Rain', { rereadToken: 1 }),
    () => session.save('/nowhere', { hole: true }), () => session.toBuffer({ compress: 1 }), () => verifySnapshot('/nowhere', { cancel: 1 }),
    () => model.loadAdapter('/nowhere', { scale: 1 }), () => quantize('/nowhere', '/nowhere', { recipes: 'q8_0' }), () => Store.open('/nowhere', { bytes: 1 }),
    () => session.passages({ first: 1 }), () => session.labelShares({ most: 1 }), () => tokenizer.renderChat([['user', 'Hello']], { dates: '' }),
    () => strategies({ trainLen: 8, heads: 1 }), () => describeStrategy('dca', { trainLen: 8, heads: 1 }),
    () => strategyPositions('dca', { trainLen: 8, nKeys: 4, heads: 1 }), () => session.stream({ flags: 1 }), () => model.session({ flags: 1 }),
    () => new Runtime({ nThread: 1 }), () => runtime.load(MODEL, { beaconPaths: '' }),
  ];
  for (const call of wrong) await assert.rejects(async () => call(), { name: 'TypeError', message: /there is no option/ }, String(call));
});

test('options by the names that their fields have in quire.h', async () => {
  const { model } = await shared();
  await failure('INVALID_ARGUMENT', () => new Runtime({ nThreads: -7 }));
  await failure('INVALID_ARGUMENT', () => new Runtime({ nIoThreads: -7 }));
  const runtime = new Runtime({ nThreads: 1, nKeptLogLines: 10, logLevel: 'info' });
  await failure('NOT_FOUND', () => runtime.load(MODEL, { beaconPath: '/no/such/folder' }));
  await assert.rejects(runtime.load(MODEL, { activationType: 'q9' }), RangeError);
  (await runtime.load(MODEL, { activationType: 'f32' })).close();
  assert.ok(runtime.takeLogLine());
  runtime.close();
  const session = model.session().feed('Rain');
  const [token] = (await events(session.stream({ maxTokens: 1, ignoreEos: true, nTopLogprobs: 2 }))).filter((event) => event.kind === 'token');
  assert.equal(token.topLogprobs.length, 2);
  const stopped = await events(model.session().feed('Rain').stream({ maxTokens: 12, ignoreEos: true, stopStrings: [token.text] }));
  assert.equal(stopped.at(-1).finishReason, 'stop_string');
  const late = await model.session({ overflow: 'extrapolate', prefillBlock: 16 }).feedTokens(ids(200_000)).prefill({ deadlineMs: 1 });
  assert.equal(late.finishReason, 'deadline');
  const chat = [['user', 'Hello']];
  assert.equal(model.tokenizer().renderChat(chat, { templateName: 'chatml' }), model.tokenizer().renderChat(chat, { template: 'chatml' }));
});

test('arguments of a wrong kind', async () => {
  const { runtime, model } = await shared();
  const session = model.session();
  const tokenizer = model.tokenizer();
  const wrong = [
    () => session.stream({ maxToken: 1 }), () => session.stream({ maxTokens: 'many' }), () => session.stream({ maxTokens: 1.5 }),
    () => session.stream({ score: 1 }), () => session.feed(5), () => session.feed(new Uint16Array(2)), () => session.feedTokens(5),
    () => session.feedTokens(new Float32Array(2)), () => session.feedTokens([5, 6], { positions: [9] }), () => session.feedTokens(['a']),
    () => session.feed('text', { labels: [['a', 2, 3]] }), () => raw.sessionReset({}), () => raw.sessionReset(model.raw), () => raw.release({}),
    () => raw.sessionSaveTo(session.raw, { write: false }), () => raw.strategyDescribe(7), () => session.edit([5], { labels: 7 }),
    () => model.session({ adapters: [[session, 1]] }), () => runtime.load(MODEL, { progress: 5 }), () => runtime.load(MODEL, { device: 5 }),
    () => raw.sessionLoadFrom(model.raw, { bytes: 'text' }), () => raw.adapterLoad(model.raw, 'path', { progress() {} }),
  ];
  for (const call of wrong) await assert.rejects(async () => call(), TypeError, String(call));
  const outside = [
    () => tokenizer.decode([2 ** 40]), () => session.truncate(2 ** 60), () => session.truncate(2n ** 70n), () => model.session({ kvType: 'f64' }),
    () => session.tier('attic'), () => session.stream({ samplers: [{ kind: 'best' }] }),
  ];
  for (const call of outside) assert.throws(call, RangeError, String(call));
  await assert.rejects(Store.open('/tmp', { mustExist: 1 }), TypeError);
  await assert.rejects(runtime.load(MODEL, { signal: {} }), /signal: expected an AbortSignal/);
  session.feed('Rain');
  assert.throws(() => session.stream({ signal: {} }), /signal: expected an AbortSignal/);
  session.discardPending(); // no stream is open
  assert.deepEqual(await events(session.feed('Rain').stream({ seed: 2n ** 64n - 1n })).then((all) => all.at(-1).kind), 'end');
});

test('a library with another ABI is refused', () => {
  const script = `
    const interface = require('quire/lib/interface');
    const constants = { ...interface.constants, VERSION: interface.constants.VERSION + Number(process.argv[1]) };
    require.cache[require.resolve('quire/lib/interface')].exports = { ...interface, constants };
    try { require('quire'); console.log('taken'); } catch (error) { console.log(error.message); }`;
  const said = (difference) => execFileSync(process.execPath, ['-e', script, '--', String(difference)], { encoding: 'utf8' });
  assert.equal(said(0), 'taken\n');
  for (const difference of [1, 100, -100, 10000]) {
    assert.match(said(difference), /is of version 0\.1\.0; this package needs \d+\.\d+\.\d+, or a later one with its ABI/);
  }
});
