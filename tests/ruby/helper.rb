# frozen_string_literal: true

# A tiny model for the tests, which need minitest alone. It notes which functions of quire.h are called.
require "minitest/autorun"
require "fileutils"
require "tmpdir"
require "quire"

module Helper
  SOURCE = File.expand_path("../..", __dir__)
  MODEL = "#{SOURCE}/tests/golden/models/text_256"
  ADAPTERS = "#{SOURCE}/tests/golden/adapters"
  CALLED = {}

  Quire::Library::FUNCTIONS.each do |name, function|
    function.define_singleton_method(:call) do |*arguments|
      CALLED[name] = true
      super(*arguments)
    end
  end

  def runtime
    @runtime ||= Quire::Runtime.new(threads: 2)
  end

  def model
    @model ||= runtime.load(MODEL)
  end

  def teardown
    @runtime&.close
    FileUtils.rm_rf(@folder) if @folder
  end

  # A directory that goes with the test.
  def folder
    @folder ||= Dir.mktmpdir
  end

  def ids(count, first = 0)
    Array.new(count) { |i| 3 + (first + i) % 300 }
  end

  # That the block raises the error of this status, with `part` in its message; the error.
  def assert_status(status, part = "", &block)
    error = assert_raises(Quire::Error, &block)
    assert_equal status, error.status, error.message
    assert_includes error.message, part
    error
  end

  def tokens(session, max_tokens, **options)
    session.stream(max_tokens: max_tokens, ignore_eos: true, **options) { |stream| stream.grep(Quire::Token).map(&:token) }
  end
end
