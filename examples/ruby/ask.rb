# frozen_string_literal: true

# Asks a document: the answer comes as it is generated. Ctrl-C ends the answer, and the program goes on.
#
#     ruby ask.rb MODEL_DIR FILE QUESTION [MAX_TOKENS]
require "quire"

path, file, question, max_tokens = ARGV
abort "ask.rb MODEL_DIR FILE QUESTION [MAX_TOKENS]" unless question

Quire::Runtime.open do |runtime|
  session = runtime.load(path).session("dca") # reads texts much longer than the model's window
  session << File.read(file) << question
  session.stream(max_tokens: Integer(max_tokens || 200)) do |stream|
    trap("INT") { stream.cancel }
    stream.each do |event|
      case event
      when Quire::Prefill then $stderr.print "\r#{event.done + event.reused} of #{event.total} tokens read"
      when Quire::Message then warn "\n#{event.message}"
      when Quire::Token then print(event.text).then { $stdout.flush }
      when Quire::End then puts "#{event.text}\n(#{event.finish_reason}, #{event.n_tokens} tokens)"
      end
    end
  ensure
    trap("INT", "DEFAULT")
  end
end
