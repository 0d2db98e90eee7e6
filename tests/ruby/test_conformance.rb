# frozen_string_literal: true

require_relative "helper"
require_relative "conformance"

# The conformance suite of all bindings (tests/conformance).
class TestConformance < Minitest::Test
  include Helper

  FILES = Dir["#{Helper::SOURCE}/tests/conformance/*.json"].to_h do |path|
    [File.basename(path, ".json"), JSON.parse(File.read(path), symbolize_names: true)]
  end
  raise "few cases" unless FILES.sum { |_, file| file[:cases].size } > 20

  FILES.each do |name, file|
    define_method("test_#{name}") do
      Quire::Runtime.open(threads: 1) do |runtime|
        of_file = runtime.load("#{SOURCE}/#{file[:model]}")
        file[:cases].each { |described| check_case(of_file, described) }
      end
    end
  end

  private

  def check_case(of_file, described)
    Dir.mktmpdir do |here|
      conformance = Conformance.new(of_file, here)
      described[:steps].each { |step| check(conformance, step, described[:name]) }
    ensure
      conformance.close
    end
  end

  def check(conformance, step, name)
    what = "#{name}: #{step}"
    result = conformance.run(step)
    refute step[:error], "#{what}: the call succeeded"
    (step[:expect] || {}).each do |key, expected|
      assert Conformance.agree?(result.fetch(key), expected), "#{what}: #{key} is #{result[key]}"
    end
  rescue Quire::Error => e
    wanted = step[:error] or raise
    assert_equal wanted[:status], e.status.to_s, what
    assert_equal wanted[:offset], e.offset || -1, what if wanted[:offset]
    assert_includes e.message, wanted[:message].to_s, what
  end
end
