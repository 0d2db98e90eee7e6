-- Each status as an error: most by what really goes wrong.
local harness = require("harness")
local errors = require("quire.errors")
local interface = require("quire.interface")
local quire = require("quire")
local raw = require("quire.raw")
local equal, raises, refuses, test = harness.equal, harness.raises, harness.refuses, harness.test

local runtime = quire.runtime({ threads = 1 })
local model = runtime:load(harness.model_path)
local provoked = {}

local function provoke(status, call, ...)
  provoked[status] = raises(status, "", call, ...)
  return provoked[status]
end

-- A copy of the model whose last norm is not a number.
local function broken_model()
  local folder = harness.folder .. "/broken"
  assert(os.execute(("cp -r %s %s"):format(harness.model_path, folder)))
  local file = assert(io.open(folder .. "/model.safetensors", "r+b"))
  local size = file:read(8)
  local header_size = 0
  for at = 8, 1, -1 do
    header_size = header_size * 256 + size:byte(at)
  end
  local header = file:read(header_size)
  local offset = header:match('"model%.norm%.weight"%s*:%s*(%b{})'):match('"data_offsets"%s*:%s*%[%s*(%d+)')
  file:seek("set", 8 + header_size + tonumber(offset))
  file:write(("\0\0\192\127"):rep(4))
  file:close()
  return folder
end

test("what goes wrong", function()
  local session = model:session("full")
  equal(provoke("EMPTY", session.stream, session, 1).offset, -1)
  equal(provoke("INVALID_TEXT", session.feed, session, "half a \233\155").offset, 7)
  equal(provoke("INVALID_TOKEN", session.feed_tokens, session, { 5, 320 }).offset, 1)
  equal(provoke("BAD_STRATEGY", model.session, model, "full(").code, interface.constants.ERROR_BAD_STRATEGY)
  equal(provoke("NOT_FOUND", runtime.load, runtime, "/no/such/folder").os_error, 0)
  provoke("INVALID_ARGUMENT", session.truncate, session, 7)
  provoke("UNSUPPORTED", model.session, model, "beacon")
  provoke("BUDGET", model.session, model, { kv_compressed_budget_bytes = 1 })
  session:feed_tokens(harness.ids(250))
  provoke("OVERFLOW", session.stream, session, 100)
  local stream = session:stream(1)
  provoke("BUSY", session.feed, session, "more")
  stream:close()
  provoke("CLOSED", stream.next, stream)
  local cancel = quire.cancel()
  cancel:trigger()
  provoke("CANCELLED", runtime.load, runtime, harness.model_path, { cancel = cancel })
  session:prefill()
  provoke("IO", session.save, session, harness.folder) -- it is a directory
  provoke("BAD_FILE", quire.describe_snapshot, harness.model_path .. "/config.json")
  local broken = runtime:load(broken_model()):session()
  broken:feed("Rain")
  provoke("NUMERIC", broken.generate, broken, { max_tokens = 2 })
  raises("INVALID_ARGUMENT", "", raw.session_feed_text, raw.session_create(model.handle), "text", 4096)
end)

test("options that there are not", function()
  local session, tokenizer = model:session(), model:tokenizer()
  local function unknown(call, ...)
    refuses("there is no option", call, ...)
  end
  unknown(session.feed, session, "Rain", { parse_specials = true })
  unknown(session.edit, session, "Rain", { rereads = 1 })
  unknown(session.passages, session, { first = 1 })
  unknown(session.label_shares, session, { most = 1 })
  unknown(session.save, session, harness.folder .. "/saved", { hole = true })
  unknown(tokenizer.encode, tokenizer, "Rain", { no_bos = true })
  unknown(tokenizer.render_chat, tokenizer, { { "user", "Hello" } }, { dates = "" })
  unknown(quire.strategy_positions, "dca", { train_len = 8, n_keys = 4, heads = 1 })
end)

test("options by the names that their fields have in quire.h", function()
  raises("INVALID_ARGUMENT", "", quire.runtime, { n_threads = -7 })
  raises("NOT_FOUND", "", runtime.load, runtime, harness.model_path, { beacon_path = "/no/such/folder" })
  refuses("must be one of", runtime.load, runtime, harness.model_path, { activation_type = "q9" })
  raises("INVALID_ARGUMENT", "", quire.quantize, harness.model_path, harness.folder .. "/out", { n_threads = -7 })
  local session = model:session()
  session:feed("Rain")
  local first
  for event in session:stream({ max_tokens = 1, ignore_eos = true, n_top_logprobs = 2 }) do
    first = event.kind == "token" and event or first
  end
  equal(#first.top_logprobs, 2)
  session:truncate(0)
  session:feed("Rain")
  local _, _, last = harness.drain(session:stream({ max_tokens = 12, ignore_eos = true, stop_strings = first.text }))
  equal(last.finish_reason, "stop_string")
  local tokenizer, chat = model:tokenizer(), { { "user", "Hello" } }
  equal(tokenizer:render_chat(chat, { template_name = "chatml" }), tokenizer:render_chat(chat, { template = "chatml" }))
  raises("INVALID_ARGUMENT", "", session.edit, session, "Rain", { reuse = "approximate", reread_tokens = -1 })
end)

test("no more memory", function()
  if os.getenv("ASAN_OPTIONS") then
    return -- ASan itself ends a process that has no memory left
  end
  local program = io.popen(("%s %s/tests/lua/out_of_memory.lua %s"):format(arg[-1], harness.source, harness.model_path))
  local status = program:read("*l")
  program:close()
  equal(status, "OUT_OF_MEMORY")
end)

-- INTERNAL is a bug of the library, DEVICE takes a GPU, OUT_OF_MEMORY came in a process of its own, and the binding always offers enough room.
test("every status becomes an error", function()
  local made = { INTERNAL = true, DEVICE = true, OUT_OF_MEMORY = true, BUFFER_TOO_SMALL = true }
  for name, code in pairs(interface.constants) do
    local status = name:match("^ERROR_(%u[%u_]*)$")
    if status and code < 0 then
      assert(provoked[status] or made[status], status)
      local problem = raises(status, "why", errors.raise, code, "why", 3, 4)
      equal({ problem.code, problem.offset, problem.os_error, tostring(problem) }, { code, 3, 4, status .. ": why" })
      equal({ quire.is_error(problem), quire.is_error(problem, status), quire.is_error(problem, "OK") }, { true, true, false })
    end
  end
  equal(quire.is_error("text"), false)
end)

runtime:close()
