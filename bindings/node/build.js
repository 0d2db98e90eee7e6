'use strict';

// Builds prebuilds/PLATFORM-ARCH/quire.node with the C compiler: `npm install` runs this where there is none yet. The headers of Node.js
// are those of the node that runs this ($NODE_INCLUDE elsewhere); quire.h and the library are found by pkg-config, or by QUIRE_CFLAGS
// and QUIRE_LIBS. Exit status 77: the headers are missing, or node is older than 18.
//
//     node build.js [--force]

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

// A backslash keeps the next character, such as a space in a path, as pkg-config writes it.
function words(text) {
  return (text.match(/(?:\\.|[^\s\\])+/gs) || []).map((word) => word.replace(/\\(.)/gs, '$1'));
}

function packaged(option) {
  return words(execFileSync('pkg-config', [option, 'quire'], { encoding: 'utf8' }));
}

function main() {
  const include = process.env.NODE_INCLUDE || path.join(path.dirname(fs.realpathSync(process.execPath)), '../include/node');
  const target = path.join(__dirname, 'prebuilds', `${process.platform}-${process.arch}`, 'quire.node');
  if (Number(process.versions.node.split('.')[0]) < 18) {
    console.log('node is older than 18');
    return 77;
  }
  if (fs.existsSync(target) && !process.argv.includes('--force')) return 0;
  // Debian has libuv's header beside node's folder.
  const missing = [['node_api.h', [include]], ['uv.h', [include, '/usr/include']]].find(([name, folders]) =>
    !folders.some((folder) => fs.existsSync(path.join(folder, name))));
  if (missing) {
    console.log(`the headers of node are missing: there is no ${missing[0]} in ${include}`);
    return 77;
  }
  const cflags = process.env.QUIRE_CFLAGS ? words(process.env.QUIRE_CFLAGS) : packaged('--cflags');
  const libs = process.env.QUIRE_LIBS ? words(process.env.QUIRE_LIBS) : packaged('--libs');
  const sources = fs.readdirSync(path.join(__dirname, 'src')).filter((name) => name.endsWith('.c'));
  fs.mkdirSync(path.dirname(target), { recursive: true });
  execFileSync(process.env.CC || 'cc', [
    '-std=gnu11', '-O2', '-Wall', '-Wextra', '-fPIC', '-fvisibility=hidden', '-shared', '-pthread', ...words(process.env.CFLAGS || ''),
    `-I${include}`, ...cflags, ...sources.map((name) => path.join(__dirname, 'src', name)), '-o', target,
    // The library may lie beside the module. Both stay when the worker ends that loaded them: their threads may still run.
    '-Wl,-rpath,$ORIGIN', '-Wl,-z,nodelete', ...libs,
  ], { stdio: 'inherit' });
  return 0;
}

process.exitCode = main();
