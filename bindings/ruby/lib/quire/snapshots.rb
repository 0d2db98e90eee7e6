# frozen_string_literal: true

require "json"
require_relative "handle"
require_relative "options"
require_relative "raw"
require_relative "session"
require_relative "snapshot_files"

module Quire
  # A directory of documents that were read, which processes share. Any thread may use it.
  class Store < Handle
    # The directory is made where it is missing, unless must_exist. budget_bytes: of all entries together; 0: no limit.
    def initialize(path, budget_bytes: 0, must_exist: false)
      flags = must_exist ? Interface::CONSTANTS[:STORE_MUST_EXIST] : 0
      super(Raw.store_open(Options.path(path), { budget_bytes: budget_bytes, flags: flags }))
    end

    # Puts what a session has read there: a hash of the entry's name, n_tokens and n_computed.
    def put(session, title: "", progress: nil, cancel: nil)
      options = Options.watched({ progress: progress, cancel: cancel })
      Raw.store_put(reference, session.reference, title, options).slice(:name, :n_tokens, :n_computed)
    end

    # How much of a text is there for a session of these options: a hash of name (empty: none), n_tokens (of the first ones),
    # n_computed (that need not be read again) and reason (why there are none).
    def find(model, ids, strategy = nil, **options)
      Raw.store_find(reference, model.reference, Options.session(strategy, options), ids).except(:flags)
    end

    # A session that holds as many of the first tokens as are there (Session#n_tokens); feed it the others. NotFoundError, which
    # says why, where there are none.
    def load(model, ids, strategy = nil, **options, &block)
      _, session = Raw.store_load(reference, model.reference, Options.session(strategy, options), ids)
      Handle.closing(Session.new(session, model), &block)
    end

    # Removes an entry; sessions that have it open go on.
    def remove(name)
      Raw.store_remove(reference, name)
    end

    # Reads all of an entry; an error says what is damaged.
    def verify(name, progress: nil, cancel: nil)
      Raw.store_verify(reference, name, Options.watched({ progress: progress, cancel: cancel }))
    end

    # What is in the store: a hash (quire_store_describe).
    def describe
      JSON.parse(Raw.store_describe(reference), symbolize_names: true)
    end
  end

  class << self
    # What a snapshot says of itself: a hash (quire_snapshot_describe). file: a path, or an IO that can seek.
    def describe_snapshot(file)
      JSON.parse(SnapshotFiles.read(:snapshot_describe, file), symbolize_names: true)
    end

    # Reads all of a snapshot; an error says what is damaged. progress and cancel: as of Runtime#load.
    def verify_snapshot(file, progress: nil, cancel: nil)
      SnapshotFiles.read(:snapshot_verify, file, Options.watched({ progress: progress, cancel: cancel }))
    end
  end
end
