'use strict';

// Handles, callbacks, workers and the collector: in which order they may go.

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const { Worker } = require('node:worker_threads');
const { Runtime } = require('quire');
const raw = require('quire/lib/raw');
const { MODEL, collected, events, failure, ids, sanitized, shared, text, tokens, withFolder } = require('./helper');

function orders(names) {
  return names.length < 2 ? [names] : names.flatMap((name) => orders(names.filter((other) => other !== name)).map((rest) => [name, ...rest]));
}

test('handles may go in any order', async () => {
  for (const order of orders(['runtime', 'model', 'session', 'stream'])) {
    const held = { runtime: new Runtime({ threads: 1 }) };
    held.model = await held.runtime.load(MODEL);
    held.session = held.model.session().feed('Rain fell');
    held.stream = held.session.stream({ maxTokens: 3, ignoreEos: true });
    for (const [i, name] of order.entries()) {
      raw.release(held[name].raw); // only the reference: close would stop what runs
      raw.release(held[name].raw);
      delete held[name];
      if (i === 1 && held.stream) assert.equal((await events(held.stream)).at(-1).finishReason, 'max_tokens');
    }
  }
});

test('a session does all when its model was closed', async () => {
  const { runtime } = await shared();
  const model = await runtime.load(MODEL);
  const session = model.session({ strategy: 'dca' }).feed('Rain fell');
  model.close();
  await session.prefill();
  const stream = session.fork().stream({ maxTokens: 1, constrain: true });
  stream.allow([5]);
  assert.deepEqual((await events(stream)).filter(({ kind }) => kind === 'token').map(({ token }) => token), [5]);
});

test('the collector drops what was not closed', async () => {
  const { model } = await shared();
  let n = 0;
  const registry = new FinalizationRegistry(() => { ++n; });
  await (async () => { // no local variable is left that has the last one
    for (let i = 0; i < 50; ++i) {
      const stream = model.session().feed('Rain').stream({ maxTokens: 1, signal: new AbortController().signal });
      if (i % 2) await stream.next();
      registry.register(stream);
    }
  })();
  await collected(() => n === 50);
});

test('a stream is collected while it is waited for by nobody', async () => {
  const { model } = await shared();
  let gone = false;
  const registry = new FinalizationRegistry(() => { gone = true; });
  (() => {
    const stream = model.session({ strategy: 'dca', prefillBlock: 16 }).feedTokens(ids(100)).stream({ maxTokens: 100, ignoreEos: true });
    registry.register(stream);
  })();
  await collected(() => gone);
});

test('a stream that comes to its end leaves no file descriptor to the collector', async () => {
  const { model } = await shared();
  const session = model.session({ strategy: 'dca', prefillBlock: 16 });
  const descriptors = () => fs.readdirSync('/proc/self/fd').length;
  let before;
  for (let i = 0; i < 60; ++i) {
    session.reset();
    session.feedTokens(ids(100));
    if (i % 2) await session.prefill();
    else await tokens(session, 2);
    if (i === 1) before = descriptors();
  }
  assert.ok(descriptors() < before + 10, `${descriptors()} descriptors, before ${before}`);
  const stream = session.feedTokens(ids(3)).stream({ maxTokens: 1 });
  await events(stream);
  assert.deepEqual(await stream.next(), { value: undefined, done: true });
  stream.cancel();
  stream.addStop('never');
  stream.close();
  assert.deepEqual(await stream.next(), { value: undefined, done: true });
});

function residentBytes() {
  return Number(fs.readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * 4096;
}

test('a thousand sessions leave nothing', async () => {
  const { model } = await shared();
  let afterWarmUp;
  for (let i = 0; i < 1200; ++i) {
    const session = model.session({ strategy: 'dca' }).feed('Rain fell on the harbour');
    await tokens(session, 1);
    if (i % 50 === 0) global.gc();
    if (i === 200) afterWarmUp = residentBytes();
  }
  global.gc();
  await new Promise(setImmediate);
  assert.ok(sanitized || residentBytes() - afterWarmUp < 16e6, `${residentBytes() - afterWarmUp} bytes more`);
});

test('closing a runtime ends everything', async () => {
  const runtime = new Runtime({ threads: 1 });
  const model = await runtime.load(MODEL);
  const session = model.session().feedTokens(ids(200));
  const stream = session.stream({ maxTokens: 1 });
  await runtime.closeAsync();
  await runtime.closeAsync();
  runtime.close();
  await failure('CLOSED', () => events(stream));
  await failure('CLOSED', () => model.session());
  await failure('CLOSED', () => runtime.devices());
});

test('closing what a promise uses', async () => {
  const runtime = new Runtime({ threads: 1 });
  const model = await runtime.load(MODEL);
  const session = model.session().feed('Rain');
  const saving = session.toBuffer();
  raw.release(session.raw);
  assert.ok((await saving).length > 0);
  await failure('CLOSED', () => session.counts(), 'this Session was closed');
  const closing = model.session();
  const [filled] = await Promise.allSettled([closing.fillRandom(200), closing.closeAsync()]);
  assert.ok(filled.status === 'fulfilled' || filled.reason.status === 'CLOSED');
  runtime.close();
});

test('closing does not wait for the calls that it ends', async () => {
  const own = new Runtime({ threads: 1 });
  const model = await own.load(MODEL);
  const long = Buffer.alloc(20_000_000, 'Rain fell on the harbour. ');
  const feeding = Array.from({ length: 8 }, () => failure('CLOSED', () => model.session().feedAsync(long))); // libuv has 4 threads
  await own.closeAsync();
  await Promise.all(feeding);
});

test('closing what is waited for', async () => {
  const { model } = await shared();
  for (let i = 0; i < 40; ++i) {
    const session = model.session({ strategy: 'dca', prefillBlock: 65_536, prefixReuse: false }).feedTokens(ids(3000 + i));
    const stream = session.stream({ maxTokens: 1 });
    const waiting = failure('CLOSED', () => events(stream));
    await (i % 2 ? stream : session).closeAsync();
    await waiting;
  }
});

test('disposal', { skip: !Symbol.dispose }, async () => {
  const { model } = await shared();
  const session = model.session();
  session[Symbol.dispose]();
  await failure('CLOSED', () => session.counts());
  const other = model.session().feed('Rain');
  const stream = other.stream({ maxTokens: 5 });
  await stream[Symbol.asyncDispose]();
  await other[Symbol.asyncDispose]();
  await failure('CLOSED', () => other.counts());
});

test('progress may fail', async () => withFolder(async (folder) => {
  const { runtime, model } = await shared();
  const mine = new Error('mine');
  const fail = () => { throw mine; };
  await assert.rejects(runtime.load(MODEL, { progress: fail }), mine);
  const session = model.session().feed('Rain');
  await session.prefill();
  await assert.rejects(session.save(path.join(folder, 'x.quire'), { progress: fail }), mine);
  const controller = new AbortController();
  const loading = runtime.load(MODEL, { signal: controller.signal });
  controller.abort(mine);
  assert.equal(await loading.then(() => mine, (error) => error.cause), mine);
}));

test('the log', async () => {
  const seen = [];
  const runtime = new Runtime({ threads: 1, logLevel: 'debug', log: (level, message) => seen.push([level, message]) });
  const model = await runtime.load(MODEL);
  await text(model.session({ strategy: 'auto' }).feed('Rain').generate({ maxTokens: 2 }));
  model.close();
  runtime.close();
  await collected(() => seen.length > 0);
  assert.ok(seen.every(([level, message]) => typeof level === 'string' && message.length > 0));
  assert.throws(() => new Runtime({ log: 5 }), TypeError);
  await failure('INVALID_ARGUMENT', () => new Runtime({ threads: -1, log() {} }));
});

test('log lines are kept until they are taken', async () => {
  const runtime = new Runtime({ threads: 1, keptLogLines: 2, logLevel: 'info' });
  assert.equal(runtime.takeLogLine(), undefined);
  for (let i = 0; i < 3; ++i) (await runtime.load(MODEL)).close();
  for (let i = 0; i < 2; ++i) {
    const { level, text: line, nLost } = runtime.takeLogLine();
    assert.deepEqual([level, Number(nLost)], ['info', 0]);
    assert.match(line, /^loaded /);
  }
  assert.equal(runtime.takeLogLine(), undefined);
  (await runtime.load(MODEL)).close();
  assert.equal(Number(runtime.takeLogLine().nLost), 1);
  runtime.close();
  await failure('INVALID_ARGUMENT', () => new Runtime({ keptLogLines: -1 }));
});

/** What a program prints, in a process of its own: it must end by itself, with 0. */
function printed(script) {
  return execFileSync(process.execPath, ['-e', script], { encoding: 'utf8', timeout: 120_000 });
}

test('a log that throws is an uncaught exception', () => {
  const script = `
    const { Runtime } = require('quire');
    process.on('uncaughtException', (error) => { console.log(error.message); process.exit(); });
    const runtime = new Runtime({ threads: 1, logLevel: 'debug', log() { throw new Error('mine'); } });
    runtime.load(${JSON.stringify(MODEL)}).then((model) => model.session().feed('Rain').prefill());
    setInterval(() => {}, 1000);`;
  assert.equal(printed(script), 'mine\n');
});

const BUSY = `
  const { Runtime } = require('quire');
  (async () => {
    const runtime = new Runtime({ threads: 2, logLevel: 'debug', log() {} });
    const model = await runtime.load(${JSON.stringify(MODEL)});
    const session = model.session({ strategy: 'dca', prefillBlock: 16 }).feedTokens(new Int32Array(50000).fill(5));
    const stream = session.stream({ maxTokens: 100 });
    await stream.next();
    runtime.load(${JSON.stringify(MODEL)}, { progress() {} });`;

test('an exit in the middle', () => {
  for (let i = 0; i < 3; ++i) assert.equal(printed(`${BUSY} stream.next(); console.log('leaving'); process.exit(); })();`), 'leaving\n');
});

test('what is not waited for keeps no process alive', () => {
  assert.equal(printed(`${BUSY} console.log('leaving'); })();`), 'leaving\n');
});

test('workers', async () => {
  const { model } = await shared();
  const mine = await tokens(model.session({ strategy: 'dca' }).feed('Rain fell'), 8);
  const work = `
    const { parentPort } = require('node:worker_threads');
    const { Runtime } = require('quire');
    (async () => {
      const model = await new Runtime({ threads: 1 }).load(${JSON.stringify(MODEL)});
      const found = [];
      for await (const event of model.session({ strategy: 'dca' }).feed('Rain fell').stream({ maxTokens: 8, ignoreEos: true })) {
        if (event.kind === 'token') found.push(event.token);
      }
      parentPort.postMessage(found);
    })();`;
  const answers = Array.from({ length: 3 }, () => new Promise((resolve, reject) => {
    const worker = new Worker(work, { eval: true }).on('error', reject);
    worker.on('message', (found) => worker.on('exit', () => resolve(found)));
  }));
  assert.deepEqual(await Promise.all(answers), [mine, mine, mine]);
});

test('workers that are ended in the middle', async () => {
  for (let i = 0; i < 5; ++i) {
    const worker = new Worker(`${BUSY} stream.next(); require('node:worker_threads').parentPort.postMessage(0); })();`, { eval: true });
    await new Promise((resolve) => { worker.on('message', resolve); });
    await worker.terminate();
  }
});

test('a worker that alone has loaded the module', () => {
  const script = `
    const { Worker } = require('node:worker_threads');
    const busy = ${JSON.stringify(`${BUSY} stream.next(); require('node:worker_threads').parentPort.postMessage(0); })();`)};
    (async () => {
      for (let i = 0; i < 5; ++i) {
        const worker = new Worker(busy, { eval: true });
        await new Promise((resolve) => { worker.on('message', resolve); });
        await worker.terminate();
      }
      console.log('left');
    })();`;
  assert.equal(printed(script), 'left\n');
});

test('a worker that ends while it closes', () => {
  const closing = `
    const { Runtime } = require('quire');
    const runtimes = Array.from({ length: 32 }, () => new Runtime({ threads: 4 }));
    for (const runtime of runtimes) runtime.closeAsync();
    process.exit();`;
  const script = `
    const fs = require('node:fs');
    const { once } = require('node:events');
    const { Worker } = require('node:worker_threads');
    const threads = () => fs.readdirSync('/proc/self/task').length;
    (async () => {
      for (let i = 0; i < 4; ++i) {
        const before = threads();
        await once(new Worker(${JSON.stringify(closing)}, { eval: true }), 'exit');
        while (threads() > before) await new Promise(setImmediate); // until those that close have ended, too
      }
      console.log('left');
    })();`;
  assert.equal(printed(script), 'left\n');
});
