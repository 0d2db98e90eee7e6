'use strict';

// Runs the examples on the embedded model: an answer, one that Ctrl-C ends, and two at once.

const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const { EMBEDDED, SOURCE, withFolder } = require('./helper');

const TEXT = 'The pass key is 4217. Remember it. 4217 is the pass key. The grass is green. The sky is blue.';

/** Runs a program; `started` is called with the process when it first writes to stderr. */
function run(program, args, { input = '', started } = {}) {
  const child = spawn(process.execPath, [program, ...args]);
  const found = { out: '', err: '' };
  child.stdout.on('data', (data) => { found.out += data; });
  child.stderr.on('data', (data) => { found.err += data; });
  if (started) child.stderr.once('data', () => started(child));
  child.stdin.end(input);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ ...found, code }));
  });
}

function example(name, folder, text, ...args) {
  const file = path.join(folder, 'text');
  fs.writeFileSync(file, text);
  return [path.join(SOURCE, 'examples/node', `${name}.js`), [EMBEDDED, file, ...args]];
}

test('ask', async () => withFolder(async (folder) => {
  const { out, err, code } = await run(...example('ask', folder, TEXT, ' What is the pass key? The pass key is', '8'));
  assert.equal(code, 0, err);
  assert.match(out, /^ 4217[^]*\(max_tokens, \d+ tokens\)\n$/);
  assert.match(err, /tokens read/);
}));

test('Ctrl-C ends the answer alone', async () => withFolder(async (folder) => {
  // Reading this would take minutes: it is interrupted once it has begun.
  const started = (child) => child.kill('SIGINT');
  const { out, err, code } = await run(...example('ask', folder, TEXT.repeat(20_000), 'Go on.'), { started });
  assert.equal(code, 0, err);
  assert.match(out, /^\(cancelled, \d+ tokens\)$/m);
}));

test('forks', async () => withFolder(async (folder) => {
  const { out, err, code } = await run(...example('forks', folder, TEXT, ' What is the pass key? The pass key is', ' The grass is', '6'));
  assert.equal(code, 0, err);
  assert.match(out, /^ What is the pass key\? The pass key is\n 4217[^]*^ The grass is\n/m);
}));

test('the program of README.md', async () => withFolder(async (folder) => {
  const [, code] = fs.readFileSync(path.join(SOURCE, 'bindings/node/README.md'), 'utf8').match(/```js\n([^]*?)```/);
  const program = path.join(folder, 'program.js');
  const book = path.join(folder, 'book.txt');
  fs.writeFileSync(book, TEXT);
  fs.writeFileSync(program, code.replace('path/to/model', EMBEDDED).replace('book.txt', book).replace('maxTokens: 200', 'maxTokens: 8'));
  const { out, err, code: status } = await run(program, []);
  assert.deepEqual([status, err], [0, '']);
  assert.ok(out.length > 0);
}));

test('the program for the comparison with C', async () => {
  const { out, err, code } = await run(path.join(__dirname, 'overhead.js'), [EMBEDDED, '8'], { input: '\n\n' });
  assert.equal(code, 0, err);
  const [ready, ...timed] = out.trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual([ready.ready, timed.map(({ tokens }) => tokens)], [true, [8, 8]]);
});
