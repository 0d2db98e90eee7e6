-- Two questions to one document at once: it is read once, and each question goes on in a fork of the session.
--
--     lua5.4 forks.lua MODEL_DIR FILE QUESTION QUESTION [MAX_TOKENS]      (or luajit)
local quire = require("quire")

if not arg[4] then
  io.stderr:write("forks.lua MODEL_DIR FILE QUESTION QUESTION [MAX_TOKENS]\n")
  os.exit(2)
end
local opened = assert(io.open(arg[2], "rb"))
local runtime = quire.runtime()
local document = runtime:load(arg[1]):session("dca")
document:feed(opened:read("*a"))
document:prefill()

-- A coroutine that reads one answer and lets the other one run where no event waits.
local function ask(question)
  return coroutine.wrap(function()
    local session, answer = document:fork(), {}
    session:feed(question)
    for event in session:stream({ max_tokens = tonumber(arg[5]) or 100, wait = coroutine.yield }) do
      answer[#answer + 1] = event.text
    end
    print(("%s\n%s\n"):format(question, table.concat(answer)))
    session:close()
  end)
end

local waiting = { ask(arg[3]), ask(arg[4]) }
repeat
  local still = {}
  for _, resume in ipairs(waiting) do
    local stream = resume() -- what it waits for: an event loop would poll stream:wait_handle()
    if stream then
      still[#still + 1] = resume
    end
  end
  waiting = still
until #waiting == 0
runtime:close()
