'use strict';

// Streams: what is generated, how it ends, and what the event loop does meanwhile.

const assert = require('node:assert/strict');
const { test } = require('node:test');
const { events, failure, ids, shared, text, tokens } = require('./helper');

async function leaves() {
  const { model } = await shared();
  return model.session({ strategy: 'dca' }).feed('The reader turns the leaves');
}

let known;
async function whole() {
  known ??= await tokens(await leaves(), 12);
  return known;
}

/** A session that has much to read. */
async function long() {
  const { model } = await shared();
  return model.session({ strategy: 'dca', overflow: 'extrapolate', prefillBlock: 16 }).feedTokens(ids(200_000));
}

test('events', async () => {
  const all = await events((await leaves()).stream({ maxTokens: 5, ignoreEos: true }));
  assert.deepEqual([...new Set(all.map((event) => event.kind))], ['prefill', 'token', 'end']);
  const { finishReason, token, stopIndex } = all.at(-1);
  assert.deepEqual([finishReason, token, stopIndex], ['max_tokens', undefined, undefined]);
  const answer = all.map((event) => event.text).join('');
  assert.equal(await text((await leaves()).generate({ maxTokens: 5, ignoreEos: true })), answer);
});

test('options', async () => {
  const first = async (options) => tokens(await leaves(), 12, options);
  assert.deepEqual(await first({ samplers: [{ kind: 'top_k', n: 1 }] }), await whole());
  assert.deepEqual(await first({ maxUndelivered: 1 }), await whole());
  assert.deepEqual(await first({ draftTokens: 8, draftMatch: 1 }), await whole());
  assert.deepEqual(await first({ temperature: 1, seed: 7, topK: 40 }), await first({ samplers: [{ kind: 'top_k', n: 40 }], seed: 7n }));
  const [most] = await whole();
  assert.notEqual((await first({ logitBias: new Map([[most, -Infinity]]) }))[0], most);
  assert.equal((await first({ samplers: [{ kind: 'dry', a: 0.8, b: 1.75, m: 2 }], dryBreakers: [] })).length, 12);
});

test('top logprobs', async () => {
  const all = await events((await leaves()).stream({ maxTokens: 1, topLogprobs: 3, ignoreEos: true }));
  const { token, logprob, topLogprobs } = all.find((event) => event.kind === 'token');
  assert.deepEqual([topLogprobs.length, topLogprobs[0]], [3, { token, logprob }]);
});

test('stop conditions', async () => {
  const answer = await text((await leaves()).generate({ maxTokens: 12, ignoreEos: true }));
  const stop = answer.slice(answer.length / 2);
  const all = await events((await leaves()).stream({ maxTokens: 12, ignoreEos: true, stop: ['never this, surely', stop] }));
  assert.deepEqual([all.at(-1).finishReason, all.at(-1).stopIndex], ['stop_string', 1]);
  assert.equal(all.map((event) => event.text).join(''), answer.slice(0, answer.indexOf(stop)));
  const stream = (await leaves()).stream({ maxTokens: 12, ignoreEos: true });
  await stream.next();
  stream.addStop('never this, surely', [(await whole())[5]]);
  const last = (await events(stream)).at(-1);
  assert.deepEqual([last.finishReason, last.token], ['stop_id', (await whole())[5]]);
});

test('constrained', async () => {
  const stream = (await leaves()).stream({ maxTokens: 3, ignoreEos: true, constrain: true });
  for (const allowed of [[300, 301], [17], undefined]) {
    stream.allow(allowed);
    let event;
    do event = (await stream.next()).value; while (event.kind !== 'token');
    assert.ok((allowed ?? [event.token]).includes(event.token));
  }
  assert.equal((await events(stream)).at(-1).finishReason, 'max_tokens');
  assert.throws(() => stream.allow([320]), RangeError);
  for (const id of [1.5, '5', NaN]) assert.throws(() => stream.allow([id]), TypeError);
});

test('notices', async () => {
  const { model } = await shared();
  const session = model.session({ strategy: 'auto', expectedTokens: 100 }).feed('Every chapter began with a map.');
  const [first] = await events(session.stream({ maxTokens: 2 }));
  assert.deepEqual([first.kind, first.code, first.text], ['notice', 'auto_choice', '']);
  assert.ok(first.message.includes(session.strategy()));
});

test('a loop that is left early closes its stream, and the session stands at the last token taken', async () => {
  const session = await leaves();
  let at;
  for await (const event of session.stream({ maxTokens: 50, ignoreEos: true })) {
    at = event.nTokens;
    if (event.kind === 'token') break;
  }
  assert.deepEqual(session.counts(), { nTokens: at, nPending: 0 });
  session.feed('more');
  await assert.rejects(async () => {
    for await (const piece of session.generate({ maxTokens: 50, ignoreEos: true })) throw new Error(`mine: ${piece}`);
  }, /mine/);
  session.feed('more');
  const stream = session.stream({ maxTokens: 50, ignoreEos: true });
  await failure('BUSY', () => session.feed('more'));
  stream.close();
  stream.close();
  stream.cancel();
  await failure('CLOSED', () => stream.next());
  await failure('CLOSED', () => stream.addStop('x'));
});

test('a loop that fails closes its stream', async () => {
  const session = await leaves();
  const unconstrained = { maxTokens: 3, constrain: true }; // allow() is not called
  await failure('INVALID_ARGUMENT', () => text(session.generate(unconstrained)));
  session.feed('more');
  await failure('INVALID_ARGUMENT', () => events(session.stream(unconstrained)));
  session.feed('more');
  const stream = session.stream(unconstrained);
  await failure('INVALID_ARGUMENT', async () => { for (;;) await stream.next(); });
  await failure('BUSY', () => session.feed('more'));
  stream.allow([17]);
  assert.equal((await stream.next()).value.token, 17);
  stream.close();
});

test('eight streams at once', async () => {
  const answers = Array.from({ length: 8 }, async (_, i) => tokens(await leaves(), 4 + i));
  const all = await whole();
  assert.deepEqual(await Promise.all(answers), Array.from({ length: 8 }, (_, i) => all.slice(0, 4 + i)));
});

test('an abort while reading', async () => {
  const session = await long();
  const controller = new AbortController();
  const counted = setInterval(() => { // it runs while the stream is waited for
    if (session.counts().nTokens > 0) controller.abort();
  }, 0);
  const all = await events(session.stream({ maxTokens: 10, signal: controller.signal }));
  clearInterval(counted);
  assert.equal(all.at(-1).finishReason, 'cancelled');
  const { nTokens, nPending } = session.counts();
  assert.ok(nTokens > 0 && nPending > 0);
  assert.equal(nTokens + nPending, 200_000);
  const before = await events(session.stream({ maxTokens: 10, signal: AbortSignal.abort() }));
  assert.equal(before.at(-1).finishReason, 'cancelled');
  assert.ok(session.probes().tasksAfterCancel <= 2);
  session.close();
});

test('an abort after the session was closed', async () => {
  const session = await leaves();
  const controller = new AbortController();
  const stream = session.stream({ maxTokens: 10, signal: controller.signal });
  await stream.next();
  await session.closeAsync();
  controller.abort(); // an exception of its listener would end the process
  await failure('CLOSED', () => stream.next());
});

test('a wait holds up neither timers nor a close', async () => {
  const session = await long();
  const stream = session.stream();
  await stream.next();
  let waiting = stream.next();
  while ((await Promise.race([waiting, new Promise((resolve) => { setTimeout(resolve, 0); })])) !== undefined) waiting = stream.next();
  await failure('BUSY', () => stream.next());
  assert.ok(stream.waitHandle >= 0);
  stream.close(); // what was waited for will not come
  await failure('CLOSED', () => waiting);
  session.close();
});

test('events that are there let timers run', async () => {
  const { model } = await shared();
  const session = model.session({ overflow: 'extrapolate' }).feed('Rain');
  let n = 0;
  const stopped = new AbortController();
  setTimeout(() => stopped.abort(), 1);
  const stream = session.stream({ maxTokens: 1e6, ignoreEos: true, maxUndelivered: 4096, signal: stopped.signal });
  for await (const event of stream) n += event.kind === 'token';
  assert.ok(n < 1e6);
});

test('deadlines', async () => {
  const session = await long();
  assert.equal((await events(session.stream({ deadline: 50 }))).at(-1).finishReason, 'deadline');
  session.close();
});
