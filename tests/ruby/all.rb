# frozen_string_literal: true

# All tests of the Ruby binding in one process, and then whether they called every function of quire.h.
ENV["QUIRE_ALL_TESTS"] = "1"
Dir["#{__dir__}/test_*.rb"].sort.each { |file| require file }
