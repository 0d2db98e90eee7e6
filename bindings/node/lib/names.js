'use strict';

// The words that stand for constants of quire.h in options and results: names without their group's prefix, in lower case ('bf16' is
// QUIRE_TYPE_BF16).

const { constants, flags } = require('./interface');

const PREFIXES = {
  type: 'TYPE_', load: 'LOAD_', overflow: 'OVERFLOW_', logLevel: 'LOG_', device: 'DEVICE_', tier: 'TIER_', sampler: 'SAMPLER_',
  event: 'EVENT_', finish: 'FINISH_', reuse: 'EDIT_', reuseMiss: 'REUSE_', kv: 'KV_', warning: 'WARNING_', notice: 'NOTICE_',
};

const numbers = {};
const words = {};
for (const [group, prefix] of Object.entries(PREFIXES)) {
  const named = Object.entries(constants).filter(([name]) => name.startsWith(prefix) && !flags.has(name));
  numbers[group] = new Map(named.map(([name, value]) => [name.slice(prefix.length).toLowerCase(), value]));
  words[group] = new Map([...numbers[group]].map(([name, value]) => [value, name]));
}

/** The number of a word; undefined for undefined. */
function number(group, word, option = group) {
  if (word === undefined || word === null) return undefined;
  const found = numbers[group].get(word);
  if (found === undefined) throw new RangeError(`${option} must be one of ${[...numbers[group].keys()].join(', ')}, not ${String(word)}`);
  return found;
}

/** The word of a number; the number itself where this version does not know it. */
function word(group, value) {
  return words[group].get(value) ?? value;
}

/** A reach; INT64_MAX means that there is no limit. */
function unlimited(value) {
  return typeof value === 'bigint' ? Infinity : value;
}

module.exports = { number, word, unlimited };
