'use strict';

// Asks a document: the answer comes as it is generated. Ctrl-C ends the answer, and the program goes on.
//
//     node ask.js MODEL_DIR FILE QUESTION [MAX_TOKENS]

const fs = require('node:fs');
const { Runtime } = require('quire');

async function ask(path, file, question, maxTokens) {
  const runtime = new Runtime();
  const model = await runtime.load(path);
  const session = model.session({ strategy: 'dca' }); // reads texts much longer than the model's window
  await session.feedAsync(fs.readFileSync(file));
  session.feed(question);

  const interrupted = new AbortController();
  const interrupt = () => interrupted.abort();
  process.once('SIGINT', interrupt);
  for await (const event of session.stream({ maxTokens, signal: interrupted.signal })) {
    if (event.kind === 'prefill') process.stderr.write(`\r${event.done + event.reused} of ${event.total} tokens read`);
    else if (event.kind === 'warning' || event.kind === 'notice') console.error(`\n${event.message}`);
    else process.stdout.write(event.text);
    if (event.kind === 'end') console.log(`\n(${event.finishReason}, ${event.nTokens} tokens)`);
  }
  process.off('SIGINT', interrupt);
  await runtime.closeAsync();
}

const [path, file, question, maxTokens = '200'] = process.argv.slice(2);
if (question === undefined) {
  console.error('node ask.js MODEL_DIR FILE QUESTION [MAX_TOKENS]');
  process.exitCode = 2;
} else {
  ask(path, file, question, Number(maxTokens));
}
