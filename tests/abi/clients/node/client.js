'use strict';

// A client over the Node.js binding. Prints what ../README.md says.

const { Runtime, describeStrategy } = require('./quire');

async function main(path) {
  const runtime = new Runtime({ threads: 1 });
  const session = (await runtime.load(path)).session({ strategy: 'dca' });
  session.feed('Once upon a time');
  const tokens = [];
  let finish;
  for await (const event of session.stream({ maxTokens: 16, ignoreEos: true })) {
    if (event.kind === 'token') tokens.push(event.token);
    if (event.kind === 'end') finish = event.finishReason;
  }
  console.log(tokens.join(' '));
  const { nTokens, nPending } = session.counts();
  console.log(finish === 'max_tokens' ? 'MAX_TOKENS' : finish, nTokens, nPending);
  runtime.close();
  try {
    describeStrategy('full(wheels=3)', { trainLen: 4096 });
  } catch (error) {
    console.log(error.status, error.offset);
  }
}

main(process.argv[2]);
