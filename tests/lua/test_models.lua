-- Models: what they are made of, tokenizers, chat templates, adapters; and what needs none of their weights.
local harness = require("harness")
local quire = require("quire")
local equal, raises, refuses, test = harness.equal, harness.raises, harness.refuses, harness.test

local runtime = quire.runtime({ threads = 2, log_level = "error" })
local model = runtime:load(harness.model_path)

test("info and metadata", function()
  local info = model:info()
  equal({ info.n_layers, info.vocab_size, info.train_len, info.weight_type }, { 2, 320, 256, "f32" })
  equal(model:metadata("architecture"), "LlamaForCausalLM")
  raises("NOT_FOUND", "", model.metadata, model, "colour")
  equal(tostring(model), "quire.Model (open)")
  assert(quire.version():match("^%d+%.%d+%.%d+$"))
end)

test("devices", function()
  local cpu = runtime:devices()[1]
  equal({ cpu.name, cpu.kind, cpu.usable }, { "cpu", "cpu", true })
  raises("UNSUPPORTED", "", runtime.load, runtime, harness.model_path, { device = "cuda:0" })
  raises("INVALID_ARGUMENT", "", runtime.load, runtime, harness.model_path, { device = "gpu" })
end)

test("quantize", function()
  local out, seen = harness.folder .. "/model.gguf", {}
  assert(#quire.quantizations() > 5)
  quire.quantize(harness.model_path, out, { recipe = "q8_0", threads = 1, progress = function(done, total)
    seen = { done, total }
  end })
  equal(seen[1], seen[2])
  equal(quire.describe_files(out).format, "gguf")
  quire.with(runtime:load(out, { activations = "f32", load = "read" }), function(loaded)
    equal(loaded:info().weight_type, "q8_0")
    raises("INVALID_ARGUMENT", "", loaded.session, loaded, { kv_type = "q8_0" })
    refuses("kv_type must be one of", loaded.session, loaded, { kv_type = "f64" })
  end)
  raises("INVALID_ARGUMENT", "q1", quire.quantize, harness.model_path, out, { recipe = "q1" })
  quire.with(runtime:load(out, { packed_directory = harness.folder .. "/packed" }), function() end)
  assert(os.execute("ls " .. harness.folder .. "/packed/*.packed > /dev/null"))
end)

test("tokenizer", function()
  local tokenizer, text = model:tokenizer(), "Rain fell on the harbour: 雨"
  local ids = tokenizer:encode(text)
  equal({ ids[1], tokenizer:decode(ids), tokenizer:is_eos(2), tokenizer:vocab_size() }, { tokenizer:bos(), text, true, 320 })
  local bytes = {}
  for i, id in ipairs(ids) do
    bytes[i] = tokenizer:token_bytes(id)
  end
  equal(table.concat(bytes):match("^%s*(.*)$"), text)
  equal(#tokenizer:encode(text, { bos = false }), #ids - 1)
  assert(tokenizer:encode(text, { continued = true })[1] ~= ids[2])
  local alone = runtime:tokenizer(harness.model_path .. "/tokenizer.model")
  equal(alone:encode(text), ids)
  equal({ tokenizer:decode({ 1 }, true), tokenizer:decode({ 1 }) }, { "<s>", "" })
  equal(raises("INVALID_TOKEN", "", tokenizer.decode, tokenizer, { 5, 320 }).offset, 1)
end)

test("chat", function()
  assert(#quire.chat_templates() > 3)
  local tokenizer, messages = model:tokenizer(), { { "system", "Be brief." }, { role = "user", text = "one</s>" } }
  raises("NOT_FOUND", "", tokenizer.chat_template, tokenizer)
  equal(tokenizer:render_chat(messages, { template = "llama2" }), "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]")
  assert(tokenizer:render_chat(messages, { template = "llama3.1", date = "2025-03-09" }):find("Today Date: 09 Mar 2025", 1, true))
  assert(tokenizer:render_chat(messages, { template = "qwen3", thinking = false }):match("</think>\n\n$"))
  assert(tokenizer:render_chat(messages, { template = "qwen3", answer = false }):match("<|im_end|>\n$"))
  local ids = tokenizer:encode_chat(messages, { template = "llama2" })
  quire.with(model:session(), function(session)
    session:feed_messages(messages, { template = "llama2" })
    equal(session:n_pending(), #ids)
    session:generate({ max_tokens = 3, ignore_eos = true })
    session:feed_messages({ { "user", "three" } })
    equal(session:n_tokens(), #ids + 3)
  end)
end)

test("adapters", function()
  local seen
  local adapter = model:load_adapter(harness.adapters .. "attention", { progress = function(done, total)
    seen = { done, total }
  end })
  equal(seen[1], seen[2])
  local info = adapter:info()
  equal({ info.rank, info.replaces_embedding, info.changes_queries_or_keys, info.replaces_norms }, { 4, true, true, false })
  equal({ adapter:metadata("base_model"), #adapter:metadata("identity") }, { "text_256", 32 })
  local function answer(of, adapters)
    local session = of:session({ strategy = "full + base(theta=10000)", kv_type = "f32", adapters = adapters })
    session:feed("Rain fell on the harbour all night.")
    local text = session:generate({ max_tokens = 24, ignore_eos = true })
    return text
  end
  local merged = runtime:load(harness.model_path, { merge = { { harness.adapters .. "attention", 2 } } })
  local plain, beside, twice = answer(model), answer(model, { adapter }), answer(model, { { adapter, 2 } })
  equal(answer(merged), twice)
  assert(plain ~= beside and beside ~= twice and plain ~= twice)
  raises("INVALID_ARGUMENT", "scale", model.session, model, { adapters = { { adapter, 0 } } })
end)

test("without weights", function()
  runtime:check(harness.model_path, { strategy = "dca", expected_tokens = 5000 })
  raises("OVERFLOW", "", runtime.check, runtime, harness.model_path, { strategy = "full", expected_tokens = 5000 })
  raises("OVERFLOW", "", model.check, model, { strategy = "full", expected_tokens = 5000 })
  equal(runtime:describe_strategy(harness.model_path, { expected_tokens = 5000 }), model:describe_strategy({ expected_tokens = 5000 }))
  local plan = runtime:plan_memory(harness.model_path, 1000, "dca", { weight_type = "f32" })
  assert(plan.kv_host_bytes > 0 and plan.kv_device_bytes == 0)
  local estimate = model:estimate(1000, "dca")
  assert(estimate.prefill_ns > 0 and estimate.tier_read_bytes_per_second == 0)
  local canonical = quire.describe_strategy("dca", { train_len = 4096 })
  assert(canonical:find("chunk=3072", 1, true))
  equal(quire.describe_strategy(canonical, { train_len = 4096 }), canonical)
  assert(#quire.strategies({ train_len = 4096 }) > 20)
  local matrix = quire.strategy_positions("dca(chunk=6, cap=9)", { train_len = 10, n_keys = 12 })
  equal(matrix[12], { 9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0 })
  assert(matrix[1][2] ~= matrix[1][2])
  refuses("keys must be one of condensed, text", quire.strategy_positions, "full", { train_len = 16, n_keys = 4, keys = "words" })
end)

runtime:close()
