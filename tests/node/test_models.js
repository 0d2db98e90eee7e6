'use strict';

// Models: what they are made of, tokenizers, chat templates, adapters; and what needs none of their weights.

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const { pathToFileURL } = require('node:url');
const quire = require('quire');
const raw = require('quire/lib/raw');
const { constants } = require('quire/lib/interface');
const { ADAPTERS, MODEL, failure, shared, text, tokens, withFolder } = require('./helper');

test('info and metadata', async () => {
  const { model } = await shared();
  const { nLayers, vocabSize, trainLen, weightType } = model.info();
  assert.deepEqual([nLayers, vocabSize, trainLen, weightType], [2, 320, 256, 'f32']);
  assert.equal(model.metadata('architecture'), 'LlamaForCausalLM');
  await failure('NOT_FOUND', () => model.metadata('colour'));
  assert.match(quire.libraryVersion(), /^\d+\.\d+\.\d+$/);
  assert.ok(raw.getVersion() >= constants.VERSION);
});

test('devices', async () => {
  const { runtime } = await shared();
  const { name, kind, usable } = runtime.devices().at(-1);
  assert.deepEqual([name, kind, usable], ['cpu', 'cpu', true]);
  await failure('INVALID_ARGUMENT', () => runtime.load(MODEL, { device: 'gpu' }));
});

test('quantize', async () => withFolder(async (folder) => {
  const { runtime } = await shared();
  const out = path.join(folder, 'model.gguf');
  let seen;
  await quire.quantize(pathToFileURL(MODEL), out, { recipe: 'q8_0', threads: 1, progress: (...numbers) => { seen = numbers; } });
  assert.equal(seen[0], seen[1]);
  assert.ok(quire.quantizations().includes('q4_k_m'));
  assert.equal((await quire.describeFiles(out)).format, 'gguf');
  const model = await runtime.load(pathToFileURL(out), { activations: 'f32', load: 'read' });
  assert.equal(model.info().weightType, 'q8_0');
  await failure('INVALID_ARGUMENT', () => model.session({ kvType: 'q8_0' }));
  await failure('INVALID_ARGUMENT', () => quire.quantize(MODEL, out, { recipe: 'q1' }), 'q1');
  model.close();
  (await runtime.load(out, { packedDirectory: pathToFileURL(path.join(folder, 'packed')) })).close();
  assert.deepEqual(fs.readdirSync(path.join(folder, 'packed')).map(path.extname), ['.packed']);
}));

test('tokenizer', async () => {
  const { runtime, model } = await shared();
  const tokenizer = model.tokenizer();
  const said = 'Rain fell on the harbour: 雨';
  const found = tokenizer.encode(said);
  assert.deepEqual([found[0], tokenizer.decode(found), tokenizer.vocabSize], [tokenizer.bos, said, 320]);
  assert.ok(tokenizer.isEos(2) && !tokenizer.isEos(5));
  assert.equal(Buffer.concat([...found].map((id) => tokenizer.tokenBytes(id))).toString().trim(), said);
  assert.deepEqual(tokenizer.encode(said, { bos: false }), found.slice(1));
  assert.notDeepEqual(tokenizer.encode(said, { continued: true }), found.slice(1));
  assert.deepEqual(tokenizer.encode(Buffer.from(said)), found);
  assert.deepEqual((await runtime.loadTokenizer(path.join(MODEL, 'tokenizer.model'))).encode(said), found);
  assert.deepEqual([tokenizer.decode([1], { special: true }), tokenizer.decode([1])], ['<s>', '']);
  assert.equal((await failure('INVALID_TOKEN', () => tokenizer.decode([5, 320]))).offset, 1);
});

test('chat', async () => {
  const { model } = await shared();
  const tokenizer = model.tokenizer();
  const messages = [['system', 'Be brief.'], { role: 'user', text: 'one</s>' }];
  assert.ok(quire.chatTemplates().some(({ name }) => name === 'llama2'));
  await failure('NOT_FOUND', () => tokenizer.chatTemplate());
  assert.equal(tokenizer.renderChat(messages, { template: 'llama2' }), '<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]');
  const rendered = (...list) => tokenizer.renderChat(list, { template: 'chatml' });
  assert.equal(rendered({ role: 'user', content: 'one' }), rendered(['user', 'one']));
  for (const wrong of [{ role: 'user' }, { content: 'one' }, ['user'], 'one', { role: 'user', content: null }, { role: 'user', text: 'one', name: 'Ann' }]) {
    assert.throws(() => rendered(wrong), TypeError, JSON.stringify(wrong));
  }
  assert.ok(tokenizer.renderChat(messages, { template: 'llama3.1', date: '2025-03-09' }).includes('Today Date: 09 Mar 2025'));
  assert.ok(tokenizer.renderChat(messages, { template: 'qwen3', thinking: false }).endsWith('</think>\n\n'));
  assert.ok(tokenizer.renderChat(messages, { template: 'qwen3', answer: false }).endsWith('<|im_end|>\n'));
  const n = tokenizer.encodeChat(messages, { template: 'llama2' }).length;
  const session = model.session().feedMessages(messages, { template: 'llama2' });
  assert.equal(session.counts().nPending, n);
  await text(session.generate({ maxTokens: 3, ignoreEos: true }));
  session.feedMessages([['user', 'three']]);
  assert.equal(session.counts().nTokens, n + 3);
});

async function answer(model, adapters) {
  const session = model.session({ strategy: 'full + base(theta=10000)', kvType: 'f32', adapters });
  return tokens(session.feed('Rain fell on the harbour all night.'), 24);
}

test('adapters', async () => {
  const { runtime, model } = await shared();
  let seen;
  const adapter = await model.loadAdapter(path.join(ADAPTERS, 'attention'), { progress: (...numbers) => { seen = numbers; } });
  assert.equal(seen[0], seen[1]);
  const { rank, replacesEmbedding, changesQueriesOrKeys, replacesNorms } = adapter.info();
  assert.deepEqual([rank, replacesEmbedding, changesQueriesOrKeys, replacesNorms], [4, true, true, false]);
  assert.deepEqual([adapter.metadata('base_model'), adapter.metadata('identity').length], ['text_256', 32]);
  const answers = [await answer(model), await answer(model, [adapter]), await answer(model, [[adapter, 2]])];
  assert.equal(new Set(answers.map(String)).size, 3);
  const merged = await runtime.load(MODEL, { merge: [[path.join(ADAPTERS, 'attention'), 2]] });
  assert.deepEqual(await answer(merged), answers[2]);
  merged.close();
  await failure('INVALID_ARGUMENT', () => model.session({ adapters: [[adapter, 0]] }), 'scale');
});

test('without weights', async () => {
  const { runtime, model } = await shared();
  await runtime.check(MODEL, { strategy: 'dca', expectedTokens: 5000 });
  await failure('OVERFLOW', () => runtime.check(MODEL, { strategy: 'full', expectedTokens: 5000 }));
  await failure('OVERFLOW', () => model.check({ strategy: 'full', expectedTokens: 5000 }));
  assert.equal(await runtime.describeStrategy(MODEL, { expectedTokens: 5000 }), model.describeStrategy({ expectedTokens: 5000 }));
  const plan = await runtime.planMemory(MODEL, 1000, { strategy: 'dca', model: { weightType: 'f32' } });
  assert.ok(plan.kvHostBytes > 0 && plan.kvDeviceBytes === 0);
  assert.equal(plan.reach, Infinity);
  assert.equal((await runtime.planMemory(MODEL, 100, { strategy: 'full' })).reach, 256);
  assert.ok((await model.estimate(1000, { strategy: 'dca' })).prefillNs > 0);
});

test('strategies', () => {
  const canonical = quire.describeStrategy('dca', { trainLen: 4096 });
  assert.ok(canonical.includes('chunk=3072'));
  assert.equal(quire.describeStrategy(canonical, { trainLen: 4096 }), canonical);
  assert.ok(quire.strategies({ trainLen: 4096 }).length > 20);
  const matrix = quire.strategyPositions('dca(chunk=6, cap=9)', { trainLen: 10, nKeys: 12 });
  assert.deepEqual([...matrix.at(-1)], [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]);
  assert.ok(Number.isNaN(matrix[0][1]));
  assert.throws(() => quire.strategyPositions('full', { trainLen: 16, nKeys: 4, keys: 'words' }), RangeError);
});
