-- A client over LuaJIT's FFI with the declarations of the Lua binding, interface.lua. Prints what ../README.md says.
local ffi = require("ffi")
local interface = require("interface")
local constants = interface.constants

ffi.cdef(interface.declarations)
local C = ffi.load(os.getenv("QUIRE_LIBRARY"))
local err = ffi.new("quire_error")

local function call(name, ...)
  local status = C[name](...)
  if status < 0 then
    error(name .. ": " .. ffi.string(err.message), 0)
  end
  return status
end

-- options(kind, fields): options with the library's defaults, and these fields.
local function options(kind, fields)
  local struct = ffi.new(kind)
  C[kind .. "_init"](struct, ffi.sizeof(kind))
  for name, value in pairs(fields) do
    struct[name] = value
  end
  return struct
end

-- handle(kind): where a function puts one that it makes.
local function handle(kind)
  return ffi.new(kind .. "*[1]")
end

local function print_answer(session)
  local stream, tokens = handle("quire_stream"), {}
  local go = options("quire_stream_options", { max_tokens = 16, flags = constants.STREAM_IGNORE_EOS })
  call("quire_stream_open", session, go, stream, err)
  local event = options("quire_event", {})
  while call("quire_stream_next", stream[0], -1, event, err) ~= constants.END do
    if event.kind == constants.EVENT_TOKEN then
      tokens[#tokens + 1] = event.token
    end
  end
  print(table.concat(tokens, " "))
  local n_tokens, n_pending = ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  call("quire_session_get_token_counts", session, n_tokens, n_pending, err)
  local finish = event.finish_reason == constants.FINISH_MAX_TOKENS and "MAX_TOKENS" or "another"
  print(("%s %d %d"):format(finish, tonumber(n_tokens[0]), tonumber(n_pending[0])))
  C.quire_stream_release(stream[0])
end

local function print_error()
  local strategy = "full(wheels=3)"
  local wrong = options("quire_strategy_options", { strategy = strategy, strategy_len = #strategy, train_len = 4096 })
  local status = C.quire_strategy_describe(wrong, nil, 0, ffi.new("size_t[1]"), err)
  print(("%s %d"):format(ffi.string(C.quire_get_status_name(status)), tonumber(err.offset)))
end

local path, strategy, text = arg[1], "dca", "Once upon a time"
local runtime, model, session = handle("quire_runtime"), handle("quire_model"), handle("quire_session")
call("quire_runtime_create", options("quire_runtime_options", { n_threads = 1 }), runtime, err)
call("quire_model_load", runtime[0], path, #path, nil, model, err)
local reading = options("quire_session_options", { strategy = strategy, strategy_len = #strategy })
call("quire_session_create", model[0], reading, session, err)
call("quire_session_feed_text", session[0], text, #text, 0, err)
print_answer(session[0])
print_error()
C.quire_session_release(session[0])
C.quire_model_release(model[0])
C.quire_runtime_close(runtime[0], err) -- LuaJIT unloads the library at the end: nothing of it may still run
C.quire_runtime_release(runtime[0])
