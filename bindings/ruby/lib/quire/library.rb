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

    HANDLE = Fiddle.dlopen(path)
    FUNCTIONS = Interface::FUNCTIONS.to_h { |name, _| [name, function(name)] }.freeze
  end
end
