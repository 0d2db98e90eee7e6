'use strict';

// That the binding has every function of the header, and that the tests before called each.

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');
const raw = require('quire/lib/raw');
const { constants } = require('quire/lib/interface');
const { SOURCE, called } = require('./helper');

const header = JSON.parse(fs.readFileSync(path.join(SOURCE, 'bindings/interface.json'), 'utf8'));
const camel = (name) => name.replace(/^quire_/, '').replace(/_(\w)/g, (_, letter) => letter.toUpperCase());

// The module calls these by itself: for each handle, and for each event.
const inside = (name) => /_(retain|release)$/.test(name) || name === 'quire_stream_next';

test('structs that set their defaults', () => {
  for (const { name } of header.functions.filter((f) => f.name.endsWith('_init'))) {
    const made = raw[camel(name)]();
    assert.ok(Object.entries(made).every(([, value]) => !value || value.length === 0), name);
  }
});

test('every function of the header is called', () => {
  const folder = path.join(SOURCE, 'bindings/node/src');
  const sources = fs.readdirSync(folder).map((name) => fs.readFileSync(path.join(folder, name), 'utf8'));
  const code = sources.join('\n').replace(/\/\*[^]*?\*\//g, '');
  const names = header.functions.map((f) => f.name);
  assert.deepEqual(names.filter((name) => !new RegExp(`\\b${name}\\(`).test(code)), []);
  assert.deepEqual(names.filter((name) => !inside(name) && !called.has(camel(name))), []);
});

test('every constant is there', () => {
  assert.deepEqual(constants, Object.fromEntries(header.constants.map((c) => [c.name.replace('QUIRE_', ''), c.value])));
});
