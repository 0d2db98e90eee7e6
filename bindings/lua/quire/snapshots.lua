-- Stores of documents, and snapshots by themselves.
local raw = require("quire.raw")
local calls = require("quire.calls")
local constants = require("quire.interface").constants
local files = require("quire.snapshot_files")
local handles = require("quire.handles")
local json = require("quire.json")
local options = require("quire.options")
local session = require("quire.session")

local Store = handles.class("Store")
local snapshots = {}

-- A directory of documents that were read, which processes share; it is made where it is missing. Options: budget_bytes (of
-- all entries together; 0: no limit), must_exist.
function snapshots.store(path, given)
  local fields = options.copy(given)
  options.flag(fields, "must_exist", true, constants.STORE_MUST_EXIST)
  return handles.new(Store, raw.store_open(path, fields))
end

-- Puts what a session has read there. Options: title, progress, cancel. Returns a table of the entry's name, n_tokens and
-- n_computed.
function Store:put(from, given)
  local fields = options.copy(given)
  local title = fields.title or ""
  fields.title = nil
  return calls.snapshot(fields, function(watched)
    return raw.store_put(handles.of(self), handles.of(from), title, watched)
  end)
end

-- How much of a text is there for a session of these options: name ("": none), n_tokens (of the first ones), n_computed
-- (that need not be read again) and reason (why there are none).
function Store:find(model, ids, given)
  return raw.store_find(handles.of(self), handles.of(model), options.of_session(given), ids)
end

-- A session that holds as many of the first tokens as are there (Session:n_tokens); feed it the others. Raises NOT_FOUND,
-- which says why, where there are none.
function Store:load(model, ids, given)
  local _, handle = raw.store_load(handles.of(self), handles.of(model), options.of_session(given), ids)
  return session.new(handle)
end

-- Removes an entry; sessions that have it open go on.
function Store:remove(name)
  raw.store_remove(handles.of(self), name)
end

-- Reads all of an entry; an error says what is damaged. Options: progress, cancel.
function Store:verify(name, given)
  calls.snapshot(given, function(watched)
    raw.store_verify(handles.of(self), name, watched)
  end)
end

-- What is in the store: a table (quire_store_describe).
function Store:describe()
  return json(raw.store_describe(handles.of(self)))
end

-- What a snapshot says of itself: a table (quire_snapshot_describe). file: as of Model:load_session.
function snapshots.describe(file)
  return json(files.read(file, raw.snapshot_describe, raw.snapshot_describe_from))
end

-- Reads all of a snapshot; an error says what is damaged. Options: progress, cancel.
function snapshots.verify(file, given)
  calls.snapshot(given, function(watched)
    files.read(file, function(path)
      raw.snapshot_verify(path, watched)
    end, function(reader)
      raw.snapshot_verify_from(reader, watched)
    end)
  end)
end

return snapshots
