'use strict';

// Options as users give them, to objects as the raw layer takes them: words become numbers, and true becomes a bit of flags.

const { fileURLToPath } = require('node:url');
const { constants: C } = require('./interface');
const { number } = require('./names');

const STREAM_FLAGS = {
  score: C.STREAM_SCORE, keepLogits: C.STREAM_KEEP_LOGITS, ignoreEos: C.STREAM_IGNORE_EOS, constrain: C.STREAM_CONSTRAIN,
  keepHidden: C.STREAM_KEEP_HIDDEN, cite: C.STREAM_CITE,
};

// So many tokens are generated ahead while the event loop is busy with other things. They are the same for any number.
const AHEAD = 32;

function boolean(name, value) {
  if (typeof value !== 'boolean') throw new TypeError(`${name}: expected true or false`);
  return value;
}

/** The bit where an option is true. */
function bit(name, value, mask) {
  return boolean(name, value) ? mask : 0;
}

/** A string, or a file: URL. */
function path(value) {
  return value instanceof URL ? fileURLToPath(value) : value;
}

/** An AbortSignal, or nothing. */
function signal(value) {
  if (value !== undefined && value !== null && typeof value.addEventListener !== 'function') throw new TypeError('signal: expected an AbortSignal');
  return value;
}

function scaled(items, name) {
  return items?.map((item) => {
    const [what, scale] = Array.isArray(item) ? item : [item, 1];
    return { [name]: name === 'path' ? path(what) : what.raw, scale };
  });
}

function runtime({ threads, ioThreads, keptLogLines, logLevel, log, ...others }) {
  return { ...others, nThreads: threads, nIoThreads: ioThreads, nKeptLogLines: keptLogLines, logLevel: number('logLevel', logLevel, 'logLevel'), log };
}

function model({ load, weightType, activations, merge, beacon, packedDirectory, ...others } = {}) {
  return {
    ...others, load: number('load', load), weightType: number('type', weightType, 'weightType'), beaconPath: path(beacon),
    activationType: number('type', activations, 'activations'), merge: scaled(merge, 'path'),
    packedDirectory: path(packedDirectory),
  };
}

function session({
  kvType, kvOldType, oldAfter, overflow, adapters, kvFileDirectory, prefixReuse = true, keepBehindWindows = false, ...others
} = {}) {
  const flags = (boolean('prefixReuse', prefixReuse) ? 0 : C.SESSION_NO_PREFIX_REUSE) |
    (boolean('keepBehindWindows', keepBehindWindows) ? C.SESSION_KEEP_BEHIND_WINDOWS : 0);
  return {
    ...others, kvType: number('type', kvType, 'kvType'), kvOldType: number('type', kvOldType, 'kvOldType'),
    oldAfter: oldAfter === 0 ? C.OLD_AT_ONCE : oldAfter, overflow: number('overflow', overflow), adapters: scaled(adapters, 'adapter'),
    kvFileDirectory: path(kvFileDirectory), flags,
  };
}

function stream({ stop, topLogprobs, samplers, logitBias, deadline, ...others } = {}) {
  let bits = 0;
  for (const [name, mask] of Object.entries(STREAM_FLAGS)) {
    bits |= bit(name, others[name] ?? false, mask);
    delete others[name];
  }
  return {
    maxUndelivered: bits & C.STREAM_CONSTRAIN ? 1 : AHEAD, ...others, flags: bits, nTopLogprobs: topLogprobs, deadlineMs: deadline,
    stopStrings: typeof stop === 'string' ? [stop] : stop,
    samplers: samplers?.map(({ kind, ...fields }) => ({ ...fields, kind: number('sampler', kind) })),
    logitBias: logitBias && [...logitBias].map(([token, bias]) => ({ token, bias })),
  };
}

function textFlags({ parseSpecial = false, bos = true }) {
  return bit('parseSpecial', parseSpecial, C.TEXT_PARSE_SPECIAL) | (boolean('bos', bos) ? 0 : C.TEXT_NO_BOS);
}

/** Messages as [role, text] or { role, text }. */
function chat(messages, { template, date, answer = true, thinking = true } = {}) {
  const list = messages.map((message) => {
    const [role, text] = Array.isArray(message) ? message : [message.role, message.text];
    return { role, text };
  });
  const flags = (boolean('answer', answer) ? 0 : C.CHAT_NO_ANSWER) | (boolean('thinking', thinking) ? 0 : C.CHAT_NO_THINKING);
  return [list, { flags, templateName: template, date }];
}

/** Labels as [begin, end, id] or { begin, end, id }, in bytes of the text. */
function labels(given) {
  return given?.map((label) => (Array.isArray(label) ? { begin: label[0], end: label[1], id: label[2] } : label));
}

module.exports = { bit, runtime, model, session, stream, textFlags, chat, labels, path, signal };
