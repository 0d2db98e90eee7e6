# frozen_string_literal: true

# Quire for Ruby: a runtime for language models that read long documents. README.md begins with an example.
module Quire
end

require_relative "quire/version"
require_relative "quire/runtime"
require_relative "quire/snapshots"
require_relative "quire/strategies"
