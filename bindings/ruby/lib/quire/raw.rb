# frozen_string_literal: true

require_relative "callbacks"
require_relative "errors"
require_relative "handle"
require_relative "library"
require_relative "memory"

module Quire
  # The functions of quire.h without quire_, in the shape that bindings/plans.py describes: Raw.session_create(model, options).
  # Handles are References, structs are hashes, and results are returned, or raised as an Error.
  module Raw
    # One call: what is given to C, and what comes back.
    class Call
      def initialize(name, memory)
        @plan = Interface::FUNCTIONS.fetch(name)
        @function = Library::FUNCTIONS.fetch(name)
        @memory = memory
        @given = []
        @results = []
      end

      def run(arguments)
        n_wanted = @plan[:steps].count { |what, _| %i[handle text list options scalar].include?(what) }
        raise ArgumentError, "#{n_wanted} arguments expected, not #{arguments.size}" if n_wanted != arguments.size

        @arguments = arguments
        @plan[:steps].each { |what, type| send("step_#{what}", type) }
        finish(@fill ? fill : @function.call(*@given))
      end

      private

      def finish(returned)
        return Fiddle::Pointer.new(returned).to_s.force_encoding(Encoding::UTF_8) if @plan[:returns] == :string
        return @plan[:returns] == :void ? results : returned unless @error

        check(returned)
        results
      end

      def results
        made = @results.map(&:call)
        made.size > 1 ? made : made.first
      end

      def check(status)
        return unless status.negative?

        error = Memory.hash(@error, :quire_error)
        raise Error.for_code(status).new(error[:message].scrub, code: status, offset: error[:offset], os_error: error[:os_error])
      end

      # Asks for the size first, and again where another thread or process has changed it meanwhile.
      def fill
        size = Interface::STRUCTS.dig(@element, :size) || Memory::SIZES[@element]
        loop do
          @given[@fill, 2] = [0, 0]
          status = @function.call(*@given)
          return status if status.negative?

          count = @needed.unpack1("J")
          @filled = "\0".b * (count * size)
          @given[@fill, 2] = [@memory.address(@filled), count]
          status = @function.call(*@given)
          next if status == Interface::CONSTANTS[:ERROR_BUFFER_TOO_SMALL]

          @filled = @filled.byteslice(0, @needed.unpack1("J") * size)
          return status
        end
      end

      def step_error(_)
        @error = @memory.blank(:quire_error)
        @given << @memory.address(@error)
      end

      def step_handle(type)
        @given << @memory.handle(@arguments.shift, type)
      end

      def step_made(type)
        out = [0].pack("J")
        @given << @memory.address(out)
        @results << -> { Reference.new(out.unpack1("J"), type) }
      end

      def step_text(_)
        value = @memory.text(@arguments.shift)
        @given << @memory.address(value)
        @count = value.bytesize
      end

      def step_list(type)
        before = @count if @listed
        address, @count = @memory.list(@arguments.shift, type)
        raise ArgumentError, "#{@count} for #{before}" if @listed && before != @count

        @listed = true
        @given << address
      end

      def step_count(_)
        @given << @count
      end

      def step_options(type)
        options = @arguments.shift
        @given << (options ? @memory.address(@memory.struct(options, type)) : 0)
      end

      def step_result(type)
        bytes = @memory.blank(type)
        @given << @memory.address(bytes)
        @results << -> { Memory.hash(bytes, type) }
      end

      def step_size(type)
        @given << Interface::STRUCTS.fetch(type)[:size]
      end

      def step_number(type)
        bytes = "\0".b * 8
        @given << @memory.address(bytes)
        @results << -> { bytes.unpack1(Memory::FORMATS.fetch(type)) }
      end

      def step_scalar(type)
        @given << @memory.scalar(@arguments.shift, type)
      end

      def step_filled(type)
        @fill = @given.size
        @element = type
        @needed = "\0".b * 8
        @given.push(0, 0, @memory.address(@needed))
        @results << -> { Memory.filled(@filled, type) }
      end
    end

    CALLBACKS = %i[progress write commit read].freeze
    MAKERS = Interface::FUNCTIONS.select { |_, plan| plan[:steps].any? { |what, _| what == :made } }.keys.freeze

    def self.invoke(name, arguments)
      called_back = arguments.any? { |argument| argument.is_a?(Hash) && CALLBACKS.any? { |kind| argument[kind] } }
      return invoke_called_back(name, arguments) if called_back

      memory = Memory.new(nil)
      begin
        # No interrupt of this thread comes between a handle that C made and the reference that owns it.
        return Thread.handle_interrupt(Object => :never) { Call.new(name, memory).run(arguments) } if MAKERS.include?(name)

        Call.new(name, memory).run(arguments)
      ensure
        memory.release_handles
      end
    end

    # A call that may be left by an exception of a callback, which is raised here. Interrupts of this thread wait while C
    # runs. What has a progress function is cancelled when a callback was left or an interrupt waits.
    def self.invoke_called_back(name, arguments)
      callbacks = Callbacks.new
      memory = Memory.new(callbacks)
      own_cancel = cancel_create
      arguments = arguments.map do |argument|
        argument.is_a?(Hash) && argument[:progress] ? argument.merge(cancel: argument[:cancel] || own_cancel) : argument
      end
      cancel = arguments.filter_map { |argument| argument[:cancel] if argument.is_a?(Hash) }.first
      callbacks.when_left { cancel_trigger(cancel) } if cancel
      begin
        result = Thread.handle_interrupt(Object => :never) { Call.new(name, memory).run(arguments) }
        result.close if callbacks.left && result.is_a?(Reference)
      rescue Error
        raise unless callbacks.left
      ensure
        memory.release_handles
        own_cancel.close
      end
      callbacks.left ? raise(callbacks.left) : result
    end
    private_class_method :invoke_called_back

    (Interface::FUNCTIONS.keys - Interface::BY_HAND).each do |name|
      define_singleton_method(name) { |*arguments| invoke(name, arguments) }
    end
  end
end
