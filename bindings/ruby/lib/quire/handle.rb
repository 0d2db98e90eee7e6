# frozen_string_literal: true

require_relative "errors"
require_relative "library"

module Quire
  # One reference to an object of C. It is dropped once: when it was closed and no call uses it any more, for a thread may
  # close what another one is calling; or when it is collected. Without a lock, so that signal handlers may call too: push, pop
  # and empty? of arrays are one step each under Ruby's lock, and a call says that it is there before it looks whether it is
  # too late.
  class Reference
    # Such as :quire_model.
    attr_reader :type

    def initialize(address, type)
      @address = [address]
      @calls = []
      @closed = false
      @process = Process.pid
      @type = type
      @release = Library::FUNCTIONS.fetch(:"#{type.to_s.delete_prefix('quire_')}_release")
      ObjectSpace.define_finalizer(self, Reference.finalizer(@address, @release))
    end

    def self.finalizer(held, release)
      process = Process.pid
      proc { held.pop&.then { |address| release.call(address) if process == Process.pid } }
    end

    # Whether this is a forked process: it has none of the library's threads, and perhaps locks that they held.
    def foreign?
      @process != Process.pid
    end

    # The address, for a call that ends with done.
    def acquire
      @calls.push(true)
      return @address.first unless @closed || foreign?

      done
      refuse
    end

    # What a call raises that comes too late, or in another process.
    def refuse
      why = @closed ? "was closed" : "belongs to the process that this one was forked from"
      raise ClosedError, "this #{type.to_s.delete_prefix('quire_').capitalize} #{why}"
    end

    def done
      @calls.pop
      drop if @closed
    end

    def inspect
      "#<#{self.class} #{type}>"
    end

    # The address, for calls of an owner that is not closed before it is collected.
    def address
      @address.first
    end

    def close
      @closed = true
      drop
    end

    private

    def drop
      return unless @calls.empty?

      address = @address.pop
      @release.call(address) if address && !foreign?
    end
  end

  # What owns a reference until it is closed or collected. Handles keep their parents alive, so objects may go in any order.
  class Handle
    # What functions of Raw take.
    attr_reader :reference

    def initialize(reference)
      @reference = reference
    end

    # Drops the reference now; calls afterwards raise ClosedError. A second close does nothing.
    def close
      reference.close
    end

    # The block's value; the object is closed when the block is left, in whatever way. Without a block, the object.
    def self.closing(object)
      return object unless block_given?

      begin
        yield object
      ensure
        object.close
      end
    end
  end
end
