'use strict';

// Two questions to one document at once: it is read once, and each question goes on in a fork of the session.
//
//     node forks.js MODEL_DIR FILE QUESTION QUESTION [MAX_TOKENS]

const fs = require('node:fs');
const { Runtime } = require('quire');

async function answer(document, question, maxTokens) {
  const fork = document.fork().feed(question);
  let text = '';
  for await (const piece of fork.generate({ maxTokens })) text += piece;
  fork.close();
  return text;
}

async function main(path, file, questions, maxTokens) {
  const runtime = new Runtime();
  const model = await runtime.load(path);
  const document = model.session({ strategy: 'dca' });
  await document.feedAsync(fs.readFileSync(file));
  await document.prefill();
  const answers = await Promise.all(questions.map((question) => answer(document, question, maxTokens)));
  answers.forEach((text, i) => console.log(`${questions[i]}\n${text}\n`));
  await runtime.closeAsync();
}

const [path, file, first, second, maxTokens = '100'] = process.argv.slice(2);
if (second === undefined) {
  console.error('node forks.js MODEL_DIR FILE QUESTION QUESTION [MAX_TOKENS]');
  process.exitCode = 2;
} else {
  main(path, file, [first, second], Number(maxTokens));
}
