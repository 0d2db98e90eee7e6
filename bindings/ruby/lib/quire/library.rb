# frozen_string_literal: true

require "fiddle"
require_relative "interface"

module Quire
  # libquire: $QUIRE_LIBRARY (a full path), a copy beside this file, or what the system finds. Fiddle lets go of Ruby's lock
  # (GVL) while a function of it runs, so other Ruby threads go on.
  module Library
    TYPES = {
      void: Fiddle::TYPE_VOID, address: Fiddle::TYPE_UINTPTR_T, string: Fiddle::TYPE_UINTPTR_T, float: Fiddle::TYPE_FLOAT,
      double: Fiddle::TYPE_DOUBLE, int32_t: Fiddle::TYPE_INT32_T, uint32_t: -Fiddle::TYPE_INT32_T,
      int64_t: Fiddle::TYPE_INT64_T, uint64_t: -Fiddle::TYPE_INT64_T, size_t: Fiddle::TYPE_SIZE_T
    }.freeze

    def self.path
      return ENV["QUIRE_LIBRARY"] if ENV["QUIRE_LIBRARY"]

      beside = File.join(__dir__, "libquire.so.0")
      File.exist?(beside) ? beside : "libquire.so.0"
    end

    # A function by its name without quire_.
    def self.function(name)
      plan = Interface::FUNCTIONS.fetch(name)
      Fiddle::Function.new(HANDLE["quire_#{name}"], plan[:types].map { |type| TYPES.fetch(type) },
                           TYPES.fetch(plan[:returns]), need_gvl: false)
    end

    # Until 1.0 a minor version may break the ABI, then a major one.
    def self.abi_of?(wanted, found)
      unit = wanted < 10_000 ? 100 : 10_000
      found >= wanted && found / unit == wanted / unit
    end

    def self.check_version(wanted, found)
      return if abi_of?(wanted, found)

      found, wanted = [found, wanted].map { |version| "#{version / 10_000}.#{version / 100 % 100}.#{version % 100}" }
      raise LoadError, "#{path} is of version #{found}; this package needs #{wanted}, or a later one with its ABI"
    end

    HANDLE = Fiddle.dlopen(path)
    check_version(Interface::CONSTANTS[:VERSION], function(:get_version).call)
    FUNCTIONS = Interface::FUNCTIONS.to_h { |name, _| [name, function(name)] }.freeze
  end
end
