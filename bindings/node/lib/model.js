'use strict';

const raw = require('./raw');
const options = require('./options');
const { Handle } = require('./handle');
const { Session } = require('./session');
const { Tokenizer } = require('./tokenizer');
const { constants: C } = require('./interface');
const { longCall } = require('./long_call');
const { word } = require('./names');

/** Weights, which any number of sessions share. */
class Model extends Handle {
  /** Runtime.load makes models. */
  constructor(handle) {
    super(handle);
    /** Its sessions ask for it, also when it was closed. */
    Object.defineProperty(this, 'vocabSize', { value: raw.modelGetInfo(handle).vocabSize });
  }

  /** quire_model_info; weightType as a word. */
  info() {
    const info = raw.modelGetInfo(this.raw);
    return { ...info, weightType: word('type', info.weightType) };
  }

  /** Metadata by key: 'architecture', 'device', 'identity', 'config.json' and others (quire_model_get_metadata). */
  metadata(key) {
    return raw.modelGetMetadata(this.raw, key);
  }

  tokenizer() {
    return new Tokenizer(raw.modelGetTokenizer(this.raw));
  }

  /**
   * An empty session. Options: strategy ('full' where not given), kvType, kvOldType, oldAfter (tokens), overflow, expectedTokens,
   * prefillBlock, the budgets of quire_session_options, kvFileDirectory, prefixReuse (false: takes no part), keepBehindWindows (true: layers
   * with a window drop nothing) and adapters (each alone or as [adapter, scale]).
   */
  session(given) {
    return new Session(raw.sessionCreate(this.raw, options.session(given)), this);
  }

  /**
   * A session that goes on where one was saved, in a file or in a Uint8Array, which is copied. Options as of session; the saved session's
   * where not given.
   */
  async loadSession(from, given) {
    const wanted = options.session(given);
    const handle = from instanceof Uint8Array
      ? raw.async.sessionLoadFrom(this.raw, { bytes: from }, wanted)
      : raw.async.sessionLoad(this.raw, options.path(from), wanted);
    return new Session(await handle, this);
  }

  /** Throws what session would throw, and makes nothing. */
  check(given) {
    raw.modelCheckSession(this.raw, options.session(given));
  }

  /** The canonical strategy that session would have. */
  describeStrategy({ strategy = 'auto', ...others } = {}) {
    return raw.modelDescribeStrategy(this.raw, options.session({ ...others, strategy }));
  }

  /** How long a session would take to read nTokens and to answer (quire_rate_estimate). */
  async estimate(nTokens, given) {
    return raw.async.modelEstimateRates(this.raw, options.session(given), nTokens);
  }

  /** A PEFT LoRA directory for sessions of this model. Options: progress, signal. */
  async loadAdapter(path, watched = {}) {
    return new Adapter(await longCall(watched, (more) => raw.async.adapterLoad(this.raw, options.path(path), more)));
  }
}

/** A LoRA adapter of one model. Sessions keep those that they use. */
class Adapter extends Handle {
  /** quire_adapter_info, each flag as true or false. */
  info() {
    const { flags, ...info } = raw.adapterGetInfo(this.raw);
    return {
      ...info, replacesEmbedding: (flags & C.ADAPTER_REPLACES_EMBEDDING) !== 0, replacesLmHead: (flags & C.ADAPTER_REPLACES_LM_HEAD) !== 0,
      replacesNorms: (flags & C.ADAPTER_REPLACES_NORMS) !== 0, changesQueriesOrKeys: (flags & C.ADAPTER_CHANGES_QUERIES_OR_KEYS) !== 0,
    };
  }

  /** 'identity' or 'base_model'. */
  metadata(key) {
    return raw.adapterGetMetadata(this.raw, key);
  }
}

module.exports = { Model, Adapter };
