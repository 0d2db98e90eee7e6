'use strict';

const raw = require('./raw');
const { word } = require('./names');

/** A token: one object for each, so it has a class of its own. */
class Token {
  constructor(text, token, logprob, nTokens, topLogprobs) {
    this.kind = 'token';
    /** Of the answer and nothing else: all texts of a stream, one after the other, are the answer. */
    this.text = text;
    this.token = token;
    this.logprob = logprob;
    /** Of the session after this event. */
    this.nTokens = nTokens;
    /** { token, logprob } each; undefined where none were asked for. */
    this.topLogprobs = topLogprobs;
  }
}

function known(value) {
  return value < 0 ? undefined : value;
}

/** The event that was taken last from the stream, whatever its kind. */
function lastEvent(handle) {
  const event = raw.streamEvent(handle);
  const kind = word('event', event.kind);
  const { text, nTokens } = event;
  switch (kind) {
    case 'token':
      return new Token(text, event.token, event.logprob, nTokens, event.topLogprobs.length ? event.topLogprobs : undefined);
    case 'prefill': {
      const { total, done, reused, moved, nPerSecond } = event;
      return { kind, text, nTokens, total, done, reused, moved, nPerSecond, reuseMiss: word('reuseMiss', event.reuseMiss) };
    }
    case 'end':
      return { kind, text, nTokens, finishReason: word('finish', event.finishReason), token: known(event.token), stopIndex: known(event.stopIndex) };
    case 'warning':
    case 'notice':
      return { kind, text, nTokens, message: event.message, code: word(kind, event.code) };
    default:
      return { kind, text, nTokens, message: event.message };
  }
}

module.exports = { Token, lastEvent };
