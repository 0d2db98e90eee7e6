# frozen_string_literal: true

# A client over the Ruby binding. Prints what ../README.md says.
require "quire"

Quire::Runtime.open(threads: 1) do |runtime|
  session = runtime.load(ARGV.fetch(0)).session("dca")
  session.feed("Once upon a time")
  events = session.stream(max_tokens: 16, ignore_eos: true).to_a
  puts events.grep(Quire::Token).map(&:token).join(" ")
  n_tokens, n_pending = session.counts
  puts "#{events.last.finish_reason.upcase} #{n_tokens} #{n_pending}"
end

begin
  Quire.describe_strategy("full(wheels=3)", train_len: 4096)
rescue Quire::Error => e
  puts "#{e.status} #{e.offset}"
end
