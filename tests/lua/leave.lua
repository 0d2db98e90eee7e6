-- Ends while a model is at work, with nothing closed: leave.lua MODEL_DIR.
local quire = require("quire")

local runtime = quire.runtime({ threads = 4, kept_log_lines = 100, log_level = "debug" })
local session = runtime:load(arg[1]):session({ strategy = "dca", prefill_block = 16 })
local ids = {}
for i = 1, 50000 do
  ids[i] = 5
end
session:feed_tokens(ids)
local stream = session:stream({ max_tokens = 100 })
stream:next()
print("leaving")
