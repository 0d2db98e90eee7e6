'use strict';

// Times streams for the comparison with C: overhead.js MODEL_DIR N_TOKENS. tests/overhead says what is read and printed.

const readline = require('node:readline');
const { Runtime } = require('quire');

async function main(path, nTokens) {
  const runtime = new Runtime({ threads: 1 });
  const session = (await runtime.load(path)).session({ strategy: 'full', overflow: 'extrapolate' });
  session.feed('Once upon a time');
  const { nTokens: nPrompt } = await session.prefill();
  console.log('{"ready":true}');
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    session.truncate(nPrompt);
    let length = 0;
    const begun = process.hrtime.bigint();
    for await (const event of session.stream({ maxTokens: nTokens, ignoreEos: true, temperature: 0 })) length += event.text.length;
    const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
    if (!length) throw new Error('no text');
    console.log(JSON.stringify({ tokens: nTokens, seconds, allocations: null }));
  }
  runtime.close();
}

main(process.argv[2], Number(process.argv[3]));
