'use strict';

// The conformance suite of all bindings (tests/conformance).

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const { QuireError, Runtime } = require('quire');
const { agree, runStep } = require('./conformance');
const { SOURCE, withFolder } = require('./helper');

const FOLDER = path.join(SOURCE, 'tests/conformance');
const files = fs.readdirSync(FOLDER).filter((name) => name.endsWith('.json'));

async function check(context, step, name) {
  const what = `${name}: ${JSON.stringify(step)}`;
  let result;
  try {
    result = await runStep(context, step);
  } catch (error) {
    if (!(error instanceof QuireError) || !step.error) throw new Error(what, { cause: error });
    assert.equal(error.status, step.error.status, what);
    if ('offset' in step.error) assert.equal(error.offset ?? -1, step.error.offset, what);
    assert.ok(error.message.includes(step.error.message ?? ''), what);
    return;
  }
  assert.ok(!step.error, `${what}: the call succeeded`);
  for (const [key, expected] of Object.entries(step.expect ?? {})) {
    assert.ok(key in result && agree(result[key], expected), `${what}: ${key} is ${JSON.stringify(result[key])}`);
  }
}

let nCases = 0;
for (const file of files) {
  const { model: modelPath, cases } = JSON.parse(fs.readFileSync(path.join(FOLDER, file), 'utf8'));
  nCases += cases.length;
  test(`conformance: ${file}`, async () => {
    const runtime = new Runtime({ threads: 1 });
    const model = await runtime.load(path.join(SOURCE, modelPath));
    for (const { name, steps } of cases) {
      await withFolder(async (folder) => {
        const context = { model, folder, sessions: new Map() };
        for (const step of steps) await check(context, step, name);
        for (const session of context.sessions.values()) session.close();
      });
    }
    await runtime.closeAsync();
  });
}
assert.ok(nCases > 20, 'few cases');
