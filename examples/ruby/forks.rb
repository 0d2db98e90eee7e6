# frozen_string_literal: true

# Two questions to one document at once: it is read once, and each question goes on in a fork of the session, on a thread.
#
#     ruby forks.rb MODEL_DIR FILE QUESTION QUESTION [MAX_TOKENS]
require "quire"

path, file, *questions = ARGV
max_tokens = Integer(questions.delete_at(2) || 100)
abort "forks.rb MODEL_DIR FILE QUESTION QUESTION [MAX_TOKENS]" if questions.size != 2

Quire::Runtime.open do |runtime|
  document = runtime.load(path).session("dca").feed(File.read(file))
  document.prefill
  answers = questions.map do |question|
    fork = document.fork # by one thread at a time
    Thread.new { fork.feed(question).generate(max_tokens).to_a.join }
  end
  questions.zip(answers) { |question, answer| puts question, answer.value, "" }
end
