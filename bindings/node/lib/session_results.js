'use strict';

// What can be asked of a session; Session has these. Tokens and bytes are counted from 0.

const raw = require('./raw');
const { number, unlimited } = require('./names');
const { refuse } = require('./options');

function rows(values, n) {
  const length = values.length / n;
  return Array.from({ length: n }, (_, row) => values.subarray(row * length, (row + 1) * length));
}

module.exports = {
  /** { nTokens: read, nPending: fed and waiting } */
  counts() {
    const [nTokens, nPending] = raw.sessionGetTokenCounts(this.raw);
    return { nTokens, nPending };
  },

  /** The ids of all tokens, pending ones last: an Int32Array. */
  tokens() {
    return raw.sessionGetTokens(this.raw);
  },

  /** Raw logits: nRows Float32Arrays of vocabSize, the first one computed after token firstToken; -1: the last one. */
  logits(firstToken = -1, nRows = 1) {
    return rows(raw.sessionGetLogits(this.raw, firstToken, nRows), nRows);
  },

  /** Embeddings: last hidden states, nRows Float32Arrays of hiddenSize, of a stream with keepHidden. */
  hiddenStates(firstToken, nRows = 1) {
    return rows(raw.sessionGetHiddenStates(this.raw, firstToken, nRows), nRows);
  },

  /** log p of n tokens, of a stream with score: a Float32Array; NaN where it is not known. */
  scores(firstToken, n) {
    return raw.sessionGetScores(this.raw, firstToken, n);
  },

  /** Where the last answer looked, by label: { id, firstToken, nTokens, share } each. */
  labelAttention() {
    return raw.sessionGetLabelAttention(this.raw);
  },

  /**
   * What the last answer, or some of its tokens, looked at most, of a stream with cite: { firstToken, nTokens, feed, begin, end, label,
   * labelId, share } each.
   */
  passages({ firstToken = -1, nTokens = 0, most = 5, ...others } = {}) {
    refuse(others);
    return raw.sessionGetPassages(this.raw, firstToken, nTokens, most);
  },

  /** The same by label. */
  labelShares({ firstToken = -1, nTokens = 0, ...others } = {}) {
    refuse(others);
    return raw.sessionGetLabelShares(this.raw, firstToken, nTokens);
  },

  /** quire_session_stats; a reach without limit is Infinity. */
  stats() {
    const stats = raw.sessionGetStats(this.raw);
    return { ...stats, reach: unlimited(stats.reach) };
  },

  /** quire_tier_stats of 'device', 'host', 'compressed', 'file' or 'snapshot'. */
  tier(name) {
    return raw.sessionGetTierStats(this.raw, number('tier', name));
  },

  /** quire_session_probes: what tests of cancelling look at. */
  probes() {
    return raw.sessionGetProbes(this.raw);
  },

  /** The strategy in canonical form. */
  strategy() {
    return raw.sessionGetStrategy(this.raw);
  },

  /** Names all that keys and values depend on beside the tokens. */
  fingerprint() {
    return raw.sessionGetFingerprint(this.raw);
  },
};
