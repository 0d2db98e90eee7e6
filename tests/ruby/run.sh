#!/bin/sh
# Runs the tests of the Ruby binding: run.sh SOURCE LIBRARY FOLDER. 77 (skipped) where there is no Ruby of 3.1 or newer, or no
# minitest. FOLDER is where the gem is installed to.
source=$1 library=$2 folder=$3
ruby -e 'exit RUBY_VERSION >= "3.1" && Gem::Specification.find_all_by_name("minitest").any?' 2> /dev/null ||
  { echo 'there is no ruby of 3.1 or newer with minitest'; exit 77; }
python3 "$source/bindings/ruby/generate.py" --check || exit 1
export QUIRE_LIBRARY="$library"

# The gem has all that it needs.
rm -rf "$folder" && mkdir -p "$folder" && cp -r "$source/bindings/ruby" "$folder/source" || exit 1
(cd "$folder/source" && gem build quire.gemspec && gem install --local --no-document --install-dir "$folder/gems" quire-*.gem) \
  > "$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
(cd / && GEM_PATH="$folder/gems:" ruby -e 'require "quire"; exit Quire.library_version == Quire::VERSION') || exit 1

RUBYLIB="$source/bindings/ruby/lib" exec ruby -w "$source/tests/ruby/all.rb"
