# frozen_string_literal: true

require_relative "interface"

module Quire
  # The symbols that stand for constants of quire.h in calls and results: names without their group's prefix, in lower case
  # (:bf16 is QUIRE_TYPE_BF16).
  module Names
    PREFIXES = {
      type: "TYPE_", load: "LOAD_", overflow: "OVERFLOW_", log_level: "LOG_", device: "DEVICE_", tier: "TIER_",
      sampler: "SAMPLER_", event: "EVENT_", finish: "FINISH_", reuse: "EDIT_", reuse_miss: "REUSE_", kv: "KV_",
      warning: "WARNING_", notice: "NOTICE_"
    }.freeze

    NUMBERS = PREFIXES.transform_values do |prefix|
      named = Interface::CONSTANTS.select { |name, _| name.start_with?(prefix) && !Interface::FLAGS.include?(name) }
      named.transform_keys { |name| name.to_s.delete_prefix(prefix).downcase.to_sym }.freeze
    end.freeze

    WORDS = NUMBERS.transform_values { |names| names.invert.freeze }.freeze

    # The number of a symbol or string; nil for nil.
    def self.number(group, name, option = group)
      return nil if name.nil?

      NUMBERS[group].fetch(name.to_sym) do
        raise ArgumentError, "#{option} must be one of #{NUMBERS[group].keys.sort.join(', ')}, not #{name}"
      end
    end

    # The symbol of a number; the number itself where this version does not know it.
    def self.word(group, number)
      WORDS[group].fetch(number, number)
    end
  end
end
