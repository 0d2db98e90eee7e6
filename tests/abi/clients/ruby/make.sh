#!/bin/sh
# Stores the client in Ruby, with the binding, as that of VERSION: make.sh VERSION
set -eu
here=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$here/client.rb" "$here/../../../../bindings/ruby/lib/." "$folder"
"$here/../store.sh" "$1" ruby "$folder" 'ruby -I. client.rb' "ruby -rfiddle -e 'exit RUBY_VERSION >= \"3.1\"'" \
  'ruby of 3.1 or newer, with fiddle'
