-- Times streams for the comparison with C: overhead.lua MODEL_DIR N_TOKENS. tests/overhead says what is read and printed.
local quire = require("quire")

local clock, native
if jit then
  local ffi = require("ffi")
  ffi.cdef("struct quire_test_time { long seconds, nanoseconds; }; int clock_gettime(int, struct quire_test_time*);")
  local now = ffi.new("struct quire_test_time")
  clock = function()
    ffi.C.clock_gettime(1, now) -- CLOCK_MONOTONIC
    return tonumber(now.seconds) + 1e-9 * tonumber(now.nanoseconds)
  end
else
  native = require("quire_test_clock")
  clock = native.clock
end

local n_tokens = tonumber(arg[2])
local runtime = quire.runtime({ threads = 1 })
local session = runtime:load(arg[1]):session({ strategy = "full", overflow = "extrapolate" })
session:feed("Once upon a time")
session:prefill()
local n_prompt = session:n_tokens()

local function once()
  session:truncate(n_prompt)
  local length = 0
  if native then
    native.count()
  end
  local begin = clock()
  for event in session:stream({ max_tokens = n_tokens, ignore_eos = true, temperature = 0 }) do
    length = length + #event.text
  end
  local seconds = clock() - begin
  assert(length > 0)
  return seconds, native and native.counted() / n_tokens
end

print('{"ready":true}')
io.stdout:flush()
for _ in io.lines() do
  local seconds, per_token = once()
  local counted = per_token and ("%.2f"):format(per_token) or "null"
  print(('{"tokens":%d,"seconds":%.9f,"allocations":%s}'):format(n_tokens, seconds, counted))
  io.stdout:flush()
end
runtime:close()
