-- Handles and the collector: in which order they may go; and the declarations.
local harness = require("harness")
local interface = require("quire.interface")
local quire = require("quire")
local raw = require("quire.raw")
local equal, raises, test, drain = harness.equal, harness.raises, harness.test, harness.drain

local function collect()
  collectgarbage()
  collectgarbage()
end

local function permutations(items, n, visit)
  if n == 0 then
    return visit(items)
  end
  for i = 1, n do
    items[i], items[n] = items[n], items[i]
    permutations(items, n - 1, visit)
    items[i], items[n] = items[n], items[i]
  end
end

test("handles may go in any order", function()
  permutations({ "runtime", "model", "session", "stream" }, 4, function(order)
    local held = { runtime = quire.runtime({ threads = 1 }) }
    held.model = held.runtime:load(harness.model_path)
    held.session = held.model:session()
    held.session:feed("Rain fell")
    held.stream = held.session:stream({ max_tokens = 3, ignore_eos = true })
    for i, name in ipairs(order) do
      held[name] = nil
      collect()
      if i == 2 and held.stream then
        equal(select(3, drain(held.stream)).finish_reason, "max_tokens")
      end
    end
  end)
end)

test("closing a runtime ends everything", function()
  local runtime = quire.runtime({ threads = 1 })
  local model = runtime:load(harness.model_path)
  local session = model:session()
  session:feed_tokens(harness.ids(200))
  local stream = session:stream(1)
  runtime:close()
  runtime:close()
  raises("CLOSED", "", drain, stream)
  raises("CLOSED", "", model.session, model)
  raises("CLOSED", "this Runtime was closed", runtime.devices, runtime)
end)

local function resident_bytes()
  return tonumber(io.open("/proc/self/statm"):read("*a"):match("^%d+ (%d+)")) * 4096
end

test("a thousand sessions leave nothing", function()
  local runtime = quire.runtime({ threads = 1 })
  local model, after_warm_up = runtime:load(harness.model_path), nil
  for i = 1, 1200 do
    local session = model:session("dca")
    session:feed("Rain fell on the harbour")
    session:generate({ max_tokens = 1, ignore_eos = true })
    if i % 50 == 0 then
      collect()
    end
    after_warm_up = i == 200 and resident_bytes() or after_warm_up
  end
  collect()
  assert(resident_bytes() - after_warm_up < 8e6, resident_bytes() - after_warm_up)
  runtime:close()
end)

-- References are counted by handles of this layer; the functions are there all the same.
test("references can be counted by hand", function()
  local runtime = quire.runtime({ threads = 1 })
  local model = runtime:load(harness.model_path)
  local session = model:session()
  session:feed("Rain")
  local each = { runtime = runtime, model = model, session = session, stream = session:stream(1), cancel = quire.cancel(),
    tokenizer = model:tokenizer(), adapter = model:load_adapter(harness.adapters .. "attention"),
    store = quire.store(harness.folder .. "/counted") }
  for name, object in pairs(each) do
    raw[name .. "_retain"](object.handle)
    raw[name .. "_release"](object.handle)
    object:close()
    object:close()
    raises("CLOSED", "was closed", require("quire.handles").of, object)
  end
end)

-- The collector runs while the labels are read, and with it what closes the session.
test("a finalizer may close what a call is given", function()
  local runtime = quire.runtime({ threads = 1 })
  local model = runtime:load(harness.model_path)
  local text, labels = ("Rain fell "):rep(20000), {}
  for i = 1, 5000 do
    labels[i] = { begin = 10 * (i - 1), ["end"] = 10 * i, id = i }
  end
  local n_closed = 0
  local pause, speed = collectgarbage("setpause", 1), collectgarbage("setstepmul", 1000)
  for _ = 1, 20 do
    local session = model:session("dca")
    local function close()
      session:close()
      n_closed = n_closed + 1
    end
    if newproxy then
      getmetatable(newproxy(true)).__gc = close
    else
      setmetatable({}, { __gc = close })
    end
    local ok, problem = pcall(raw.session_feed_labelled, session.handle, text, 0, labels)
    assert(ok or quire.is_error(problem, "CLOSED") or not session.handle, tostring(problem))
  end
  collectgarbage("setpause", pause)
  collectgarbage("setstepmul", speed)
  assert(n_closed > 0)
  runtime:close()
end)

test("structs have the library's sizes", function()
  local n = 0
  for name in pairs(interface.functions) do
    if name:match("_init$") then
      equal(interface.structs["quire_" .. name:gsub("_init$", "")].size > 8, true)
      raw[name]()
      n = n + 1
    end
  end
  assert(n > 10)
  raw.event_init()
  equal(raw.get_version(), interface.constants.VERSION)
end)

test("a library with another ABI is refused", function()
  local own = interface.constants.VERSION
  local function load(wanted)
    interface.constants.VERSION, package.loaded["quire.raw"] = wanted, nil
    local ok, found = pcall(require, "quire.raw")
    interface.constants.VERSION, package.loaded["quire.raw"] = own, raw
    return ok or found
  end
  equal(load(own), true)
  for _, wanted in ipairs({ own + 1, own + 100, own - 100, own + 10000 }) do
    assert(load(wanted):match("is of version 0%.1%.0; this package needs %d+%.%d+%.%d+, or"), wanted)
  end
end)

if not jit then -- whose parser does not know <close>
  test("variables that close", load([[
    local quire, harness = require("quire"), require("harness")
    local runtime <close> = quire.runtime({ threads = 1 })
    local session
    do
      local model <close> = runtime:load(harness.model_path)
      session = model:session()
      harness.equal(tostring(model), "quire.Model (open)")
    end
    session:close()
    harness.equal(tostring(session), "quire.Session (closed)")]]))
end
