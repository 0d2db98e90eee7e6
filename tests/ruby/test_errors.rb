# frozen_string_literal: true

require_relative "helper"

# Each status as a class of errors: most by what really goes wrong.
class TestErrors < Minitest::Test
  include Helper

  STATUSES = Quire::Interface::CONSTANTS.keys.grep(/\AERROR_/) - [:ERROR_MESSAGE_BYTES]

  def provoke(status, &block)
    error = assert_status(status, &block)
    assert_equal [status, Quire.const_get("#{status.to_s.split('_').map(&:capitalize).join}Error")], [error.status, error.class]
    @provoked = (@provoked || []) << status
    error
  end

  # A copy of the model whose last norm is not a number.
  def broken_model
    copy = "#{folder}/broken"
    FileUtils.cp_r(MODEL, copy)
    File.open("#{copy}/model.safetensors", "r+b") do |file|
      size = file.read(8).unpack1("Q")
      offset = JSON.parse(file.read(size))["model.norm.weight"]["data_offsets"][0]
      file.seek(8 + size + offset)
      file.write([Float::NAN].pack("e") * 4)
    end
    runtime.load(copy)
  end

  def test_what_goes_wrong
    session = model.session("full")
    assert_nil provoke(:EMPTY) { session.stream(max_tokens: 1) }.offset
    assert_equal 7, provoke(:INVALID_TEXT) { session.feed("half a \xE9\x9B") }.offset
    assert_equal 1, provoke(:INVALID_TOKEN) { session.feed_tokens([5, 320]) }.offset
    provoke(:BAD_STRATEGY) { model.session("full(") }
    provoke(:NOT_FOUND) { runtime.load("/no/such/folder") }
    provoke(:INVALID_ARGUMENT) { session.truncate(7) }
    provoke(:UNSUPPORTED) { model.session("beacon") }
    provoke(:BUDGET) { model.session(kv_compressed_budget_bytes: 1) }
    provoke(:IO) { session.save(folder) } # it is a directory
    provoke(:BAD_FILE) { Quire.describe_snapshot("#{MODEL}/config.json") }
    session.feed_tokens(ids(250))
    provoke(:OVERFLOW) { session.stream(max_tokens: 100) }
    stream = session.stream(max_tokens: 1)
    provoke(:BUSY) { session.feed("more") }
    stream.close
    provoke(:CLOSED) { stream.next }
    provoke(:CANCELLED) { runtime.load(MODEL, cancel: Quire::Cancel.new.tap(&:trigger)) }
    provoke(:NUMERIC) { broken_model.session.feed("Rain").generate(2).to_a }
    provoke(:BUFFER_TOO_SMALL) { too_small }
    provoke(:OUT_OF_MEMORY) { raise out_of_memory }
    # INTERNAL is a bug of the library, and DEVICE takes a GPU.
    assert_equal [:ERROR_INTERNAL, :ERROR_DEVICE], STATUSES - @provoked.map { |status| :"ERROR_#{status}" }
  end

  # What the binding never does: it offers less room than there must be.
  def too_small
    call = Class.new(Quire::Raw::Call) do
      private

      def fill
        @given[@fill, 2] = [@memory.address("\0".b * 8), 1]
        @function.call(*@given)
      end
    end
    call.new(:chat_get_list, Quire::Memory.new(nil)).run([])
  end

  # The error of a process that may not have more memory, as that process says.
  def out_of_memory
    script = <<~RUBY
      require "quire"
      session = Quire::Runtime.new(threads: 1).load(#{MODEL.inspect}).session(overflow: :extrapolate, kv_type: :f32)
      Process.setrlimit(:AS, File.read("/proc/self/statm").to_i * 4096 + (64 << 20))
      begin
        session.fill_random(1_000_000)
      rescue Quire::OutOfMemoryError => e
        print e.code, " ", e.message.delete_prefix("OUT_OF_MEMORY: ")
      end
    RUBY
    code, message = IO.popen([RbConfig.ruby, "-e", script], &:read).split(" ", 2)
    Quire::Error.for_code(Integer(code)).new(message)
  end

  def test_classes
    STATUSES.each do |name|
      code = Quire::Interface::CONSTANTS[name]
      raised = assert_raises(Quire::Error) { raise Quire::Error.for_code(code).new("why", offset: 3, os_error: 4) }
      assert_equal [code, name.to_s.delete_prefix("ERROR_").to_sym, 3, 4], [raised.code, raised.status, raised.offset, raised.os_error]
      assert_equal "#{raised.status}: why", raised.message
    end
    assert_equal STATUSES.size, STATUSES.map { |name| Quire::Error.for_code(Quire::Interface::CONSTANTS[name]) }.uniq.size
    assert_equal :UNKNOWN, Quire::Error.for_code(-999).new("why", code: -999).status
  end
end
