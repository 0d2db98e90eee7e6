'use strict';

// All tests, in one process, for the last of them asks what the others called.

const fs = require('node:fs');

for (const name of fs.readdirSync(__dirname).sort()) {
  if (name.startsWith('test_')) require(`./${name}`);
}
require('./coverage');
