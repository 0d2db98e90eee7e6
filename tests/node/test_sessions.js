'use strict';

// What sessions hold: tiers, forks, edits, passages, logits.

const assert = require('node:assert/strict');
const os = require('node:os');
const path = require('node:path');
const { test } = require('node:test');
const { Runtime } = require('quire');
const { MODEL, events, failure, ids, shared, tokens } = require('./helper');

test('tiers', async () => {
  const { model } = await shared();
  const session = model.session({ kvHostBudgetBytes: 60_000, kvFileDirectory: os.tmpdir(), prefillBlock: 16 });
  await session.feedTokens(ids(200)).prefill();
  const host = session.tier('host');
  assert.ok(host.bytesPeak <= host.budgetBytes);
  assert.ok(session.tier('file').bytesWritten > 0);
  assert.throws(() => model.session({ kvAtticBudgetBytes: 1 }), /there is no option kvAtticBudgetBytes/);
  assert.match(session.fingerprint(), /^[0-9a-f]{32}$/);
});

test('forks', async () => {
  const { model } = await shared();
  const session = model.session({ strategy: 'dca' }).feedTokens(ids(40));
  await session.prefill();
  const fork = session.fork();
  assert.deepEqual(fork.tokens(), ids(40));
  fork.feedTokens([5, 6]);
  assert.deepEqual(fork.counts(), { nTokens: 40, nPending: 2 });
  fork.truncate(40);
  assert.deepEqual(...await Promise.all([tokens(session, 10), tokens(fork, 10)]));
});

test('windows of some layers', async () => {
  const { runtime } = await shared();
  const model = await runtime.load(path.join(path.dirname(MODEL), 'qwen2_window_layers'));
  for (const keepBehindWindows of [false, true]) {
    const session = model.session({ strategy: 'full(kv_chunk=16)', keepBehindWindows }).feedTokens(new Array(240).fill(5));
    await session.prefill();
    assert.equal(session.stats().kvChunksDropped === 0, keepBehindWindows);
  }
  assert.throws(() => model.session({ keepBehindWindows: 1 }), TypeError);
});

test('edits', async () => {
  const { model } = await shared();
  const before = Array.from({ length: 200 }, (_, i) => 3 + ((i * i * i + 7 * i) % 299));
  const changed = [...before.slice(0, 80), ...before.slice(100)];
  const session = model.session({ strategy: 'dca(kv_chunk=16)', prefixReuse: false }).feedTokens(before);
  await session.prefill();
  assert.deepEqual(session.fork().edit(changed), { nTokens: 180, nKept: 80, nMoved: 0 });
  assert.deepEqual(session.edit(changed, { reuse: 'approximate' }), { nTokens: 180, nKept: 80, nMoved: 96 });
  const prefill = (await events(session.stream())).filter((event) => event.kind === 'prefill').at(-1);
  assert.deepEqual([prefill.moved, prefill.done, session.stats().nMoved], [96, 4, 96]);
  assert.equal(session.edit('The sky is grey.', { labels: [[0, 7, 1]] }).nKept, 0);
  assert.throws(() => session.edit(before, { reuse: 'some' }), RangeError);
  const longheads = model.session({ strategy: 'longheads(chunk=16, chunks=4)' });
  await failure('UNSUPPORTED', () => longheads.edit(before, { reuse: 'approximate' }), 'longheads');
});

test('passages', async () => {
  const { model } = await shared();
  let at = 0;
  const pages = Array.from({ length: 12 }, (_, i) => `page ${i} tells of the number ${i * 7} and of nothing else. `);
  const labels = pages.map((page, i) => ({ begin: at, end: (at += page.length), id: i === 3 ? 2n ** 60n : 50 + i }));
  const session = model.session({ strategy: 'dca' });
  await session.feedAsync(pages.join(''), { labels });
  const { nPending } = session.counts();
  session.feed('which number is it? ');
  await tokens(session, 4, { cite: true, citeEnd: nPending });
  const passages = session.passages({ most: 3 });
  assert.equal(passages.length, 3);
  assert.equal(passages[0].labelId, passages[0].label === 3 ? 2n ** 60n : 50 + passages[0].label);
  assert.ok(Math.abs(session.labelShares().reduce((sum, { share }) => sum + share, 0) - 1) < 1e-3);
  const shares = session.labelShares({ firstToken: session.counts().nTokens - 1, nTokens: 1 });
  assert.deepEqual(shares.map(({ id }) => id).slice(2, 5), [52, 2n ** 60n, 54]);
  await failure('UNSUPPORTED', () => session.labelAttention());
});

test('logits, scores and embeddings', async () => {
  const { model } = await shared();
  const given = [1, 300, 301, 302, 303, 304];
  const session = model.session({ kvType: 'f32' }).feedTokens(given);
  await session.prefill({ score: true, keepLogits: true, keepHidden: true });
  const logits = session.logits(0, 6);
  const scores = session.scores(0, 6);
  assert.deepEqual([logits.length, logits[0].length, session.hiddenStates(0, 6)[5].length], [6, 320, model.info().hiddenSize]);
  assert.ok(Number.isNaN(scores[0]));
  for (let i = 1; i < 6; ++i) {
    const sum = logits[i - 1].reduce((total, logit) => total + Math.exp(logit), 0);
    assert.ok(Math.abs(logits[i - 1][given[i]] - Math.log(sum) - scores[i]) < 1e-4);
  }
  assert.deepEqual(session.logits()[0], logits[5]);
});

test('positions', async () => {
  const { model } = await shared();
  const session = model.session().feedTokens([5, 6], { positions: [9, 11n] });
  session.feedTokens(Int32Array.of(7), { positions: BigInt64Array.of(20n) });
  assert.deepEqual(session.counts(), { nTokens: 0, nPending: 3 });
  await failure('UNSUPPORTED', () => model.session({ strategy: 'dca' }).feedTokens([5], { positions: [9] }));
  session.discardPending();
  session.reset();
  assert.deepEqual(session.counts(), { nTokens: 0, nPending: 0 });
});

test('the prefix cache', async () => {
  const runtime = new Runtime({ threads: 2, prefixCacheBytes: 1 << 20 });
  const model = await runtime.load(MODEL);
  const found = [];
  for (let i = 0; i < 2; ++i) {
    const session = model.session({ strategy: 'dca(kv_chunk=32)' }).feedTokens(ids(300));
    const all = await events(session.stream({ maxTokens: 4, ignoreEos: true }));
    const { reused, reuseMiss } = all.filter((event) => event.kind === 'prefill').at(-1);
    found.push([reused, reuseMiss, all.filter((event) => event.kind === 'token').map((event) => event.token)]);
    session.close();
  }
  assert.deepEqual(found.map((each) => each.slice(0, 2)), [[0, 'unknown'], [288, 'complete']]);
  assert.deepEqual(found[0][2], found[1][2]);
  assert.equal(runtime.stats().prefixCacheTokens, 288);
  runtime.close();
});

test('what is experimental, and what has no limit', async () => {
  const { model } = await shared();
  const session = model.session({ strategy: 'dca', overflow: 'extrapolate' });
  await session.fillRandom(100, 7);
  assert.deepEqual(session.counts(), { nTokens: 100, nPending: 0 });
  await tokens(session, 1);
  assert.equal(session.stats().reach, Infinity);
  assert.equal(model.session().stats().reach, 256);
});

test('one call at a time on a session', async () => {
  const { model } = await shared();
  const session = model.session({ overflow: 'extrapolate' });
  const filling = session.fillRandom(50_000);
  await failure('BUSY', () => session.feed('more'), 'wait for its promise');
  assert.equal(typeof session.counts().nTokens, 'number'); // any-thread
  await filling;
  session.feed('more');
});
