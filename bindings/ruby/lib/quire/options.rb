# frozen_string_literal: true

require_relative "interface"
require_relative "names"

module Quire
  # Options of calls, as the hashes that Raw takes: symbols become numbers, and true becomes a bit of flags.
  module Options
    C = Interface::CONSTANTS

    STREAM_FLAGS = { score: C[:STREAM_SCORE], keep_logits: C[:STREAM_KEEP_LOGITS], ignore_eos: C[:STREAM_IGNORE_EOS],
                     constrain: C[:STREAM_CONSTRAIN], keep_hidden: C[:STREAM_KEEP_HIDDEN], cite: C[:STREAM_CITE] }.freeze

    class << self
      # The bits of those options that are as `set` says; removes them. What is not given is not so.
      def flags(options, bits, set: true)
        bits.sum do |name, bit|
          value = options.delete(name)
          raise ArgumentError, "#{name}: expected true or false, not #{value.inspect}" unless [nil, true, false].include?(value)

          value == set ? bit : 0
        end
      end

      def rename(options, names)
        names.each { |from, to| options[to] = options.delete(from) if options.key?(from) }
        options
      end

      def number(options, groups)
        groups.each { |name, group| options[name] = Names.number(group, options[name], name) if options.key?(name) }
        options
      end

      def runtime(options)
        number(rename(options, threads: :n_threads, io_threads: :n_io_threads, kept_log_lines: :n_kept_log_lines), log_level: :log_level)
      end

      # With `progress` (called with done and total bytes) and `cancel` (a Cancel).
      def watched(options)
        options[:cancel] = options[:cancel].reference if options[:cancel]
        options
      end

      def model(options)
        rename(watched(options), activations: :activation_type, beacon: :beacon_path)
        number(options, load: :load, weight_type: :type, activation_type: :type)
        options[:merge] = scaled(options[:merge]) { |path, scale| { path: path(path), scale: scale } } if options[:merge]
        options[:beacon_path] &&= path(options[:beacon_path])
        options[:packed_directory] &&= path(options[:packed_directory])
        options
      end

      def session(strategy, options)
        number(options, kv_type: :type, kv_old_type: :type, overflow: :overflow)
        options[:old_after] = C[:OLD_AT_ONCE] if options[:old_after]&.zero?
        if options[:adapters]
          options[:adapters] = scaled(options[:adapters]) { |adapter, scale| { adapter: adapter.reference, scale: scale } }
        end
        options[:kv_file_directory] &&= path(options[:kv_file_directory])
        bits = flags(options, { prefix_reuse: C[:SESSION_NO_PREFIX_REUSE] }, set: false) |
               flags(options, { keep_behind_windows: C[:SESSION_KEEP_BEHIND_WINDOWS] })
        options.merge(strategy: strategy, flags: bits)
      end

      def stream(max_tokens, options)
        bits = flags(options, STREAM_FLAGS)
        rename(options, stop: :stop_strings, top_logprobs: :n_top_logprobs)
        options[:stop_strings] = Array(options[:stop_strings]) if options[:stop_strings]
        options[:samplers] &&= options[:samplers].map { |kind, fields| { kind: Names.number(:sampler, kind), **fields.to_h } }
        options[:logit_bias] &&= options[:logit_bias].map { |token, bias| { token: token, bias: bias } }
        deadline = options.delete(:deadline)
        options[:deadline_ms] = (deadline * 1000).ceil if deadline
        options.merge(max_tokens: max_tokens, flags: bits)
      end

      # [begin, end, id] each, in bytes of the text; or a range of bytes and the id.
      def labels(labels)
        labels.map do |first, *rest|
          first, last, id = first.is_a?(Range) ? [first.begin, first.end + (first.exclude_end? ? 0 : 1), *rest] : [first, *rest]
          { begin: first, end: last, id: id }
        end
      end

      def text_flags(parse_special, bos)
        (parse_special ? C[:TEXT_PARSE_SPECIAL] : 0) | (bos ? 0 : C[:TEXT_NO_BOS])
      end

      # [role, text] each, and template, date, answer, thinking.
      def chat(messages, template: nil, date: nil, answer: true, thinking: true)
        bits = (answer ? 0 : C[:CHAT_NO_ANSWER]) | (thinking ? 0 : C[:CHAT_NO_THINKING])
        [messages.map { |role, text| { role: role.to_s, text: text } }, { flags: bits, template_name: template, date: date }]
      end

      def path(path)
        File.path(path).b # its bytes, whatever the encoding says of them, as for Ruby's own files
      end

      private

      # Adapters or their paths, each alone or as [item, scale].
      def scaled(items)
        items.map { |item| yield(*(item.is_a?(Array) ? item : [item, 1.0])) }
      end
    end
  end
end
