-- What sessions hold: tiers, forks, edits, passages, logits.
local harness = require("harness")
local quire = require("quire")
local equal, raises, refuses, test, drain = harness.equal, harness.raises, harness.refuses, harness.test, harness.drain

local runtime = quire.runtime({ threads = 2, prefix_cache_bytes = 1000000 })
local model = runtime:load(harness.model_path)

local function last_prefill(session, options)
  local prefill
  for event in session:stream(options or {}) do
    prefill = event.kind == "prefill" and event or prefill
  end
  return prefill
end

test("tiers", function()
  local session = model:session({ kv_host_budget_bytes = 60000, kv_file_directory = "/tmp", prefill_block = 16 })
  session:feed_tokens(harness.ids(200))
  session:prefill()
  local host = session:tier("host")
  assert(host.bytes_peak <= host.budget_bytes and session:tier("file").bytes_written > 0)
  equal(session:tier("device").bytes, 0)
  refuses("tier must be one of", session.tier, session, "attic")
  refuses("there is no option kv_attic_budget_bytes", model.session, model, { kv_attic_budget_bytes = 1 })
  raises("BUDGET", "", model.session, model, { kv_compressed_budget_bytes = 1 })
  equal(#session:fingerprint(), 32)
end)

test("forks", function()
  local session, ids = model:session("dca"), harness.ids(40)
  session:feed_tokens(ids)
  session:prefill()
  local fork = session:fork()
  equal(fork:tokens(), ids)
  fork:feed_tokens({ 5, 6 })
  equal({ fork:counts() }, { 40, 2 })
  fork:truncate(40)
  equal(fork:generate({ max_tokens = 10 }), (session:generate({ max_tokens = 10 })))
end)

test("windows of some layers", function()
  local some_layers = runtime:load((harness.model_path:gsub("text_256", "qwen2_window_layers")))
  local ids = {}
  for i = 1, 240 do
    ids[i] = 5
  end
  for _, keeps in ipairs({ false, true }) do
    local session = some_layers:session({ strategy = "full(kv_chunk=16)", keep_behind_windows = keeps })
    session:feed_tokens(ids)
    session:prefill()
    equal(session:stats().kv_chunks_dropped == 0, keeps)
  end
end)

test("edits", function()
  local session, ids, changed = model:session({ strategy = "dca(kv_chunk=16)", prefix_reuse = false }), {}, {}
  for i = 0, 199 do
    ids[i + 1] = 3 + (i * i * i + 7 * i) % 299
    if i < 80 or i >= 100 then
      changed[#changed + 1] = ids[i + 1]
    end
  end
  session:feed_tokens(ids)
  session:prefill()
  local fork = session:fork()
  equal(fork:edit(changed), { n_tokens = 180, n_kept = 80, n_moved = 0 })
  equal(session:edit(changed, { reuse = "approximate" }), { n_tokens = 180, n_kept = 80, n_moved = 96 })
  local prefill = last_prefill(session)
  equal({ prefill.moved, prefill.done, session:stats().n_moved }, { 96, 4, 96 })
  equal(session:edit("The sky is grey.", { labels = { { 0, 7, 1 } } }).n_kept, 0)
  refuses("reuse must be one of approximate, exact", session.edit, session, ids, { reuse = "some" })
  raises("UNSUPPORTED", "longheads", function()
    model:session("longheads(chunk=16, chunks=4)"):edit(ids, { reuse = "approximate" })
  end)
end)

test("passages", function()
  local session, text, labels = model:session("dca"), "", {}
  for i = 0, 11 do
    local page = ("page %d tells of the number %d and of nothing else. "):format(i, i * 7)
    local first, last = #text, #text + #page
    labels[i + 1] = i % 2 == 0 and { first, last, 50 + i } or { begin = first, ["end"] = last, id = 50 + i }
    text = text .. page
  end
  session:feed(text, { labels = labels })
  local document = session:n_pending()
  session:feed("which number is it? ")
  session:generate({ max_tokens = 4, cite = true, cite_end = document, ignore_eos = true })
  local passages, sum = session:passages({ most = 3 }), 0
  equal(#passages, 3)
  equal(passages[1].label_id, 50 + passages[1].label)
  for _, label in ipairs(session:label_shares()) do
    sum = sum + label.share
  end
  assert(math.abs(sum - 1) < 1e-6)
  equal(#session:label_shares({ first_token = session:n_tokens() - 1, n_tokens = 1 }), 12)
  raises("UNSUPPORTED", "", session.label_attention, session)
end)

test("logits, scores and embeddings", function()
  local session, ids = model:session({ kv_type = "f32" }), { 1, 300, 301, 302, 303, 304 }
  session:feed_tokens(ids)
  session:prefill({ score = true, keep_logits = true, keep_hidden = true })
  local logits, scores = session:logits(0, 6), session:scores(0, 6)
  equal({ #logits, #logits[1], #session:hidden_states(0, 6)[6] }, { 6, 320, model:info().hidden_size })
  assert(scores[1] ~= scores[1])
  for at = 2, 6 do
    local sum = 0
    for _, logit in ipairs(logits[at - 1]) do
      sum = sum + math.exp(logit)
    end
    assert(math.abs(scores[at] - (logits[at - 1][ids[at] + 1] - math.log(sum))) < 1e-4)
  end
  equal(session:logits()[1], logits[6])
end)

test("positions", function()
  local session = model:session("full")
  session:feed_tokens({ 5, 6 }, { 9, 11 })
  equal({ session:counts() }, { 0, 2 })
  refuses("not one for each id", session.feed_tokens, session, { 5, 6 }, { 9 })
  raises("UNSUPPORTED", "", function()
    model:session("dca"):feed_tokens({ 5 }, { 9 })
  end)
  session:discard_pending()
  session:reset()
  equal({ session:counts() }, { 0, 0 })
end)

test("prefix reuse", function()
  local ids, tokens = harness.ids(300, 7), nil
  for round = 1, 2 do
    local session = model:session("dca(kv_chunk=32)")
    session:feed_tokens(ids)
    local prefill, found = nil, {}
    for event in session:stream({ max_tokens = 4, ignore_eos = true }) do
      prefill = event.kind == "prefill" and event or prefill
      found[#found + 1] = event.token
    end
    equal({ prefill.reused, prefill.reuse_miss }, { round == 1 and 0 or 288, round == 1 and "unknown" or "complete" })
    tokens = tokens or found
    equal(found, tokens)
    session:close()
  end
  assert(runtime:stats().prefix_cache_tokens == 288)
end)

test("experimental", function()
  local session = model:session({ overflow = "extrapolate" })
  session:fill_random(100, 7)
  equal({ session:counts() }, { 100, 0 })
  drain(session:stream({ max_tokens = 1, ignore_eos = true }))
  assert(session:probes().tasks_after_cancel >= 0)
end)

runtime:close()
