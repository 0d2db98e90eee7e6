# frozen_string_literal: true

require "fiddle"
require_relative "errors"
require_relative "library"

module Quire
  # The functions that C calls during one call, on the thread that made it, which is one of Ruby's and takes Ruby's lock back
  # meanwhile. Nothing may leave one but by returning: what it raises is kept, and raised when the call has returned.
  # Functions that C calls on threads of its own do not exist here: Fiddle would abort the process.
  class Callbacks
    def initialize
      @closures = []
      @left = nil
    end

    # An exception that a callback raised; or the error of one that was left by throw or break.
    attr_reader :left

    # The block is called when a callback was left, so that the call ends soon.
    def when_left(&cancel)
      @cancel = cancel
    end

    # The address of a function of C that calls `callable`.
    def make(kind, callable)
      raise TypeError, "#{kind}: expected something that can be called, not #{callable.class}" unless callable.respond_to?(:call)

      described = Interface::CALLBACKS.fetch(:"quire_#{kind}_callback")
      types = described[:types].map { |type| Library::TYPES.fetch(type) }
      closure = Fiddle::Closure::BlockCaller.new(Library::TYPES.fetch(described[:returns]), types) do |*arguments|
        send("on_#{kind}", callable, *arguments)
      end
      pointer = Fiddle::Pointer[closure] # keeps it where it is: C has its place, which a compaction would change
      @closures << pointer
      pointer.to_i
    end

    private

    def on_progress(callable, _, done, total)
      guarded(nil) { callable.call(done, total) }
      nil
    end

    def on_write(callable, _, bytes, size, err)
      guarded(err) { Integer(callable.call(Memory.copy(bytes, size))) }
    end

    def on_commit(callable, _, err)
      guarded(err) { callable.call && 0 }
    end

    def on_read(callable, _, offset, buffer, size, err)
      guarded(err) do
        data = callable.call(offset, size)
        raise IOError, "read(#{size}) returned #{data ? "#{data.bytesize} bytes" : 'nothing'}" if !data || data.bytesize > size

        Fiddle::Pointer.new(buffer)[0, data.bytesize] = data unless data.empty?
        data.bytesize
      end
    end

    # The block's value; -1 where it was left in another way, or an interrupt of this thread (Thread#raise, Timeout, Ctrl-C)
    # waits until the call has returned, which it then does soon.
    def guarded(err)
      value = -1
      finished = false
      begin
        value = yield
        finished = true
      rescue Exception => e # nothing may pass through C
        leave(e, err)
        finished = true
      ensure
        leave(CancelledError.new("a block was left by throw or break"), err) unless finished
        value = -1 if interrupted?
        return value # also where a throw would unwind the stack
      end
    end

    def interrupted?
      Thread.pending_interrupt?.tap { |pending| @cancel&.call if pending }
    end

    def leave(exception, err)
      @left = exception
      @cancel&.call
      return if err.nil? || err.zero?

      described = Interface::STRUCTS.fetch(:quire_error)[:fields]
      text = exception.message.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).byteslice(0, 500)
      memory = Fiddle::Pointer.new(err)
      memory[described[:message][:offset], text.bytesize] = text
      number = exception.is_a?(SystemCallError) ? exception.errno : 0
      memory[described[:os_error][:offset], 4] = [number].pack("l")
    end
  end
end
