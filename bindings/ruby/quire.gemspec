# frozen_string_literal: true

require_relative "lib/quire/version"

Gem::Specification.new do |spec|
  spec.name = "quire"
  spec.version = Quire::VERSION
  spec.summary = "Binding of Quire, a runtime for language models that read long documents"
  spec.description = "Sessions that read documents much longer than the model's window, stream answers, fork, and go on " \
                     "after a restart. Written with fiddle: nothing is compiled."
  spec.authors = ["The Quire authors"]
  spec.license = "MIT"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.glob("lib/**/*.rb", base: __dir__) + ["README.md", "LICENSE"]
  spec.require_paths = ["lib"]
end
