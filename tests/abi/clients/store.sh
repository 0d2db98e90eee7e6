#!/bin/sh
# Stores the client in FOLDER as VERSION/LANG: packed, and with `run`, which unpacks it for as long as it runs.
#
#   store.sh VERSION LANG FOLDER START CHECK NEEDED
#
# START starts it, in FOLDER and with the model behind it. CHECK is a command that fails where what START needs beside xz,
# NEEDED in words, is missing.
set -eu
folder=$(realpath "$(dirname "$0")")/$1/$2
mkdir -p "$folder"
# Nothing of the machine, and of its time, gets into the archive.
tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@0 -C "$3" -cf - . | xz -9e >"$folder/client.tar.xz"
cat >"$folder/run" <<RUN
#!/bin/sh
{ command -v xz && $5; } >/dev/null 2>&1 || { echo "the client needs xz and $6"; exit 77; }
folder=\$(mktemp -d)
trap 'rm -rf "\$folder"' EXIT
tar -xJf "\$(dirname "\$0")/client.tar.xz" -C "\$folder" || exit 1
model=\$(realpath "\$1")
cd "\$folder" || exit 1
$4 "\$model"
RUN
chmod +x "$folder/run"
