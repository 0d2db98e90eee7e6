# frozen_string_literal: true

# Times streams for the comparison with C: overhead.rb MODEL_DIR N_TOKENS. tests/overhead says what is read and printed.
require "json"
require "quire"

$stdout.sync = true
n_tokens = Integer(ARGV[1])
runtime = Quire::Runtime.new(threads: 1)
session = runtime.load(ARGV[0]).session("full", overflow: :extrapolate)
session.feed("Once upon a time")
session.prefill
n_prompt = session.n_tokens

puts '{"ready":true}'
$stdin.each_line do
  session.truncate(n_prompt)
  length = 0
  allocated = GC.stat(:total_allocated_objects)
  begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  session.stream(max_tokens: n_tokens, ignore_eos: true, temperature: 0) do |stream|
    stream.each { |event| length += event.text.bytesize }
  end
  seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
  raise "no text" if length.zero?

  allocated = GC.stat(:total_allocated_objects) - allocated
  puts JSON.generate(tokens: n_tokens, seconds: seconds, allocations: (allocated.to_f / n_tokens).round(2))
end
runtime.close
