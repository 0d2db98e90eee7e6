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

test("log lines are kept until they are asked for", function()
  local runtime = quire.runtime({ threads = 2, kept_log_lines = 2, log_level = "info" })
  equal(runtime:log_lines()(), nil)
  for _ = 1, 3 do
    runtime:load(harness.model_path):close()
  end
  local n_lines = 0
  for level, text, n_lost in runtime:log_lines() do
    equal({ level, n_lost }, { "info", 0 })
    assert(text:find("text_256", 1, true))
    n_lines = n_lines + 1
  end
  equal(n_lines, 2)
  runtime:load(harness.model_path):close()
  equal(select(3, runtime:log_lines()()), 1)
  runtime:close()
  raises("CLOSED", "closed", runtime:log_lines())
  raises("INVALID_ARGUMENT", "n_kept_log_lines", quire.runtime, { kept_log_lines = -1 })
  equal(quire.runtime({ threads = 1, log_level = "debug" }):log_lines()(), nil)
end)
