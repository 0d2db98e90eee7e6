#!/bin/sh
# Stores the client in C# as that of VERSION: make.sh VERSION BUILD
set -eu
here=$(realpath "$(dirname "$0")")
binding=$(realpath "$here/../../../../bindings/csharp")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# In this order: mcs refuses some files behind others.
find "$binding/Quire" -name '*.cs' | LC_ALL=C sort |
  xargs mcs -langversion:7.2 -optimize+ -unsafe -target:library -out:"$folder/Quire.dll" -r:System.Core.dll
mcs -langversion:7.2 -optimize+ -r:"$folder/Quire.dll" -out:"$folder/client.exe" "$here/Client.cs"
"$here/../store.sh" "$1" csharp "$folder" 'mono client.exe' 'command -v mono' mono
