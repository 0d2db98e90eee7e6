# frozen_string_literal: true

require_relative "helper"

# The raw layer: that it says what quire.h says, and that all of it was called.
class TestRaw < Minitest::Test
  include Helper

  RAW = Quire::Raw
  MISSING = [:session_load_from].freeze # the binding's README.md says why

  def test_structs_have_the_librarys_sizes
    inits = Quire::Interface::FUNCTIONS.keys.grep(/_init\z/)
    assert_operator inits.size, :>, 10
    inits.each { |name| RAW.public_send(name) }
    event = Quire::Memory.new(nil).tap { |memory| @bytes = memory.blank(:quire_event) }
    Quire::Library::FUNCTIONS[:event_init].call(event.address(@bytes), @bytes.bytesize)
    assert_equal Quire::Interface::STRUCTS[:quire_event][:size], @bytes.unpack1("L")
    assert_equal Quire::Interface::CONSTANTS[:VERSION], RAW.get_version
    assert_equal "OUT_OF_MEMORY", RAW.get_status_name(-3)
  end

  def test_a_library_with_another_abi_is_refused
    check = Quire::Library.method(:check_version)
    [[100, 100], [100, 102], [10_203, 10_203], [10_203, 10_300]].each { |wanted, found| assert_nil check.call(wanted, found) }
    [[100, 99], [102, 100], [100, 200], [100, 10_000], [10_203, 10_202], [10_203, 20_300]].each do |wanted, found|
      assert_raises(LoadError) { check.call(wanted, found) }
    end
    # That it is asked while the package is loaded.
    script = 'require "quire/interface"; old = Quire::Interface.send(:remove_const, :CONSTANTS); ' \
             'Quire::Interface::CONSTANTS = old.merge(VERSION: old[:VERSION] + 100).freeze; require "quire"'
    said = IO.popen([RbConfig.ruby, "-I", File.expand_path("../../bindings/ruby/lib", __dir__), "-e", script], err: %i[child out], &:read)
    assert_match(/ is of version 0\.1\.0; this package needs 0\.2\.0, or a later one with its ABI \(LoadError\)/, said)
  end

  # References are counted by the handles of this binding; the functions are there all the same.
  def test_references_can_be_counted_by_hand
    session = model.session.feed("Rain")
    each = { runtime: runtime, model: model, session: session, stream: session.stream(max_tokens: 1), cancel: Quire::Cancel.new,
             tokenizer: model.tokenizer, adapter: model.load_adapter("#{ADAPTERS}/attention"),
             store: Quire::Store.new("#{folder}/store") }
    each.each do |name, object|
      RAW.public_send(:"#{name}_retain", object.reference)
      RAW.public_send(:"#{name}_release", object.reference)
    end
    each.each_value { |object| object.reference.close }
    each.each_value { |object| assert_raises(Quire::ClosedError) { object.reference.acquire } }
    @runtime = nil
  end

  Minitest.after_run do
    next unless ENV["QUIRE_ALL_TESTS"] # they ran in this process

    uncalled = Quire::Interface::FUNCTIONS.keys - Helper::CALLED.keys - MISSING
    abort "not called: #{uncalled.join(', ')}" unless uncalled.empty?
  end
end
