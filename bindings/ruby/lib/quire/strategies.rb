# frozen_string_literal: true

require "json"
require_relative "names"
require_relative "raw"

module Quire
  # What strategy expressions mean; no model is needed.
  class << self
    # The expression in canonical form, every default written out.
    def describe_strategy(expression, train_len:, n_heads: 0, expected_tokens: 0)
      options = { strategy: expression, train_len: train_len, n_heads: n_heads, expected_tokens: expected_tokens }
      Raw.strategy_describe(options).force_encoding(Encoding::UTF_8)
    end

    # What expressions may be made of, for settings dialogs: hashes (quire_strategy_get_list).
    def strategies(train_len:, n_heads: 0, expected_tokens: 0)
      options = { train_len: train_len, n_heads: n_heads, expected_tokens: expected_tokens }
      JSON.parse(Raw.strategy_get_list(options), symbolize_names: true)[:terms]
    end

    # The relative-position matrix as rows; NaN: invisible. n_queries: nil for all from first_query on; queries, keys: :text or
    # :condensed.
    def strategy_positions(expression, train_len:, n_keys:, first_query: 0, n_queries: nil, head: 0, n_heads: 0, queries: :text,
                           keys: :text, expected_tokens: 0)
      n_queries ||= n_keys - first_query
      view = { head: head, first_query: first_query, n_queries: n_queries, n_keys: n_keys,
               query_kind: Names.number(:kv, queries, :queries), key_kind: Names.number(:kv, keys, :keys) }
      options = { strategy: expression, train_len: train_len, n_heads: n_heads, expected_tokens: expected_tokens }
      Raw.strategy_get_positions(options, view).each_slice(n_keys).to_a
    end

    # The loaded library's version, "0.1.0".
    def library_version
      Raw.get_version_string
    end
  end
end
