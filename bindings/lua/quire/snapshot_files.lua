-- Snapshots in paths, and in file objects: what has read and seek, or write, as io.open returns.
local raw = require("quire.raw")
local calls = require("quire.calls")

local files = {}

-- A quire_snapshot_reader for calls that read on this thread alone.
local function reader(file, state)
  return {
    n_bytes = assert(file:seek("end")),
    name = "the file object",
    read = calls.guard(state, function(offset, n)
      assert(file:seek("set", offset))
      local data, message, number = file:read(n)
      if data and #data > n then
        error(("read(%d) returned %d bytes"):format(n, #data), 0)
      end
      return data, message or "it ended early", number
    end),
  }
end

-- by_path(path) or by_reader(quire_snapshot_reader), whichever the file is for.
function files.read(file, by_path, by_reader)
  if type(file) == "string" then
    return by_path(file)
  end
  local state = {}
  return calls.run(state, by_reader, reader(file, state))
end

function files.save(session, file, snapshot_options)
  if type(file) == "string" then
    return raw.session_save(session, file, snapshot_options)
  end
  local state = {}
  local writer = {
    name = "the file object",
    write = calls.guard(state, function(bytes)
      local ok, message, number = file:write(bytes)
      return ok and #bytes, message or "write() returned nothing", number
    end),
    commit = calls.guard(state, function()
      if file.flush then
        return file:flush()
      end
      return true
    end),
  }
  calls.run(state, raw.session_save_to, session, writer, snapshot_options)
end

local function all_of(file)
  assert(file:seek("set", 0))
  return assert(file:read("*a"))
end

-- LuaJIT: from a temporary file, whose name goes at once; the session keeps it open.
local function load_copy(model, data, session_options)
  local path = os.tmpname()
  local copy = assert(io.open(path, "wb"))
  local written, problem = copy:write(data)
  copy:close()
  local ok, handle = pcall(written and raw.session_load or error, written and model or problem, path, session_options)
  os.remove(path)
  return ok and handle or error(handle, 0)
end

-- A loaded session reads its keys and values on threads of the library, where no Lua may run. So all of a file object is
-- read now, and the library reads the copy.
function files.load_session(model, file, session_options)
  if type(file) == "string" then
    return raw.session_load(model, file, session_options)
  end
  local data = all_of(file)
  if not raw.bytes then
    return load_copy(model, data, session_options)
  end
  local bytes = raw.bytes(data)
  local ok, handle = pcall(raw.session_load_from, model, { bytes = bytes, name = "the file object" }, session_options)
  if not ok then
    bytes:abandon()
    error(handle, 0)
  end
  return handle
end

return files
