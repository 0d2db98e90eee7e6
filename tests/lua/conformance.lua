-- Does the steps of tests/conformance/*.json. tests/conformance/README.md says what they are.
local dkjson = require("dkjson")
local harness = require("harness")
local quire = require("quire")

-- In a file's cases: sessions by name, the model, and how many snapshots there are.
local do_step = {}

function do_step.encode(case, step)
  return { ids = case.model:tokenizer():encode(step.text,
    { parse_special = step.parse_special, bos = step.add_bos, continued = step.first == false }) }
end

function do_step.decode(case, step)
  return { text = case.model:tokenizer():decode(step.ids) }
end

function do_step.describe_strategy(_, step)
  return { canonical = quire.describe_strategy(step.strategy, { train_len = step.train_len }) }
end

function do_step.session(case, step)
  local options = {}
  for name, value in pairs(step.options or {}) do
    options[name] = value
  end
  options.strategy = step.strategy
  if options.old_after then -- as in the struct: 0 is the default; the binding's 0 is at once
    options.old_after = options.old_after ~= 0 and math.max(options.old_after, 0) or nil
  end
  case.sessions[step.as] = case.model:session(options)
end

function do_step.counts(case, step)
  local n_tokens, n_pending = case.sessions[step.session or step.as]:counts()
  return { n_tokens = n_tokens, n_pending = n_pending }
end

function do_step.feed(case, step)
  case.sessions[step.session]:feed(step.text, { parse_special = step.parse_special, bos = step.add_bos })
  return do_step.counts(case, step)
end

function do_step.feed_tokens(case, step)
  case.sessions[step.session]:feed_tokens(step.ids)
  return do_step.counts(case, step)
end

function do_step.feed_labelled(case, step)
  case.sessions[step.session]:feed(step.text, { labels = step.labels })
  return do_step.counts(case, step)
end

function do_step.feed_messages(case, step)
  case.sessions[step.session]:feed_messages(step.messages, { template = step.template, answer = step.answer })
  return do_step.counts(case, step)
end

function do_step.stream(case, step)
  local options = {}
  for name, value in pairs(step.options) do
    options[name == "n_top_logprobs" and "top_logprobs" or name] = value
  end
  local stream = case.sessions[step.session]:stream(options)
  local result = { tokens = {}, logprobs = {}, kinds = {}, text = "" }
  for event in stream do
    result.text = result.text .. event.text
    if event.kind ~= result.kinds[#result.kinds] then
      table.insert(result.kinds, event.kind)
    end
    if event.kind == "token" then
      table.insert(result.tokens, event.token)
      table.insert(result.logprobs, event.logprob)
    end
    result.finish, result.stop_index, result.end_token = event.finish_reason, event.stop_index, event.token
    result.n_tokens = event.n_tokens
    if #result.tokens == step.take then
      break
    end
  end
  stream:close()
  return result
end

function do_step.tokens(case, step)
  local ids, all = {}, case.sessions[step.session]:tokens()
  for i = step.first + 1, step.first + step.n do
    table.insert(ids, all[i])
  end
  return { ids = ids }
end

function do_step.truncate(case, step)
  case.sessions[step.session]:truncate(step.n_tokens)
  return do_step.counts(case, step)
end

function do_step.discard_pending(case, step)
  case.sessions[step.session]:discard_pending()
  return do_step.counts(case, step)
end

function do_step.reset(case, step)
  case.sessions[step.session]:reset()
  return do_step.counts(case, step)
end

function do_step.edit(case, step)
  return case.sessions[step.session]:edit(step.text, { reuse = step.reuse })
end

function do_step.scores(case, step)
  return { values = case.sessions[step.session]:scores(step.first, step.n) }
end

function do_step.argmax(case, step)
  local row, best = case.sessions[step.session]:logits(step.token)[1], 1
  for i, logit in ipairs(row) do
    best = logit > row[best] and i or best
  end
  return { id = best - 1 }
end

function do_step.stats(case, step)
  return case.sessions[step.session]:stats()
end

function do_step.strategy(case, step)
  return { canonical = case.sessions[step.session]:strategy() }
end

local function shares(labels)
  local found = {}
  for i, label in ipairs(labels) do
    found[i] = { label.id, label.share }
  end
  return { shares = found }
end

function do_step.label_attention(case, step)
  return shares(case.sessions[step.session]:label_attention())
end

function do_step.label_shares(case, step)
  return shares(case.sessions[step.session]:label_shares())
end

function do_step.passages(case, step)
  local found = {}
  for i, p in ipairs(case.sessions[step.session]:passages({ most = step.most })) do
    found[i] = { p.feed, p.begin, p["end"], p.label_id }
  end
  return { passages = found }
end

function do_step.fork(case, step)
  case.sessions[step.as] = case.sessions[step.session]:fork()
end

function do_step.save(case, step)
  case.sessions[step.session]:save(case.folder .. step.to)
end

function do_step.load(case, step)
  case.sessions[step.as] = case.model:load_session(case.folder .. step.from)
  return do_step.counts(case, step)
end

function do_step.close(case, step)
  case.sessions[step.session]:close()
end

local function agree(found, expected)
  if type(expected) == "table" then
    if type(found) ~= "table" or #found ~= #expected then
      return false
    end
    for i, each in ipairs(expected) do
      if not agree(found[i], each) then
        return false
      end
    end
    return true
  elseif type(expected) == "number" and expected % 1 ~= 0 then
    return math.abs(found - expected) <= 1e-4 * math.max(1, math.abs(expected))
  end
  return found == expected
end

local function check(case, step)
  local run = do_step[step["do"]] or error("there is no step " .. step["do"], 0)
  local ok, result = pcall(run, case, step)
  if step.error then
    assert(not ok, "it succeeded")
    assert(quire.is_error(result, step.error.status), tostring(result))
    assert(step.error.offset == nil or step.error.offset == result.offset, result.offset)
    assert(result.message:find(step.error.message or "", 1, true), result.message)
    return
  end
  assert(ok, tostring(result))
  for key, expected in pairs(step.expect or {}) do
    assert(agree(result[key], expected), key .. " is " .. dkjson.encode(result[key]))
  end
end

local n_cases = 0
local listing = io.popen("ls " .. harness.source .. "/tests/conformance/*.json")
for path in listing:lines() do
  local file = dkjson.decode(assert(io.open(path)):read("*a"))
  local runtime = quire.runtime({ threads = 1 })
  local model = runtime:load(harness.source .. "/" .. file.model)
  for number, described in ipairs(file.cases) do
    local case = { model = model, sessions = {}, folder = ("%s/%d."):format(harness.folder, n_cases) }
    harness.test(path:match("[^/]*$") .. ": " .. described.name, function()
      for at, step in ipairs(described.steps) do
        local ok, problem = pcall(check, case, step)
        if not ok then
          error(("step %d, %s: %s"):format(at, dkjson.encode(step), tostring(problem)), 0)
        end
      end
    end)
    for _, session in pairs(case.sessions) do
      session:close()
    end
    n_cases = n_cases + 1
    assert(number > 0)
  end
  runtime:close()
end
listing:close()
assert(n_cases > 20)
