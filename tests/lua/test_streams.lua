-- Streams: what is generated, how it ends, and in which coroutine.
local harness = require("harness")
local quire = require("quire")
local equal, raises, refuses, test, drain = harness.equal, harness.raises, harness.refuses, harness.test, harness.drain

local runtime = quire.runtime({ threads = 2 })
local model = runtime:load(harness.model_path)

local function leaves(options)
  local session = model:session(options or "dca")
  session:feed("The reader turns the leaves")
  return session
end

local whole, text = drain(leaves():stream({ max_tokens = 12, ignore_eos = true }))

test("options", function()
  local function tokens(options)
    options.max_tokens, options.ignore_eos = 12, true
    return (drain(leaves():stream(options)))
  end
  equal(tokens({ samplers = { { "top_k", n = 1 } } }), whole)
  equal(tokens({ max_undelivered = 8 }), whole)
  equal(tokens({ draft_tokens = 8, draft_match = 1 }), whole)
  equal(tokens({ temperature = 1, seed = 7, top_k = 40 }), tokens({ samplers = { { "top_k", n = 40 } }, seed = 7 }))
  assert(tokens({ logit_bias = { [whole[1]] = -math.huge } })[1] ~= whole[1])
  assert(#tokens({ samplers = { { "dry", a = 0.8, b = 1.75, m = 2 } }, dry_breakers = {} }) == 12)
  refuses("there is no option max_token", leaves().stream, leaves(), { max_token = 1 })
  refuses("sampler must be one of", leaves().stream, leaves(), { samplers = { { "best" } } })
  refuses("score: expected true or false", leaves().stream, leaves(), { score = 1 })
  refuses("top_k: 1099511627776 is out of range", leaves().stream, leaves(), { top_k = 2 ^ 40 })
  refuses("expected an integer", leaves().stream, leaves(), { top_k = 1.5 })
  local holed = { 5, 6, nil, 8 }
  equal(#holed, 4)
  refuses("not nil", leaves().stream, leaves(), { max_tokens = 1, stop_ids = holed })
  refuses("max_tokens: expected", leaves().stream, leaves(), { max_tokens = "many" })
end)

test("top log probabilities", function()
  for event in leaves():stream({ max_tokens = 2, top_logprobs = 3, ignore_eos = true }) do
    if event.kind == "token" then
      equal({ #event.top_logprobs, event.top_logprobs[1].token }, { 3, event.token })
      equal(event.top_logprobs[1].logprob, event.logprob)
    end
  end
end)

test("stop conditions", function()
  local at = text:find("[%z\1-\127\192-\255]", math.floor(#text / 2)) -- where a character begins
  local _, cut, last = drain(leaves():stream({ max_tokens = 12, ignore_eos = true, stop = { "never this", text:sub(at) } }))
  equal({ last.finish_reason, last.stop_index, cut }, { "stop_string", 1, text:sub(1, at - 1) })
  local stream = leaves():stream({ max_tokens = 12, ignore_eos = true, max_undelivered = 8 })
  stream:next()
  stream:add_stop("never this, surely", { whole[6] })
  local _, _, stopped = drain(stream)
  equal({ stopped.finish_reason, stopped.token }, { "stop_id", whole[6] })
end)

test("constrained", function()
  local stream, session = nil, leaves()
  stream = session:stream({ max_tokens = 3, ignore_eos = true, constrain = true })
  for _, allowed in ipairs({ { 300, 301 }, { 17 }, false }) do
    stream:allow(allowed or nil, 320)
    local event
    repeat
      event = stream:next()
    until event.kind == "token"
    assert(not allowed or event.token == allowed[1] or event.token == allowed[2])
  end
  equal(select(3, drain(stream)).finish_reason, "max_tokens")
  refuses("outside the vocabulary", stream.allow, stream, { 320 }, 320)
end)

test("notices", function()
  local session = model:session({ strategy = "auto", expected_tokens = 100 })
  session:feed("Every chapter began with a map.")
  local first = session:stream({ max_tokens = 2 }):next()
  equal({ first.kind, first.code, first.text }, { "notice", "auto_choice", "" })
  assert(first.message:find(session:strategy(), 1, true))
end)

test("leaving a loop early closes the stream, or close does", function()
  local session = leaves()
  for event in session:stream({ max_tokens = 50, ignore_eos = true }) do
    if event.kind == "token" then
      break
    end
  end
  if jit then
    raises("BUSY", "", session.feed, session, "more")
    collectgarbage()
    collectgarbage() -- the stream has no other owner
  end
  session:feed("more")
  equal(session:generate({ max_tokens = 50, ignore_eos = true }, function()
    return false
  end).kind, "token")
  session:feed("more")
  refuses("my own", session.generate, session, { max_tokens = 50, ignore_eos = true }, function()
    error("my own")
  end)
  session:feed("more")
end)

test("eight streams in coroutines", function()
  local threads, found = {}, {}
  for i = 1, 8 do
    threads[i] = coroutine.create(function()
      found[i] = (drain(leaves():stream({ max_tokens = 4 + i, ignore_eos = true, wait = coroutine.yield })))
    end)
  end
  local n_waits = 0
  repeat
    local alive = 0
    for _, thread in ipairs(threads) do
      if coroutine.status(thread) ~= "dead" then
        local ok, waiting = coroutine.resume(thread)
        assert(ok, waiting)
        if waiting then -- the stream that the coroutine waits for
          assert(waiting:wait_handle() >= 0)
          n_waits, alive = n_waits + 1, alive + 1
        end
      end
    end
  until alive == 0
  assert(n_waits > 0)
  for i = 1, 8 do
    local expected = {}
    for at = 1, 4 + i do
      expected[at] = whole[at]
    end
    equal(found[i], expected)
  end
end)

test("cancel from another coroutine while reading", function()
  local session = model:session({ overflow = "extrapolate", prefill_block = 16 })
  session:feed_tokens(harness.ids(200000))
  local stream = session:stream({ max_tokens = 10, wait = coroutine.yield })
  local reader = coroutine.wrap(function()
    return select(3, drain(stream))
  end)
  local canceller = coroutine.wrap(function()
    while session:n_tokens() == 0 do
      coroutine.yield(true)
    end
    stream:cancel()
  end)
  while canceller() do
    reader()
  end
  local last
  repeat
    last = reader()
  until last.kind == "end"
  equal(last.finish_reason, "cancelled")
  local n_tokens, n_pending = session:counts()
  equal(n_tokens + n_pending, 200000)
  assert(n_pending > 0 and n_tokens > 0)
end)

test("timeouts and deadlines", function()
  local session = model:session({ overflow = "extrapolate", prefill_block = 16 })
  session:feed_tokens(harness.ids(200000))
  local stream, event = session:stream({ deadline = 0.05 }), nil
  repeat
    event = stream:next(0)
  until event == false -- nothing waits
  equal(stream:next(-1), false)
  assert(stream:next(math.huge))
  equal(select(3, drain(stream)).finish_reason, "deadline")
  equal(stream:next(), nil)
  -- Less than a millisecond is not none.
  equal(select(3, drain(session:stream({ deadline = 1e-9 }))).finish_reason, "deadline")
end)

runtime:close()
