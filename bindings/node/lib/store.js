'use strict';

const raw = require('./raw');
const options = require('./options');
const { Handle } = require('./handle');
const { Session } = require('./session');
const { constants: C } = require('./interface');
const { longCall } = require('./long_call');

/** A directory of documents that were read, which processes share. */
class Store extends Handle {
  /** Opens a directory, which is made where it is missing. Options: budgetBytes (0: no limit), mustExist. */
  static async open(path, { budgetBytes, mustExist = false, ...others } = {}) {
    options.refuse(others);
    return new Store(await raw.async.storeOpen(options.path(path), { budgetBytes, flags: options.bit('mustExist', mustExist, C.STORE_MUST_EXIST) }));
  }

  /** Puts what a session has read there: { name, nTokens, nComputed } of the entry. Options: title, progress, signal. */
  async put(session, { title = '', ...watched } = {}) {
    const { name, nTokens, nComputed } = await longCall(watched, (more) => raw.async.storePut(this.raw, session.raw, title, more));
    return { name, nTokens, nComputed };
  }

  /**
   * How much of a text is there for a session of these options: { name (empty: none), nTokens (of the first ones), nComputed (that need not
   * be read again), reason (why there are none) }.
   */
  async find(model, ids, given) {
    return raw.async.storeFind(this.raw, model.raw, options.session(given), ids);
  }

  /**
   * A session that holds as many of the first tokens as are there (its counts say how many); feed it the others. Rejects with NOT_FOUND,
   * and why, where there are none.
   */
  async load(model, ids, given) {
    const [, handle] = await raw.async.storeLoad(this.raw, model.raw, options.session(given), ids);
    return new Session(handle, model);
  }

  /** Removes an entry; sessions that have it open go on. */
  async remove(name) {
    return raw.async.storeRemove(this.raw, name);
  }

  /** Reads all of an entry; the error says what is damaged. Options: progress, signal. */
  verify(name, watched = {}) {
    return longCall(watched, (more) => raw.async.storeVerify(this.raw, name, more));
  }

  /** What is in the store (quire_store_describe). */
  async describe() {
    return JSON.parse(await raw.async.storeDescribe(this.raw));
  }
}

/** What a snapshot, in a file or a Uint8Array, says of itself (quire_snapshot_describe). */
async function describeSnapshot(from) {
  const described = from instanceof Uint8Array ? raw.async.snapshotDescribeFrom({ bytes: from }) : raw.async.snapshotDescribe(options.path(from));
  return JSON.parse(await described);
}

/** Reads all of a snapshot; the error says what is damaged. Options: progress, signal. */
function verifySnapshot(from, watched = {}) {
  return longCall(watched, (more) => (from instanceof Uint8Array
    ? raw.async.snapshotVerifyFrom({ bytes: from }, more)
    : raw.async.snapshotVerify(options.path(from), more)));
}

module.exports = { Store, describeSnapshot, verifySnapshot };
