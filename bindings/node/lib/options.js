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

/** Refuses what is left of the options of a call that has taken those that it knows. */
function refuse(others) {
  const [name] = Object.keys(others);
  if (name !== undefined) throw new TypeError(`there is no option ${name}`);
}

/** A copy in which options that have a shorter name than their field of quire.h are under the field's name. */
function renamed(given, names) {
  const fields = { ...given };
  for (const [short, name] of Object.entries(names)) {
    if (fields[short] !== undefined) fields[name] = fields[short];
    delete fields[short];
  }
  return fields;
}

function runtime(given) {
  const { logLevel, ...others } = renamed(given, { threads: 'nThreads', ioThreads: 'nIoThreads', keptLogLines: 'nKeptLogLines' });
  return { ...others, logLevel: number('logLevel', logLevel, 'logLevel') };
}

function model(given) {
  const { load, weightType, activationType, merge, beaconPath, packedDirectory, ...others } =
    renamed(given, { activations: 'activationType', beacon: 'beaconPath' });
  return {
    ...others, load: number('load', load), weightType: number('type', weightType, 'weightType'), beaconPath: path(beaconPath),
    activationType: number('type', activationType, 'activations'), merge: scaled(merge, 'path'),
    packedDirectory: path(packedDirectory),
  };
}

function session({
  kvType, kvOldType, oldAfter, overflow, adapters, kvFileDirectory, prefixReuse = true, keepBehindWindows = false, ...others
} = {}) {
  if ('flags' in others) refuse({ flags: others.flags });
  const flags = (boolean('prefixReuse', prefixReuse) ? 0 : C.SESSION_NO_PREFIX_REUSE) |
    (boolean('keepBehindWindows', keepBehindWindows) ? C.SESSION_KEEP_BEHIND_WINDOWS : 0);
  return {
    ...others, kvType: number('type', kvType, 'kvType'), kvOldType: number('type', kvOldType, 'kvOldType'),
    oldAfter: oldAfter === 0 ? C.OLD_AT_ONCE : oldAfter, overflow: number('overflow', overflow), adapters: scaled(adapters, 'adapter'),
    kvFileDirectory: path(kvFileDirectory), flags,
  };
}

function stream(given) {
  const { stopStrings, samplers, logitBias, ...others } =
    renamed(given, { stop: 'stopStrings', topLogprobs: 'nTopLogprobs', deadline: 'deadlineMs' });
  if ('flags' in others) refuse({ flags: others.flags });
  let bits = 0;
  for (const [name, mask] of Object.entries(STREAM_FLAGS)) {
    bits |= bit(name, others[name] ?? false, mask);
    delete others[name];
  }
  return {
    maxUndelivered: bits & C.STREAM_CONSTRAIN ? 1 : AHEAD, ...others, flags: bits,
    stopStrings: typeof stopStrings === 'string' ? [stopStrings] : stopStrings,
    samplers: samplers?.map(({ kind, ...fields }) => ({ ...fields, kind: number('sampler', kind) })),
    logitBias: logitBias && [...logitBias].map(([token, bias]) => ({ token, bias })),
  };
}

function textFlags({ parseSpecial = false, bos = true, ...others }) {
  refuse(others);
  return bit('parseSpecial', parseSpecial, C.TEXT_PARSE_SPECIAL) | (boolean('bos', bos) ? 0 : C.TEXT_NO_BOS);
}

/** A message given as [role, text], { role, text } or { role, content }. */
function message(given) {
  const fields = Array.isArray(given) ? { role: given[0], text: given[1] } : renamed(given, { content: 'text' });
  for (const name of ['role', 'text']) if (fields[name] === undefined || fields[name] === null) throw new TypeError(`messages: expected a ${name}`);
  return fields;
}

function chat(messages, { templateName, template = templateName, date, answer = true, thinking = true, ...others } = {}) {
  refuse(others);
  const flags = (boolean('answer', answer) ? 0 : C.CHAT_NO_ANSWER) | (boolean('thinking', thinking) ? 0 : C.CHAT_NO_THINKING);
  return [messages.map(message), { flags, templateName: template, date }];
}

/** Labels as [begin, end, id] or { begin, end, id }, in bytes of the text. */
function labels(given) {
  return given?.map((label) => (Array.isArray(label) ? { begin: label[0], end: label[1], id: label[2] } : label));
}

module.exports = { bit, refuse, runtime, model, session, stream, textFlags, chat, labels, path, signal };
