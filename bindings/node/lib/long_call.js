'use strict';

const raw = require('./raw');
const options = require('./options');
const { QuireError } = require('./errors');

/**
 * Awaits `call`, which is given { cancel, progress } for its options, with a signal that cancels it and a function that is told how far
 * it is. A function that throws cancels it, too, and the promise is rejected with what it threw.
 */
async function longCall({ signal: given, progress, ...others }, call) {
  options.refuse(others);
  const signal = options.signal(given);
  if (!signal && !progress) return call({});
  if (progress !== undefined && typeof progress !== 'function') throw new TypeError('progress: expected a function');
  const cancel = raw.cancelCreate();
  const abort = () => raw.cancelTrigger(cancel);
  let thrown;
  const told = progress && ((done, total) => {
    if (thrown) return;
    try {
      progress(done, total);
    } catch (error) {
      thrown = { error };
      abort();
    }
  });
  if (signal?.aborted) abort();
  signal?.addEventListener('abort', abort);
  try {
    const result = await call({ cancel, progress: told });
    if (!thrown) return result;
  } catch (error) {
    if (!thrown && error instanceof QuireError && error.status === 'CANCELLED') error.cause = signal?.reason;
    if (!thrown) throw error;
  } finally {
    signal?.removeEventListener('abort', abort);
    raw.release(cancel);
  }
  throw thrown.error;
}

module.exports = { longCall };
