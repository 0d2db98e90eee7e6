-- A small test harness, and a tiny model. It notes which functions of quire.h are called: load it before quire.
local raw = require("quire.raw")

local harness = { called = {}, n_failed = 0, n_run = 0 }

local function kind_of(handle)
  return jit and tostring(require("ffi").typeof(handle)):match("quire_%w+") or getmetatable(handle).__name
end

for name, call in pairs(raw) do
  raw[name] = function(...)
    harness.called["quire_" .. (name == "release" and kind_of(...):sub(7) .. "_release" or name)] = true
    return call(...)
  end
end

local quire = require("quire")

harness.source = assert(os.getenv("QUIRE_SOURCE"))
harness.model_path = harness.source .. "/tests/golden/models/text_256"
harness.adapters = harness.source .. "/tests/golden/adapters/"

-- Values as text, tables by their contents.
local function show(value)
  if type(value) == "number" then
    return ("%.14g"):format(value) -- 2 and 2.0 are the same
  elseif type(value) ~= "table" or getmetatable(value) then
    return type(value) == "string" and ("%q"):format(value) or tostring(value)
  end
  local parts = {}
  for key, each in pairs(value) do
    parts[#parts + 1] = tostring(key) .. "=" .. show(each)
  end
  table.sort(parts)
  return "{" .. table.concat(parts, ", ") .. "}"
end

function harness.equal(found, expected, what)
  if show(found) ~= show(expected) then
    error(("%s: expected %s, found %s"):format(what or "value", show(expected), show(found)), 2)
  end
end

-- That call(...) raises a quire error of this status, whose message has `part`; the error.
function harness.raises(status, part, call, ...)
  local ok, problem = pcall(call, ...)
  if ok then
    error("expected " .. status .. ", but the call succeeded", 2)
  elseif not quire.is_error(problem, status) or not problem.message:find(part or "", 1, true) then
    error(("expected %s with %q, found %s"):format(status, part or "", tostring(problem)), 2)
  end
  return problem
end

-- That call(...) raises something else, which has `part`.
function harness.refuses(part, call, ...)
  local ok, problem = pcall(call, ...)
  if ok or not tostring(problem):find(part, 1, true) then
    error(("expected an error with %q, found %s"):format(part, ok and "none" or tostring(problem)), 2)
  end
end

function harness.ids(n, first)
  local ids = {}
  for i = 0, n - 1 do
    ids[i + 1] = 3 + ((first or 0) + i) % 300
  end
  return ids
end

-- The tokens and text of a stream, and its last event.
function harness.drain(stream)
  local tokens, text, last = {}, {}, nil
  for event in stream do
    tokens[#tokens + 1] = event.kind == "token" and event.token or nil
    text[#text + 1], last = event.text, event
  end
  return tokens, table.concat(text), last
end

function harness.test(name, run)
  harness.n_run = harness.n_run + 1
  local ok, problem = xpcall(run, function(raised)
    return type(raised) == "string" and debug.traceback(raised, 2) or tostring(raised)
  end)
  if not ok then
    harness.n_failed = harness.n_failed + 1
    print("FAILED " .. name .. ": " .. problem)
  end
end

-- A folder that is removed at the end.
harness.folder = os.tmpname()
os.remove(harness.folder)
assert(os.execute("mkdir " .. harness.folder))

function harness.finish()
  os.execute("rm -r " .. harness.folder)
  print(("%s: %d tests, %d failed"):format(jit and jit.version or _VERSION, harness.n_run, harness.n_failed))
  os.exit(harness.n_failed == 0 and harness.n_run > 0 and 0 or 1, true)
end

return harness
