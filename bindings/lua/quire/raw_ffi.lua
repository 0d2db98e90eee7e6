-- The raw layer of LuaJIT: the functions of quire.h through its FFI, in the shape that bindings/plans.py describes, so that the
-- layer above is the same as on Lua 5.4. Callbacks come on this thread and during a call alone; what would come on a
-- thread of the library (the function of the log, reading a loaded session's bytes) is not here, because no Lua may run there.
local ffi = require("ffi")
local interface = require("quire.interface")

ffi.cdef(interface.declarations)

local records = require("quire.ffi_records")
local scalar, list, record, table_of, filled = records.scalar, records.list, records.record, records.table_of, records.filled

ffi.cdef("void* dlopen(const char* file, int mode);")

local path = os.getenv("QUIRE_LIBRARY") or "libquire.so.0"
local C = ffi.load(path)
-- LuaJIT unloads libraries when a state is closed, while their threads may still run: RTLD_NOW | RTLD_NODELETE keeps it.
ffi.C.dlopen(path, 0x1002)

for name, struct in pairs(interface.structs) do
  assert(not ffi.abi("64bit") or ffi.sizeof(name) == struct.size, name)
  for field, offset in pairs(struct.offsets) do
    assert(not ffi.abi("64bit") or ffi.offsetof(name, field) == offset, field)
  end
end

local raw = {}
local raise

-- Of calls under way. While one reads its arguments or makes its results the collector may run, and with it a finalizer of
-- the user that closes anything.
local n_calls = 0
local gone = setmetatable({}, { __mode = "k" }) -- handles that were released or collected, which a finalizer may still have

local function drop(handle)
  gone[handle] = true
  C[tostring(ffi.typeof(handle)):match("struct (quire_%w+)") .. "_release"](handle)
end
local err = ffi.new("quire_error")

-- on_error(function): called as function(code, message, offset, os_error) where a call fails; it must raise.
function raw.on_error(callback)
  raise = callback
end

local function check(status)
  if status < 0 then
    raise(status, ffi.string(err.message), tonumber(err.offset), err.os_error)
  end
  return status
end

-- The steps of a call: each takes what it needs of the arguments, adds C's, and says what is to be returned.
local step = {}

function step.error(call)
  call:add(err)
end

function step.handle(call)
  local handle = call:argument()
  call:add(not gone[handle] and handle or nil)
end

function step.made(call, kind)
  local out = ffi.new(kind .. "*[1]")
  call:add(out)
  call:give(function()
    return ffi.gc(out[0], drop)
  end)
end

function step.text(call)
  local value = call:argument()
  if type(value) ~= "string" then
    error("expected a string, not " .. type(value), 0)
  end
  call:add(value)
  call.count = #value
end

function step.list(call, kind)
  local array, n = list(call:argument(), kind, "ids", call.keep)
  if call.listed and call.listed ~= n then
    error("not one for each id", 0)
  end
  call:add(array)
  call.count, call.listed = n, n
end

function step.count(call)
  call:add(call.count)
end

function step.options(call, kind)
  local fields = call:argument()
  local struct = fields and record(fields, kind, call.keep)
  call.keep[#call.keep + 1] = struct
  call:add(struct)
end

function step.result(call, kind)
  local struct = ffi.new(kind)
  if interface.structs[kind].grows then
    struct.struct_size = ffi.sizeof(kind)
  end
  call:add(struct)
  call:give(function()
    return table_of(struct, kind)
  end)
end

function step.size(call, kind)
  call:add(ffi.sizeof(kind))
end

function step.number(call, kind)
  local number = ffi.new(kind .. "[1]")
  call:add(number)
  call:give(function()
    return tonumber(number[0])
  end)
end

function step.scalar(call, kind)
  call:add(scalar(call:argument(), kind, "argument"))
end

function step.filled(call, kind)
  call:add(nil)
  call.buffer = call.n
  call:add(0)
  call.needed = ffi.new("size_t[1]")
  call:add(call.needed)
  call:give(function()
    return filled(call[call.buffer], call.needed[0], kind)
  end)
end

local TOO_SMALL = interface.constants.ERROR_BUFFER_TOO_SMALL
local Call = {}
Call.__index = Call

function Call:argument()
  self.used = self.used + 1
  return self.arguments[self.used]
end

function Call:add(value)
  self.n = self.n + 1
  self[self.n] = value
end

function Call:give(result)
  self.results[#self.results + 1] = result
end

-- Runs the function; one that fills a buffer is asked for the size first.
function Call:run(plan, f)
  for _, what in ipairs(plan) do
    step[what[1]](self, what[2])
    if what[1] == "filled" then
      self.kind = what[2]
    end
  end
  local returned = f(unpack(self, 1, self.n))
  if self.needed and returned >= 0 then
    repeat -- the result may grow between two calls
      self[self.buffer] = ffi.new(self.kind .. "[?]", self.needed[0] + 1)
      self[self.buffer + 1] = self.needed[0]
      returned = f(unpack(self, 1, self.n))
    until returned ~= TOO_SMALL
  end
  return returned
end

local function invoke(name, plan, ...)
  local call = setmetatable({ arguments = { ... }, used = 0, n = 0, results = {}, keep = { callbacks = {} } }, Call)
  n_calls = n_calls + 1
  local ok, returned = pcall(call.run, call, plan, C["quire_" .. name])
  n_calls = n_calls - 1
  for _, callback in ipairs(call.keep.callbacks) do
    callback:free()
  end
  if not ok then
    error(returned, 0)
  end
  if plan.returns == "quire_status" then
    check(returned)
  elseif plan.returns == "const char*" then
    return ffi.string(returned)
  elseif plan.returns ~= "void" then
    return tonumber(returned)
  end
  local results = {}
  for i, result in ipairs(call.results) do
    results[i] = result()
  end
  return unpack(results)
end
-- A compiled trace must not call a function that calls back into Lua.
jit.off(invoke, true)
jit.off(Call.run, true)

for name, plan in pairs(interface.functions) do
  raw[name] = function(...)
    return invoke(name, plan, ...)
  end
end

-- release(handle): drops its reference now, or leaves that to the collector where a call is under way, which may have it;
-- it must not be used again.
function raw.release(handle)
  if n_calls > 0 then
    return
  end
  ffi.gc(handle, nil)
  drop(handle)
end

local event = ffi.new("quire_event")
local TOKEN, END, TIMEOUT = interface.constants.EVENT_TOKEN, interface.constants.END, interface.constants.TIMEOUT
event.struct_size = ffi.sizeof(event)

-- stream_next(stream, timeout_ms): an event, nil at the end, or false where none came in time. A token's `kind` is
-- "token"; of other events it is the number, and all fields are there.
function raw.stream_next(stream, timeout_ms)
  local status = C.quire_stream_next(stream, timeout_ms, event, err)
  if status == 0 then
    n_calls = n_calls + 1 -- the event's text lives as long as the stream
    local found
    if event.kind == TOKEN and event.n_top_logprobs == 0 then
      found = {
        kind = "token",
        text = event.text_len > 0 and ffi.string(event.text, event.text_len) or "",
        token = event.token,
        logprob = event.logprob,
        n_tokens = tonumber(event.n_tokens),
      }
    else
      found = table_of(event, "quire_event")
    end
    n_calls = n_calls - 1
    return found
  end
  check(status)
  if status == END then
    return nil
  end
  assert(status == TIMEOUT)
  return false
end

return raw
