# frozen_string_literal: true

require "json"
require_relative "handle"
require_relative "options"
require_relative "raw"
require_relative "session"
require_relative "tokenizer"

module Quire
  # Weights, which any number of sessions share. Any thread may use it.
  class Model < Handle
    # Number of ids. Its sessions ask for it, also when it was closed.
    attr_reader :vocab_size

    # Runtime#load makes models.
    def initialize(reference)
      super
      @vocab_size = Raw.model_get_info(reference)[:vocab_size]
    end

    # quire_model_info as a hash; weight_type as a symbol.
    def info
      info = Raw.model_get_info(reference).except(:flags)
      info.merge(weight_type: Names.word(:type, info[:weight_type]))
    end

    # Metadata by key: "architecture", "device", "identity", "config.json" and others (quire_model_get_metadata).
    def metadata(key)
      Raw.model_get_metadata(reference, key).force_encoding(Encoding::UTF_8)
    end

    def tokenizer
      Tokenizer.new(Raw.model_get_tokenizer(reference))
    end

    # An empty session; with a block, one that is closed at its end. Options: kv_type, kv_old_type, old_after (tokens),
    # overflow, expected_tokens, prefill_block, the budgets of quire_session_options, kv_file_directory, prefix_reuse (false:
    # takes no part), keep_behind_windows (true: layers with a window drop nothing) and adapters (each alone or as
    # [adapter, scale]).
    def session(strategy = nil, **options, &block)
      Handle.closing(Session.new(Raw.session_create(reference, Options.session(strategy, options)), self), &block)
    end

    # A session that goes on where one was saved; options as of session, the saved session's where not given. file: a path, or
    # an IO, of which all is read now.
    def load_session(file, strategy = nil, **options, &block)
      Handle.closing(Session.new(SnapshotFiles.load(reference, file, Options.session(strategy, options)), self), &block)
    end

    # Raises what session would raise, and makes nothing.
    def check(strategy = nil, **options)
      Raw.model_check_session(reference, Options.session(strategy, options))
    end

    # The canonical strategy that session would have.
    def describe_strategy(strategy = "auto", **options)
      Raw.model_describe_strategy(reference, Options.session(strategy, options)).force_encoding(Encoding::UTF_8)
    end

    # How long a session would take to read n_tokens and to answer: quire_rate_estimate as a hash.
    def estimate(n_tokens, strategy = nil, **options)
      Raw.model_estimate_rates(reference, Options.session(strategy, options), n_tokens).except(:flags)
    end

    # A PEFT LoRA directory for sessions of this model. progress and cancel: as of Runtime#load.
    def load_adapter(path, progress: nil, cancel: nil)
      options = Options.watched({ progress: progress, cancel: cancel })
      Adapter.new(Raw.adapter_load(reference, Options.path(path), options))
    end
  end

  # A LoRA adapter of one model. Sessions keep those that they use.
  class Adapter < Handle
    FLAGS = %i[replaces_embedding replaces_lm_head replaces_norms changes_queries_or_keys].to_h do |name|
      [name, Interface::CONSTANTS.fetch(:"ADAPTER_#{name.upcase}")]
    end.freeze

    # quire_adapter_info as a hash; each flag as true or false.
    def info
      info = Raw.adapter_get_info(reference)
      info.except(:flags).merge(FLAGS.transform_values { |bit| info[:flags].anybits?(bit) })
    end

    # "identity" or "base_model".
    def metadata(key)
      Raw.adapter_get_metadata(reference, key).force_encoding(Encoding::UTF_8)
    end
  end

  class << self
    # What the files of a model hold, without loading it (quire_model_describe_files).
    def describe_files(path)
      JSON.parse(Raw.model_describe_files(Options.path(path)), symbolize_names: true)
    end

    # The names of the recipes that quantize knows.
    def quantizations
      Raw.get_quantizations.split(", ")
    end

    # Writes a model as a GGUF file. progress and cancel: as of Runtime#load.
    def quantize(path, out, recipe: nil, threads: 0, progress: nil, cancel: nil)
      options = Options.watched({ recipe: recipe, n_threads: threads, progress: progress, cancel: cancel })
      Raw.model_quantize(Options.path(path), Options.path(out), options)
    end
  end
end
