# frozen_string_literal: true

require_relative "interface"

module Quire
  # A failed call. Each status has a subclass: QUIRE_ERROR_BAD_FILE is Quire::BadFileError.
  class Error < StandardError
    # The status's name as a symbol, such as :BAD_FILE; its number.
    attr_reader :status, :code
    # The byte, column or token index that the message speaks of, or nil; errno, or 0.
    attr_reader :offset, :os_error

    def initialize(message, code: nil, offset: -1, os_error: 0)
      @code = code || self.class::CODE
      @status = self.class::STATUS
      @offset = offset.negative? ? nil : offset
      @os_error = os_error
      super("#{status}: #{message}")
    end

    CODE = Interface::CONSTANTS[:ERROR_INTERNAL]
    STATUS = :UNKNOWN
    @classes = {}

    class << self
      # The class of errors with this code.
      def for_code(code)
        @classes.fetch(code, Error)
      end

      def define(status, code)
        error = Class.new(Error)
        error.const_set(:CODE, code)
        error.const_set(:STATUS, status)
        @classes[code] = error
        Quire.const_set("#{status.to_s.split('_').map(&:capitalize).join}Error", error)
      end
    end
  end

  Interface::CONSTANTS.each do |name, code|
    Error.define(name[/\AERROR_(.*)/, 1].to_sym, code) if name.start_with?("ERROR_") && code.negative?
  end
end
