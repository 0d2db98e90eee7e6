# frozen_string_literal: true

require "fiddle"
require_relative "interface"

module Quire
  # What C reads and writes during one call: structs and arrays, made of hashes and arrays of Ruby's. Bytes lie in strings,
  # which are held, and kept where they are, until the call returned.
  class Memory
    FORMATS = { int32_t: "l", uint32_t: "L", int64_t: "q", uint64_t: "Q", size_t: "J", float: "f", double: "d" }.freeze
    SIZES = { int32_t: 4, uint32_t: 4, float: 4, char: 1 }.tap { |sizes| sizes.default = 8 }.freeze
    RANGES = { int32_t: -2**31...2**31, uint32_t: 0...2**32, int64_t: -2**63...2**63, uint64_t: 0...2**64,
               size_t: 0...2**64 }.freeze

    attr_reader :callbacks

    # callbacks: makes functions of C from those in hashes.
    def initialize(callbacks)
      @callbacks = callbacks
      @kept = []
      @references = []
    end

    # Where a string's bytes lie.
    def address(string)
      pointer = Fiddle::Pointer[string]
      @kept << pointer
      pointer.to_i
    end

    # Text as bytes that C takes: UTF-8, and binary strings as they are, of which C says whether they are UTF-8. A string that
    # may change during the call, for which another thread or a callback suffices, gives its bytes to a copy, which shares
    # them until then.
    def text(value)
      raise TypeError, "expected a string, not #{value.class}" unless value.respond_to?(:to_str)

      value = value.to_str
      as_it_is = [Encoding::UTF_8, Encoding::BINARY, Encoding::US_ASCII].include?(value.encoding)
      value = value.encode(Encoding::UTF_8) unless as_it_is
      value.frozen? ? value : value.dup.freeze
    end

    # The address of a handle of this type, which is not released before the call returned.
    def handle(reference, type)
      raise TypeError, "expected a #{type}, not #{reference.inspect}" unless reference.is_a?(Reference) && reference.type == type

      address = reference.acquire
      @references << reference
      address
    end

    def release_handles
      @references.each(&:done)
    end

    def scalar(value, type, name = "argument")
      return Float(value) if %i[float double].include?(type)
      raise TypeError, "#{name}: expected an integer, not #{value.inspect}" unless value.is_a?(Integer)
      raise RangeError, "#{name}: #{value} is out of range" unless RANGES.fetch(type).cover?(value)

      value
    end

    # The address and the number of elements.
    def list(values, element, name = "list")
      return [0, 0] if values.nil?

      values = values.to_a
      bytes = if element == :quire_text
                values.flat_map { |value| text_pair(value) }.pack("J*")
              elsif Interface::STRUCTS.key?(element)
                values.map { |value| struct(value, element) }.join
              else
                values.map { |value| scalar(value, element, name) }.pack("#{FORMATS.fetch(element)}*")
              end
      [address(bytes), values.size]
    end

    # A struct's bytes, of a hash of its fields. nil stands for what is not given.
    def struct(hash, name)
      described = Interface::STRUCTS.fetch(name)
      bytes = blank(name)
      hash.each do |key, value|
        field = described[:fields][key] or raise ArgumentError, "unknown option: #{key}"
        write(bytes, field, key, value) unless value.nil?
      end
      bytes
    end

    # A struct of zeros that knows its size.
    def blank(name)
      described = Interface::STRUCTS.fetch(name)
      bytes = "\0".b * described[:size]
      bytes[0, 4] = [described[:size]].pack("L") if described[:grows]
      bytes
    end

    # A struct as a hash of its fields.
    def self.hash(bytes, name)
      Interface::STRUCTS.fetch(name)[:fields].to_h { |key, field| [key, read(bytes, field)] }
    end

    # An array of C as one of Ruby's; of bytes, a string.
    def self.filled(bytes, element)
      return bytes if element == :char
      return bytes.unpack("#{FORMATS[element]}*") if FORMATS.key?(element)

      size = Interface::STRUCTS.fetch(element)[:size]
      Array.new(bytes.bytesize / size) { |at| hash(bytes.byteslice(at * size, size), element) }
    end

    # Bytes somewhere in C, copied; as text, if they are.
    def self.copy(address, size)
      size.zero? ? String.new : Fiddle::Pointer.new(address)[0, size]
    end

    def self.read(bytes, field)
      at = field[:offset]
      case field[:type]
      when :chars then bytes.byteslice(at, field[:size]).unpack1("Z*").force_encoding(Encoding::UTF_8)
      when :text then copy(*pair(bytes, at, field[:length])).force_encoding(Encoding::UTF_8)
      when :list
        address, count = pair(bytes, at, field[:count])
        size = Interface::STRUCTS.dig(field[:element], :size) || SIZES[field[:element]]
        filled(copy(address, count * size), field[:element])
      else FORMATS.key?(field[:type]) ? bytes.unpack1(FORMATS[field[:type]], offset: at) : nil
      end
    end
    private_class_method :read

    def self.pair(bytes, first, second)
      [bytes.unpack1("J", offset: first), bytes.unpack1("J", offset: second)]
    end
    private_class_method :pair

    private

    def text_pair(value)
      value = text(value)
      [address(value), value.bytesize]
    end

    def write(bytes, field, key, value)
      case field[:type]
      when :text then bytes[field[:offset], 8], bytes[field[:length], 8] = text_pair(value).map { |number| [number].pack("J") }
      when :list
        bytes[field[:offset], 8], bytes[field[:count], 8] =
          list(value, field[:element], key).map { |number| [number].pack("J") }
      when :handle then bytes[field[:offset], 8] = [handle(value, field[:of])].pack("J")
      when :progress, :write, :commit, :read then bytes[field[:offset], 8] = [callbacks.make(field[:type], value)].pack("J")
      else
        bytes[field[:offset], SIZES[field[:type]]] = [scalar(value, field[:type], key)].pack(FORMATS.fetch(field[:type]))
      end
    end
  end
end
