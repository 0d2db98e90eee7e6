'use strict';

// Answers questions about one document over HTTP: it is read once, and each question goes on in a fork of the session.
//
//     node server.js MODEL_DIR FILE HOST:PORT
//
// The body of a POST is a question, and that of the response is the answer, which is sent as it comes:
//
//     curl -N --data 'What is it about?' http://127.0.0.1:8080/
//
// Several are answered at once. A client that leaves ends its own answer, and Ctrl-C ends the server.

const { isUtf8 } = require('node:buffer');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const { buffer } = require('node:stream/consumers');
const { Runtime } = require('quire');

const MAX_BYTES = 64 * 1024; // of a question
const MAX_TOKENS = 200; // of an answer

/** The question that a request asks, as bytes; undefined where it was refused. */
async function readQuestion(request, response) {
  const refuse = (status, headers) => { response.writeHead(status, headers).end(); };
  const length = request.headers['content-length'];
  if (request.method !== 'POST') return refuse(405, { Allow: 'POST' });
  if (length === undefined) return refuse(411);
  if (Number(length) > MAX_BYTES) return refuse(413);
  const question = await buffer(request);
  return isUtf8(question) ? question : refuse(400);
}

async function answer(session, question, response) {
  const left = new AbortController();
  response.on('close', () => left.abort()); // also when all of it was sent, and there is nothing to cancel
  session.feed(` ${question}`);
  response.writeHead(200, { 'Content-Type': 'text/plain; charset=utf-8' });
  response.flushHeaders(); // before the first token
  for await (const text of session.generate({ maxTokens: MAX_TOKENS, signal: left.signal })) {
    if (!response.write(text)) await once(response, 'drain', { signal: left.signal });
  }
  left.signal.throwIfAborted();
  response.end();
}

async function serve(document, request, response) {
  try {
    const question = await readQuestion(request, response);
    if (question === undefined) return;
    const session = document.fork();
    try {
      await answer(session, question, response);
    } finally {
      await session.closeAsync();
    }
  } catch (error) {
    console.error(`a request ended early: ${error.message}`);
    response.destroy(); // without the last chunk, which tells the client
  }
}

async function main(path, file, host, port) {
  const runtime = new Runtime();
  const model = await runtime.load(path);
  const document = model.session({ strategy: 'dca' });
  await document.feedAsync(fs.readFileSync(file));
  await document.prefill();

  const answers = new Set();
  const server = http.createServer((request, response) => {
    const answered = serve(document, request, response).finally(() => answers.delete(answered));
    answers.add(answered);
  });
  server.listen(port, host);
  await once(server, 'listening');
  console.log(`listening at http://${host}:${server.address().port}/`);

  const stopped = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM']) process.once(name, () => stopped.abort());
  await once(stopped.signal, 'abort');
  server.close();
  server.closeAllConnections(); // which cancels their answers
  await Promise.all(answers);
  await runtime.closeAsync();
}

const [path, file, address = ''] = process.argv.slice(2);
const [, host, port] = address.match(/^(.+):(\d+)$/) ?? [];
if (port === undefined) {
  console.error('node server.js MODEL_DIR FILE HOST:PORT');
  process.exitCode = 2;
} else {
  main(path, file, host, Number(port));
}
