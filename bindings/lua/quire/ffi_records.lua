-- Structs of quire.h for LuaJIT's FFI, as tables of their fields, and callbacks.
local ffi = require("ffi")
jit.off(true, true) -- of this file: each field would be a trace of its own, and these would drive out those of the token path
local interface = require("quire.interface")

local LEAST = { int32_t = -2 ^ 31, uint32_t = 0, size_t = 0 }
local MOST = { int32_t = 2 ^ 31 - 1, uint32_t = 2 ^ 32 - 1, size_t = 2 ^ 53 }

local function scalar(value, kind, name)
  if type(value) ~= "number" and not (type(value) == "cdata" and tonumber(value)) then
    error(("%s: expected a number, not %s"):format(name, type(value)), 0)
  end
  local number = tonumber(value)
  if kind ~= "float" and kind ~= "double" and number % 1 ~= 0 then
    error(("%s: expected an integer, not %s"):format(name, number), 0)
  end
  if LEAST[kind] and (number < LEAST[kind] or number > MOST[kind]) then
    error(("%s: %s is out of range"):format(name, number), 0)
  end
  return value
end

-- Why a callback failed: it returned nil, message, errno; or raised the first of these.
local function explain(e, failure, message, os_error)
  message = tostring(message or failure):sub(1, 511)
  ffi.copy(e.message, message, #message)
  e.os_error = tonumber(os_error) or 0
  return -1
end

local make = {}

function make.progress(callback)
  return ffi.cast("quire_progress_callback", function(_, done, total)
    pcall(callback, tonumber(done), tonumber(total))
  end)
end

function make.write(callback)
  return ffi.cast("quire_write_callback", function(_, bytes, n, e)
    local ok, taken, message, os_error = pcall(callback, ffi.string(bytes, n))
    if ok and type(taken) == "number" then
      return taken
    end
    return explain(e, taken, message, os_error)
  end)
end

function make.commit(callback)
  return ffi.cast("quire_commit_callback", function(_, e)
    local ok, kept, message, os_error = pcall(callback)
    if ok and kept then
      return 0
    end
    return explain(e, kept, message, os_error)
  end)
end

function make.read(callback)
  return ffi.cast("quire_read_callback", function(_, offset, buffer, n, e)
    local ok, data, message, os_error = pcall(callback, tonumber(offset), tonumber(n))
    if ok and type(data) == "string" then
      ffi.copy(buffer, data, math.min(#data, tonumber(n)))
      return #data
    end
    return explain(e, data, message, os_error)
  end)
end

local record, table_of

-- A list as an array of C, and the number of its elements. `keep` holds what C will point to.
local function list(values, kind, name, keep)
  if values == nil then
    return nil, 0
  end
  if type(values) ~= "table" then
    error(("%s: expected a list, not %s"):format(name, type(values)), 0)
  end
  local array = ffi.new(kind .. "[?]", #values + 1)
  keep[#keep + 1] = array
  for i = 1, #values do -- a hole is refused, too
    local value = values[i]
    if kind == "quire_text" then
      if type(value) ~= "string" then
        error(("%s: expected a string, not %s"):format(name, type(value)), 0)
      end
      array[i - 1].data, array[i - 1].len = value, #value
    elseif interface.structs[kind] then
      array[i - 1] = record(value, kind, keep)
    else
      array[i - 1] = scalar(value, kind, name)
    end
  end
  return array, #values
end

local set = {}

function set.text(to, value, field)
  if type(value) ~= "string" then
    error(("%s: expected a string, not %s"):format(field[1], type(value)), 0)
  end
  to[field[1]], to[field[3]] = value, #value
end

function set.handle(to, value, field)
  to[field[1]] = value
end

function set.list(to, value, field, keep)
  to[field[1]], to[field[4]] = list(value, field[3], field[1], keep)
end

function set.object(_, _, field)
  error(("%s: LuaJIT's FFI cannot offer this, because it is used on other threads"):format(field[1]), 0)
end

-- A table of fields as a struct.
function record(fields, kind, keep)
  local struct, known = interface.structs[kind], {}
  local to = ffi.new(kind)
  keep[#keep + 1] = fields
  if struct.grows then
    to.struct_size = struct.size
  end
  for _, field in ipairs(struct.fields) do
    local name, what = field[1], field[2]
    local value = fields[name]
    known[name] = true
    if value ~= nil and set[what] then
      set[what](to, value, field, keep)
    elseif value ~= nil and make[what] then
      to[name] = make[what](value)
      keep.callbacks[#keep.callbacks + 1] = to[name]
    elseif value ~= nil then
      to[name] = scalar(value, what, name)
    end
  end
  for name in pairs(fields) do
    if not known[name] then
      error("there is no option " .. tostring(name), 0)
    end
  end
  return to
end

local function filled(array, n, kind)
  if kind == "char" then
    return ffi.string(array, n)
  end
  local values, struct = {}, interface.structs[kind]
  for i = 1, tonumber(n) do
    values[i] = struct and table_of(array[i - 1], kind) or tonumber(array[i - 1])
  end
  return values
end

-- A struct as a table of its fields.
function table_of(from, kind)
  local fields = {}
  for _, field in ipairs(interface.structs[kind].fields) do
    local name, what = field[1], field[2]
    if what == "chars" then
      fields[name] = ffi.string(from[name])
    elseif what == "text" then
      fields[name] = from[name] ~= nil and ffi.string(from[name], from[field[3]]) or ""
    elseif what == "list" then
      fields[name] = filled(from[name], from[field[4]], field[3])
    elseif not make[what] and not set[what] then
      fields[name] = tonumber(from[name])
    end
  end
  return fields
end

return { scalar = scalar, list = list, record = record, table_of = table_of, filled = filled }
