'use strict';

// Does the steps of tests/conformance/*.json. tests/conformance/README.md says what they are.

const path = require('node:path');
const { describeStrategy } = require('quire');
const { events } = require('./helper');

function result(found) {
  const taken = found.filter((event) => event.kind === 'token');
  const last = found.at(-1);
  const ending = last.kind === 'end' ? { finish: last.finishReason, stop_index: last.stopIndex ?? -1, end_token: last.token ?? -1 } : {};
  return {
    tokens: taken.map((event) => event.token), logprobs: taken.map((event) => event.logprob), text: found.map((event) => event.text).join(''),
    n_tokens: last.nTokens, kinds: found.map((event) => event.kind).filter((kind, i, kinds) => kind !== kinds[i - 1]), ...ending,
  };
}

/** Options are named in JSON as in C: kv_type is kvType here. */
function camel(options = {}) {
  return Object.fromEntries(Object.entries(options).map(([name, value]) => [name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()), value]));
}

function snake(options) {
  return Object.fromEntries(Object.entries(options).map(([name, value]) => [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value]));
}

function counts(session) {
  return snake(session.counts());
}

function changed(session, change) {
  change(session);
  return counts(session);
}

const shares = (labels) => ({ shares: labels.map(({ id, share }) => [id, share]) });

const STEPS = {
  encode: ({ model }, { text, add_bos: bos, parse_special: parseSpecial, first = true }) =>
    ({ ids: [...model.tokenizer().encode(text, { bos, parseSpecial, continued: !first })] }),
  decode: ({ model }, { ids }) => ({ text: model.tokenizer().decode(ids) }),
  describe_strategy: (_, { strategy, train_len: trainLen }) => ({ canonical: describeStrategy(strategy, { trainLen }) }),
  session({ model, sessions }, { as, strategy, options = {} }) {
    const { old_after: after = 0, ...others } = options; // as in the struct: 0 is the default; the binding's 0 is at once
    sessions.set(as, model.session({ strategy, ...camel(others), ...(after === 0 ? {} : { oldAfter: Math.max(after, 0) }) }));
    return {};
  },
  feed: (_, { session, text, add_bos: bos, parse_special: parseSpecial }) => counts(session.feed(text, { bos, parseSpecial })),
  feed_tokens: (_, { session, ids }) => counts(session.feedTokens(ids)),
  feed_labelled: (_, { session, text, labels }) => counts(session.feed(text, { labels })),
  feed_messages: (_, { session, messages, template, answer }) => counts(session.feedMessages(messages, { template, answer })),
  async stream(_, { session, options, take }) {
    const { n_top_logprobs: topLogprobs, ...others } = options;
    const stream = session.stream({ ...camel(others), topLogprobs });
    if (!take) return result(await events(stream));
    const found = [];
    for await (const event of stream) {
      found.push(event);
      if (found.filter(({ kind }) => kind === 'token').length === take) break;
    }
    return result(found);
  },
  counts: (_, { session }) => counts(session),
  tokens: (_, { session, first, n }) => ({ ids: [...session.tokens().subarray(first, first + n)] }),
  truncate: (_, { session, n_tokens: nTokens }) => changed(session, () => session.truncate(nTokens)),
  label_shares: (_, { session }) => shares(session.labelShares()),
  discard_pending: (_, { session }) => changed(session, () => session.discardPending()),
  reset: (_, { session }) => changed(session, () => session.reset()),
  edit: (_, { session, text, reuse }) => snake(session.edit(text, { reuse })),
  scores: (_, { session, first, n }) => ({ values: [...session.scores(first, n)] }),
  argmax(_, { session, token }) {
    const [row] = session.logits(token);
    return { id: row.indexOf(Math.max(...row)) };
  },
  stats: (_, { session }) => snake(session.stats()),
  strategy: (_, { session }) => ({ canonical: session.strategy() }),
  label_attention: (_, { session }) => shares(session.labelAttention()),
  passages: (_, { session, most }) =>
    ({ passages: session.passages({ most }).map(({ feed, begin, end, labelId }) => [feed, begin, end, labelId]) }),
  fork({ sessions }, { session, as }) {
    sessions.set(as, session.fork());
    return {};
  },
  async save({ folder }, { session, to }) {
    await session.save(path.join(folder, to));
    return {};
  },
  async load({ model, sessions, folder }, { from, as }) {
    sessions.set(as, await model.loadSession(path.join(folder, from)));
    return counts(sessions.get(as));
  },
  async close(_, { session }) {
    await session.closeAsync();
    return {};
  },
};

/** The step's result. `context`: { model, folder, sessions (a Map) }. */
async function runStep(context, { do: name, expect, error, ...given }) {
  if (!STEPS[name]) throw new Error(`there is no step ${name}`);
  return STEPS[name](context, 'session' in given ? { ...given, session: context.sessions.get(given.session) } : given);
}

/** Numbers with a fraction agree to 1e-4, relative or absolute. */
function agree(found, expected) {
  if (Array.isArray(expected)) return found.length === expected.length && expected.every((item, i) => agree(found[i], item));
  if (typeof expected === 'number' && !Number.isInteger(expected)) return Math.abs(found - expected) <= 1e-4 * Math.max(1, Math.abs(expected));
  return found === expected;
}

module.exports = { agree, runStep };
