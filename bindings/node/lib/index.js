'use strict';

// Quire for Node.js: a runtime for language models that read long documents. README.md begins with an example.

const { QuireError } = require('./errors');
const { Runtime } = require('./runtime');
const { Adapter, Model } = require('./model');
const { Session } = require('./session');
const { Stream } = require('./stream');
const { Tokenizer } = require('./tokenizer');
const { Store, describeSnapshot, verifySnapshot } = require('./store');
const {
  chatTemplates, describeFiles, describeStrategy, libraryVersion, quantizations, quantize, strategies, strategyPositions,
} = require('./strategies');

module.exports = {
  Adapter, Model, QuireError, Runtime, Session, Store, Stream, Tokenizer, chatTemplates, describeFiles, describeSnapshot, describeStrategy,
  libraryVersion, quantizations, quantize, strategies, strategyPositions, verifySnapshot,
};
