# frozen_string_literal: true

require_relative "names"
require_relative "raw"

module Quire
  # What can be asked of a session. Tokens and bytes are counted from 0.
  module SessionResults
    # [tokens read, fed tokens that wait]
    def counts
      Raw.session_get_token_counts(reference)
    end

    def n_tokens
      counts.first
    end

    def n_pending
      counts.last
    end

    # The ids of all tokens, pending ones last.
    def tokens
      Raw.session_get_tokens(reference)
    end

    # Raw logits: n_rows arrays of vocab_size floats, the first one computed after token first_token; -1: the last one.
    def logits(first_token = -1, n_rows = 1)
      rows(Raw.session_get_logits(reference, first_token, n_rows), n_rows)
    end

    # Embeddings: last hidden states, n_rows arrays of hidden_size floats, of a stream with keep_hidden: true.
    def hidden_states(first_token, n_rows = 1)
      rows(Raw.session_get_hidden_states(reference, first_token, n_rows), n_rows)
    end

    # log p of n tokens, of a stream with score: true; NaN where it is not known.
    def scores(first_token, count)
      Raw.session_get_scores(reference, first_token, count)
    end

    # Where the last answer looked: a hash for each label (id, first_token, n_tokens, share).
    def label_attention
      Raw.session_get_label_attention(reference)
    end

    # What the last answer, or some of its tokens, looked at most, of a stream with cite: true: a hash for each passage
    # (first_token, n_tokens, feed, begin, end, label, label_id, share).
    def passages(first_token: -1, n_tokens: 0, most: 5)
      Raw.session_get_passages(reference, first_token, n_tokens, most)
    end

    # The same by label.
    def label_shares(first_token: -1, n_tokens: 0)
      Raw.session_get_label_shares(reference, first_token, n_tokens)
    end

    # quire_session_stats as a hash.
    def stats
      Raw.session_get_stats(reference).except(:flags)
    end

    # quire_tier_stats of :device, :host, :compressed, :file or :snapshot, as a hash.
    def tier(name)
      Raw.session_get_tier_stats(reference, Names.number(:tier, name)).except(:flags, :tier)
    end

    # quire_session_probes as a hash: what tests of cancelling look at.
    def probes
      Raw.session_get_probes(reference).except(:flags)
    end

    # The strategy in canonical form.
    def strategy
      Raw.session_get_strategy(reference).force_encoding(Encoding::UTF_8)
    end

    # Names all that keys and values depend on beside the tokens.
    def fingerprint
      Raw.session_get_fingerprint(reference)
    end

    private

    def rows(values, n_rows)
      values.each_slice(values.size / n_rows).to_a
    end
  end
end
