# frozen_string_literal: true

require_relative "handle"
require_relative "options"
require_relative "raw"
require_relative "session_results"
require_relative "snapshot_files"
require_relative "stream"

module Quire
  # A text that a model has read, and its KV cache. One thread at a time calls its methods, save close, counts and stats.
  class Session < Handle
    include SessionResults

    # What Session#edit came to, in tokens; those that are neither kept nor moved will be computed.
    Edited = Struct.new(:n_tokens, :n_kept, :n_moved)

    # Queues one segment of text. labels: [begin, end, id] or [range, id] each, in bytes of it.
    def feed(text, parse_special: false, bos: true, labels: nil)
      flags = Options.text_flags(parse_special, bos)
      if labels
        Raw.session_feed_labelled(reference, text, flags, Options.labels(labels))
      else
        Raw.session_feed_text(reference, text, flags)
      end
      self
    end
    alias << feed

    # Queues token ids. positions: one for each id, strictly increasing; nil: each token follows the one before.
    def feed_tokens(ids, positions: nil)
      if positions
        Raw.session_feed_positions(reference, ids, positions)
      else
        Raw.session_feed_tokens(reference, ids)
      end
      self
    end

    # Queues [role, text] messages; behind an answer they end its turn first. Options as of Tokenizer#render_chat.
    def feed_messages(messages, **options)
      Raw.session_feed_messages(reference, *Options.chat(messages, **options))
      self
    end

    # The session's text becomes this one: a string, or a list of token ids. reuse: :exact or :approximate; reread: so many
    # tokens of each run that is taken over are computed. Returns an Edited.
    def edit(text, reuse: :exact, reread: 0, parse_special: false, bos: true, labels: nil)
      options = { flags: Options.text_flags(parse_special, bos), reuse: Names.number(:reuse, reuse), reread_tokens: reread,
                  labels: labels && Options.labels(labels) }
      edit = text.respond_to?(:to_str) ? :session_edit_text : :session_edit_tokens
      Edited.new(*Raw.public_send(edit, reference, text, options).values_at(:n_tokens, :n_kept, :n_moved))
    end

    def discard_pending
      Raw.session_discard_pending(reference)
    end

    def reset
      Raw.session_reset(reference)
    end

    # Forgets the tokens from the n_tokens-th on.
    def truncate(n_tokens)
      Raw.session_truncate(reference, n_tokens)
    end

    # Makes an empty session one of n_tokens random tokens, for benchmarks.
    def fill_random(n_tokens, seed: 0)
      Raw.session_fill_random(reference, n_tokens, seed)
    end

    # Starts to process what was fed and then to generate: a Stream; with a block, one that is closed at its end. Options:
    # those of quire_stream_options; stop (a string or several), samplers ([[:penalties, { a: 1.1, n: 64 }]]), logit_bias
    # ({token => bias}), deadline (seconds), top_logprobs, and true for score, keep_logits, ignore_eos, constrain,
    # keep_hidden, cite.
    def stream(max_tokens: 0, **options, &block)
      vocab_size = options[:constrain] ? { vocab_size: @model.vocab_size } : {}
      Handle.closing(Stream.new(reference, max_tokens, **vocab_size, **options), &block)
    end

    # Calls the block with pieces of text, and returns the End; leaving the block early closes the stream. Without a block,
    # an enumerator of the pieces, whose stream begins when it is asked for the first.
    def generate(max_tokens, **options)
      return enum_for(:generate, max_tokens, **options) unless block_given?

      stream(max_tokens: max_tokens, **options) do |stream|
        stream.each do |event|
          yield event.text unless event.text.empty?
          return event if event.kind == :end
        end
      end
    end

    # Processes what was fed and generates nothing. Options: score, keep_logits, keep_hidden.
    def prefill(**options)
      generate(0, **options) { |_| }
    end

    # Another session that stands where this one does, and shares with it what both hold.
    def fork(&block)
      Handle.closing(Session.new(Raw.session_fork(reference), @model), &block)
    end

    # Writes the session to a path, where it appears whole or not at all, or to an IO, which a save that fails leaves with a
    # part. whole: true writes all of it anew. progress and cancel: as of Runtime#load.
    def save(file, whole: false, progress: nil, cancel: nil)
      options = Options.watched({ flags: whole ? Interface::CONSTANTS[:SNAPSHOT_WHOLE] : 0, progress: progress, cancel: cancel })
      SnapshotFiles.save(reference, file, options)
    end

    # Ends an open stream, waits, and frees the KV cache.
    def close
      Raw.session_close(reference) unless reference.foreign?
      nil
    end

    # Model#session and others make sessions.
    def initialize(reference, model)
      super(reference)
      @model = model
    end
  end
end
