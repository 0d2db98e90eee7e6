-- Functions that C calls: on this thread, while a call lasts, and nothing they raise passes through C.
local harness = require("harness")
local quire = require("quire")
local equal, raises, refuses, test = harness.equal, harness.raises, harness.refuses, harness.test

test("progress may raise, cancel, and yield to nobody", function()
  local runtime = quire.runtime({ threads = 1 })
  local mine = setmetatable({}, { __tostring = function() return "mine" end })
  local ok, problem = pcall(runtime.load, runtime, harness.model_path, { progress = function()
    error(mine)
  end })
  equal({ ok, rawequal(problem, mine) }, { false, true })
  local cancel = quire.cancel()
  raises("CANCELLED", "", runtime.load, runtime, harness.model_path, { cancel = cancel, progress = function()
    cancel:trigger()
  end })
  raises("CANCELLED", "", runtime.load, runtime, harness.model_path, { cancel = cancel })
  refuses("quire_cancel", runtime.load, runtime, harness.model_path, { cancel = runtime })
  refuses("yield", coroutine.wrap(function()
    runtime:load(harness.model_path, { progress = coroutine.yield })
  end))
  local n = 0
  for _ = 1, 50 do -- LuaJIT has few places for callbacks: each must be given back
    runtime:load(harness.model_path, { progress = function()
      n = n + 1
      collectgarbage("step")
    end }):close()
  end
  assert(n >= 50)
  runtime:close()
end)

test("a save whose progress raises leaves nothing behind", function()
  local runtime = quire.runtime({ threads = 1 })
  local session = runtime:load(harness.model_path):session()
  session:feed("Rain fell")
  session:prefill()
  local path = harness.folder .. "/never.quire"
  refuses("no more", session.save, session, path, { progress = function()
    error("no more")
  end })
  equal(io.open(path), nil)
  session:save(path)
  runtime:close()
end)

if jit then
  test("there is no log", function()
    refuses("LuaJIT's FFI cannot offer this", quire.runtime, { log = true })
  end)
else
  test("log lines are kept until they are asked for", function()
    local runtime, levels, lines = quire.runtime({ threads = 2, log = true, log_level = "debug" }), {}, {}
    runtime:load(harness.model_path):close()
    for level, text in runtime:log_lines() do
      levels[level] = true
      lines[#lines + 1] = text
    end
    assert(table.concat(lines, "\n"):find("text_256", 1, true))
    assert(levels.info or levels.debug)
    equal(runtime:log_lines()(), nil)
    runtime:close()
    refuses("out of range", quire.runtime, { log = true, threads = 2 ^ 40 })
    raises("INVALID_ARGUMENT", "", quire.runtime, { log = true, threads = 5000 })
    refuses("without log", quire.runtime({ threads = 1 }).log_lines, quire.runtime({ threads = 1 }))
  end)
end
