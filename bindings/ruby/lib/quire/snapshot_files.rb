# frozen_string_literal: true

require "tempfile"
require_relative "options"
require_relative "raw"

module Quire
  # Snapshots in paths, and in IOs: what has write, or read and seek.
  module SnapshotFiles
    class << self
      # A Pathname is one, which has read and write too. An open File has to_path, but is used as the IO that it is.
      def path?(file)
        file.respond_to?(:to_str) || (file.respond_to?(:to_path) && !file.respond_to?(:seek))
      end

      def save(session, file, options)
        return Raw.session_save(session, Options.path(file), options) if path?(file)

        commit = -> { !file.respond_to?(:flush) || file.flush || true }
        Raw.session_save_to(session, { write: file.method(:write), commit: commit, name: "the IO" }, options)
      end

      # A loaded session reads its keys and values on threads of the library, where no Ruby may run. So an IO is copied to a
      # temporary file, whose name goes at once; the session keeps it open.
      def load(model, file, options)
        return Raw.session_load(model, Options.path(file), options) if path?(file)

        Tempfile.create("quire") do |copy|
          file.rewind if file.respond_to?(:rewind)
          IO.copy_stream(file, copy)
          copy.flush
          Raw.session_load(model, copy.path, options)
        end
      end

      # A function by its path, or the one that ends with _from by a reader of it, which is used on this thread alone.
      def read(function, file, *options)
        return Raw.public_send(function, Options.path(file), *options) if path?(file)

        Raw.public_send(:"#{function}_from", reader(file), *options)
      end

      private

      def reader(file)
        file.seek(0, IO::SEEK_END)
        read = lambda do |offset, size|
          file.seek(offset, IO::SEEK_SET)
          file.read(size)
        end
        { n_bytes: file.pos, read: read, name: "the IO" }
      end
    end
  end
end
