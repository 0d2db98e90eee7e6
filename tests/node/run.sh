#!/bin/sh
# Runs the tests of the Node.js binding: run.sh SOURCE LIBRARY FOLDER [sanitized]. 77 (skipped) where there is no node of 18 or newer with
# its headers, or no C compiler. FOLDER is where the package is put, with the module that is built for it. sanitized: the module (not node
# or the library) has ASan and UBSan.
source=$1 library=$2 folder=$3
command -v node > /dev/null || { echo 'there is no node'; exit 77; }
command -v "${CC:-cc}" > /dev/null || { echo 'there is no C compiler'; exit 77; }
python3 "$source/bindings/node/generate.py" --check || exit 1

# The package as npm packs it.
package="$folder/node_modules/quire" libraries=$(dirname "$library")
rm -rf "$folder" && mkdir -p "$package" || exit 1
(cd "$source/bindings/node" && cp -r package.json lib src index.d.ts interface.d.ts build.js LICENSE "$package") || exit 1
ln -s "$source/include" "$folder/a folder" && ln -s "$libraries" "$folder/another folder" || exit 1
[ -z "$4" ] || more='-g -fsanitize=address,undefined -fno-sanitize-recover'
CFLAGS="-Werror $more" QUIRE_CFLAGS="-I$folder/a\ folder" QUIRE_LIBS="-L$folder/another\ folder -lquire -Wl,-rpath,$libraries" \
  node "$package/build.js" || exit $?
export NODE_PATH="$folder/node_modules"

if [ -n "$4" ]; then # what node itself leaves at its end is not looked for
  export LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 QUIRE_TEST_SANITIZED=1
elif command -v tsc > /dev/null; then
  tsc --noEmit --strict --target es2022 --lib es2022,dom --moduleResolution node --baseUrl "$NODE_PATH" "$source/tests/node/typed_use.ts" || exit 1
else
  echo 'there is no tsc: the types are not checked'
fi

exec node --expose-gc --unhandled-rejections=strict "$source/tests/node/all.js"
