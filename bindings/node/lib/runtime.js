'use strict';

const raw = require('./raw');
const options = require('./options');
const { Handle } = require('./handle');
const { Model } = require('./model');
const { Tokenizer } = require('./tokenizer');
const { constants: C } = require('./interface');
const { longCall } = require('./long_call');
const { unlimited, word } = require('./names');

/** What a function of the log throws goes to 'uncaughtException', as from any other event. */
function guarded(log) {
  if (typeof log !== 'function') return log; // nothing, or refused by the raw layer
  return (level, message) => {
    try {
      log(word('logLevel', level), message);
    } catch (error) {
      process.nextTick(() => { throw error; });
    }
  };
}

/** Threads and memory; everything else hangs off one. */
class Runtime extends Handle {
  /**
   * Options: threads (0: one for each usable core), ioThreads, log (called with a level and a message), logLevel ('error', 'warning', 'info',
   * 'debug'), keptLogLines (how many lines are kept for takeLogLine), kvDeviceBudgetBytes, kvHostBudgetBytes, kvCompressedBudgetBytes, kvFileBudgetBytes, prefixCacheBytes.
   */
  constructor({ log, ...others } = {}) {
    super(raw.runtimeCreate(options.runtime({ ...others, log: guarded(log) })));
  }

  /**
   * Loads a model: a Hugging Face directory, or a GGUF file. Options: weightType, load ('mmap', 'read'), activations ('f32', 'bf16', 'int8'), merge
   * (adapter directories, each a path or [path, scale]), beacon (a directory), device (a name of devices()), packedDirectory (where
   * weights are kept as the CPU multiplies with them, for later loads to map), progress and signal.
   */
  async load(path, { progress, signal, ...others } = {}) {
    const handle = await longCall({ progress, signal }, (more) =>
      raw.async.modelLoad(this.raw, options.path(path), { ...options.model(others), ...more }));
    return new Model(handle);
  }

  /** The tokenizer of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file, without weights. */
  async loadTokenizer(path) {
    return new Tokenizer(await raw.async.tokenizerLoad(this.raw, options.path(path)));
  }

  /** What models can run on. */
  devices() {
    return Array.from({ length: raw.runtimeGetDeviceCount(this.raw) }, (_, index) => {
      const { flags, kind, ...others } = raw.runtimeGetDeviceInfo(this.raw, index);
      return { ...others, kind: word('device', kind), usable: (flags & C.DEVICE_USABLE) !== 0 };
    });
  }

  /** quire_runtime_stats. */
  stats() {
    return raw.runtimeGetStats(this.raw);
  }

  /** The oldest line of the log that was kept (keptLogLines) and not taken yet: { level, text, nLost }, or undefined if there is none. */
  takeLogLine() {
    const [level, nLost, text] = raw.runtimeTakeLogLine(this.raw);
    return level === 0 ? undefined : { level: word('logLevel', level), text, nLost };
  }

  /**
   * What the model in `path` and a session of nTokens would take (quire_memory_plan; a reach without limit is Infinity). Nothing is
   * loaded. model: options of load.
   */
  async planMemory(path, nTokens, { model, ...session } = {}) {
    const plan = await raw.async.runtimePlanMemory(this.raw, options.path(path), options.model(model), options.session(session), nTokens);
    return { ...plan, reach: unlimited(plan.reach) };
  }

  /** Rejects with what a session with these options would fail with for the model in `path`; loads nothing. */
  async check(path, { model, ...session } = {}) {
    return raw.async.runtimeCheckSession(this.raw, options.path(path), options.model(model), options.session(session));
  }

  /** The canonical strategy that such a session would have; loads nothing. */
  async describeStrategy(path, { model, strategy = 'auto', ...session } = {}) {
    return raw.async.runtimeDescribeStrategy(this.raw, options.path(path), options.model(model), options.session({ ...session, strategy }));
  }

  /** Stops all that runs on this runtime, waits for it, and drops the reference. Calls on what hangs off it then fail with CLOSED. */
  close() {
    this.#close(raw);
  }

  /** The same without holding up the event loop. */
  async closeAsync() {
    await this.#close(raw.async);
  }

  #closed = false;

  #close(by) {
    if (this.#closed) return undefined;
    this.#closed = true;
    const closing = by.runtimeClose(this.raw);
    super.close();
    return closing;
  }
}

module.exports = { Runtime };
