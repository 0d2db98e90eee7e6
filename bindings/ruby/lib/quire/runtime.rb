# frozen_string_literal: true

require_relative "handle"
require_relative "model"
require_relative "options"
require_relative "raw"

module Quire
  # Threads and memory; everything else hangs off one. Any thread may use it.
  class Runtime < Handle
    # A runtime; with a block, one that is closed at its end. Options: threads (0: one for each usable core), io_threads,
    # kv_device_budget_bytes, kv_host_budget_bytes, kv_compressed_budget_bytes, kv_file_budget_bytes, prefix_cache_bytes;
    # log_level (:error to :debug) and kept_log_lines, which is how many lines are kept for log_lines (0).
    def self.open(**options, &block)
      Handle.closing(new(**options), &block)
    end

    def initialize(**options)
      super(Raw.runtime_create(Options.runtime(options)))
    end

    # Loads a model: a Hugging Face directory, or a GGUF file. Options: weight_type, load (:mmap, :read), activations (:f32,
    # :bf16, :int8), merge (adapter directories, each a path or [path, scale]), beacon (a directory), device (a name of devices),
    # packed_directory (where weights are kept as the CPU multiplies with them, for later loads to map), progress (called with
    # done and total bytes on this thread) and cancel (a Cancel). With a block, the model is closed at its end.
    def load(path, **options, &block)
      Handle.closing(Model.new(Raw.model_load(reference, Options.path(path), Options.model(options))), &block)
    end

    # The tokenizer of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file, without weights.
    def tokenizer(path)
      Tokenizer.new(Raw.tokenizer_load(reference, Options.path(path)))
    end

    # What models can run on: hashes of name, kind, description, usable, obstacle, memory_bytes, free_bytes.
    def devices
      Array.new(Raw.runtime_get_device_count(reference)) do |index|
        info = Raw.runtime_get_device_info(reference, index)
        info.except(:flags).merge(kind: Names.word(:device, info[:kind]),
                                  usable: info[:flags].anybits?(Interface::CONSTANTS[:DEVICE_USABLE]))
      end
    end

    # quire_runtime_stats as a hash.
    def stats
      Raw.runtime_get_stats(reference).except(:flags)
    end

    # The lines that were kept (kept_log_lines) and not taken yet: yields their level, their text, and how many lines were lost
    # before it for want of room. Without a block, an Enumerator.
    def log_lines
      return to_enum(:log_lines) unless block_given?

      loop do
        level, n_lost, text = Raw.runtime_take_log_line(reference)
        return if level.zero?

        yield Names.word(:log_level, level), text.force_encoding(Encoding::UTF_8), n_lost
      end
    end

    # What the model in `path` and a session of n_tokens would take: quire_memory_plan as a hash. Nothing is loaded. model: the
    # options of load that matter.
    def plan_memory(path, n_tokens, strategy = nil, model: {}, **options)
      Raw.runtime_plan_memory(reference, Options.path(path), Options.model(model.dup), Options.session(strategy, options),
                              n_tokens).except(:flags)
    end

    # Raises what a session with these options would raise for the model in `path`; loads nothing.
    def check(path, strategy = nil, model: {}, **options)
      Raw.runtime_check_session(reference, Options.path(path), Options.model(model.dup), Options.session(strategy, options))
    end

    # The canonical strategy that such a session would have; loads nothing.
    def describe_strategy(path, strategy = "auto", model: {}, **options)
      Raw.runtime_describe_strategy(reference, Options.path(path), Options.model(model.dup),
                                    Options.session(strategy, options)).force_encoding(Encoding::UTF_8)
    end

    # Stops everything that runs on this runtime and waits for it; calls on what hangs off it then raise ClosedError.
    def close
      Raw.runtime_close(reference) unless reference.foreign?
      nil
    end
  end

  # Stops the calls that were given it: trigger from any thread, also from inside a progress function.
  class Cancel < Handle
    def initialize
      super(Raw.cancel_create)
    end

    def trigger
      Raw.cancel_trigger(reference)
    end
  end
end
