-- Asks a document: the answer comes as it is generated. Ctrl-C ends the answer, and the program goes on.
--
--     lua5.4 ask.lua MODEL_DIR FILE QUESTION [MAX_TOKENS]      (or luajit)
local quire = require("quire")

if jit then
  jit.off() -- compiled code does not see the interrupt that Ctrl-C asks LuaJIT for
end

local path, file, question = arg[1], arg[2], arg[3]
if not question then
  io.stderr:write("ask.lua MODEL_DIR FILE QUESTION [MAX_TOKENS]\n")
  os.exit(2)
end
local opened = assert(io.open(file, "rb"))
local document = opened:read("*a")
opened:close()

local runtime = quire.runtime()
local session = runtime:load(path):session("dca") -- reads texts much longer than the model's window
session:feed(document)
session:feed(question)

local stream = session:stream({ max_tokens = tonumber(arg[4]) or 200 })

-- Shows events up to the end event, which it returns.
local function show()
  for event in stream do
    if event.kind == "prefill" then
      io.stderr:write(("\r%d of %d tokens read"):format(event.done + event.reused, event.total))
    elseif event.kind == "warning" or event.kind == "notice" then
      io.stderr:write("\n", event.message, "\n")
    else
      io.write(event.text)
      io.flush()
    end
    if event.kind == "end" then
      return event
    end
  end
end

local ok, last = pcall(show)
if not ok then
  if not tostring(last):find("interrupted", 1, true) then -- what Lua makes of Ctrl-C
    error(last, 0)
  end
  stream:cancel()
  last = show()
end
print(("\n(%s, %d tokens)"):format(last.finish_reason, session:n_tokens()))
runtime:close()
