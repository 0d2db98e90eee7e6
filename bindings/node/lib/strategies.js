'use strict';

const raw = require('./raw');
const options = require('./options');
const { longCall } = require('./long_call');
const { number } = require('./names');

/** A strategy expression in canonical form, every default written out. */
function describeStrategy(strategy, given) {
  return raw.strategyDescribe({ ...given, strategy });
}

/** What expressions may be made of, for settings dialogs (quire_strategy_get_list). */
function strategies(given) {
  return JSON.parse(raw.strategyGetList({ ...given })).terms;
}

/**
 * The relative-position matrix, as rows of Float64Array; NaN: invisible. nQueries: all from firstQuery on where not given; queries, keys:
 * 'text' or 'condensed'.
 */
function strategyPositions(strategy, given) {
  const { nKeys, firstQuery = 0, nQueries = nKeys - firstQuery, head, queries, keys, ...others } = given;
  const matrix = raw.strategyGetPositions({ ...others, strategy }, {
    head, firstQuery, nQueries, nKeys, queryKind: number('kv', queries, 'queries'), keyKind: number('kv', keys, 'keys'),
  });
  return Array.from({ length: nQueries }, (_, row) => matrix.subarray(row * nKeys, (row + 1) * nKeys));
}

/** The known chat templates: { name, description } each. */
function chatTemplates() {
  return JSON.parse(raw.chatGetList()).templates;
}

/** What the files of a model hold, without loading it (quire_model_describe_files). */
async function describeFiles(path) {
  return JSON.parse(await raw.async.modelDescribeFiles(options.path(path)));
}

/** The names of the recipes that quantize knows. */
function quantizations() {
  return raw.getQuantizations().split(', ');
}

/** Writes a model as a GGUF file. Options: recipe, threads, progress, signal. */
function quantize(path, out, { recipe, nThreads, threads = nThreads, ...watched } = {}) {
  return longCall(watched, (more) => raw.async.modelQuantize(options.path(path), options.path(out), { recipe, nThreads: threads, ...more }));
}

/** The version of the loaded library, '0.1.0'. */
function libraryVersion() {
  return raw.getVersionString();
}

module.exports = {
  describeStrategy, strategies, strategyPositions, chatTemplates, describeFiles, quantizations, quantize, libraryVersion,
};
