#!/bin/sh
# Runs the tests of the Node.js binding: run.sh SOURCE LIBRARY FOLDER. 77 (skipped) where there is no node of 18 or newer with its headers,
# or no C compiler. FOLDER is where the package is put, with the module that is built for it.
source=$1 library=$2 folder=$3
command -v node > /dev/null || { echo 'there is no node'; exit 77; }
command -v "${CC:-cc}" > /dev/null || { echo 'there is no C compiler'; exit 77; }
python3 "$source/bindings/node/generate.py" --check || exit 1

# The package as npm packs it.
package="$folder/node_modules/quire" libraries=$(dirname "$library")
rm -rf "$folder" && mkdir -p "$package" || exit 1
(cd "$source/bindings/node" && cp -r package.json lib src index.d.ts interface.d.ts build.js "$package") || exit 1
CFLAGS=-Werror QUIRE_CFLAGS="-I$source/include" QUIRE_LIBS="-L$libraries -lquire -Wl,-rpath,$libraries" node "$package/build.js" || exit $?

# 8 threads wait for files, and for what tests do at once.
NODE_PATH="$folder/node_modules" exec node --expose-gc --unhandled-rejections=strict "$source/tests/node/all.js"
