# frozen_string_literal: true

module Quire
  VERSION = "0.1.0"
end
