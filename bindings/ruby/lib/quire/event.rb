# frozen_string_literal: true

require_relative "memory"
require_relative "names"

module Quire
  # What streams report. All have `kind`, `text` (of the answer and nothing else: all texts one after the other are the answer)
  # and `n_tokens` (of the session afterwards).
  Token = Struct.new(:text, :token, :logprob, :n_tokens, :top_logprobs) do # top_logprobs: [token, logprob], or nil
    def kind = :token
  end
  Prefill = Struct.new(:text, :n_tokens, :total, :done, :reused, :moved, :n_per_second, :reuse_miss) do
    def kind = :prefill
  end
  # For a person: `kind` is :warning or :notice, and `code` a symbol.
  Message = Struct.new(:kind, :text, :n_tokens, :message, :code)
  # The last one. token: the id that ended the answer, or nil; stop_index: which stop string did, or nil.
  End = Struct.new(:text, :n_tokens, :finish_reason, :token, :stop_index) do
    def kind = :end
  end

  # Makes events of quire_event.
  module Event
    def self.of(bytes)
      event = Memory.hash(bytes, :quire_event)
      kind = Names.word(:event, event[:kind])
      case kind
      when :token
        top = event[:top_logprobs].map(&:values)
        Token.new(*event.values_at(:text, :token, :logprob, :n_tokens), top.empty? ? nil : top)
      when :prefill
        Prefill.new(*event.values_at(:text, :n_tokens, :total, :done, :reused, :moved, :n_per_second),
                    Names.word(:reuse_miss, event[:reuse_miss]))
      when :end
        token, stop_index = event.values_at(:token, :stop_index).map { |number| number.negative? ? nil : number }
        End.new(event[:text], event[:n_tokens], Names.word(:finish, event[:finish_reason]), token, stop_index)
      else
        code = %i[warning notice].include?(kind) ? Names.word(kind, event[:code]) : event[:code]
        Message.new(kind, event[:text], event[:n_tokens], event[:message], code)
      end
    end
  end
end
