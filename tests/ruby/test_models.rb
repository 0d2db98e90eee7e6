# frozen_string_literal: true

require "pathname"
require_relative "helper"

# Models: what they are made of, tokenizers, chat templates, adapters; and what needs none of their weights.
class TestModels < Minitest::Test
  include Helper

  def test_info_and_metadata
    assert_equal [2, 320, 256, :f32], model.info.values_at(:n_layers, :vocab_size, :train_len, :weight_type)
    assert_equal "LlamaForCausalLM", model.metadata("architecture")
    assert_status(:NOT_FOUND) { model.metadata("colour") }
    assert_match(/\A\d+\.\d+\.\d+\z/, Quire.library_version)
  end

  def test_devices
    assert_equal ["cpu", :cpu, true], runtime.devices.first.values_at(:name, :kind, :usable)
    assert_status(:UNSUPPORTED) { runtime.load(MODEL, device: "cuda:0") }
    assert_status(:INVALID_ARGUMENT) { runtime.load(MODEL, device: "gpu") }
  end

  def test_quantize
    out = Pathname(folder) + "model.gguf"
    seen = []
    Quire.quantize(MODEL, out, recipe: "q8_0", threads: 1, progress: ->(*numbers) { seen = numbers })
    assert_equal(*seen)
    assert_includes Quire.quantizations, "q4_k_m"
    assert_equal "gguf", Quire.describe_files(out)[:format]
    runtime.load(out, activations: :f32, load: :read) do |loaded|
      assert_equal :q8_0, loaded.info[:weight_type]
      assert_status(:INVALID_ARGUMENT) { loaded.session(kv_type: :q8_0) }
      assert_includes assert_raises(ArgumentError) { loaded.session(kv_type: :f64) }.message, "kv_type must be one of"
    end
    assert_status(:INVALID_ARGUMENT, "q1") { Quire.quantize(MODEL, out, recipe: "q1") }
    runtime.load(out, packed_directory: Pathname(folder) + "packed", &:info)
    assert_equal [".packed"], (Pathname(folder) + "packed").children.map(&:extname)
  end

  def test_tokenizer
    tokenizer = model.tokenizer
    text = "Rain fell on the harbour: 雨"
    found = tokenizer.encode(text)
    assert_equal [tokenizer.bos, text, 320], [found.first, tokenizer.decode(found), tokenizer.vocab_size]
    assert tokenizer.eos?(2)
    assert_equal text, found.map { |id| tokenizer.token_bytes(id) }.join.force_encoding("UTF-8").strip
    assert_equal found.drop(1), tokenizer.encode(text, bos: false)
    refute_equal found.drop(1), tokenizer.encode(text, continued: true)
    assert_equal found, tokenizer.encode(text.encode("UTF-16LE"))
    assert_equal found, runtime.tokenizer("#{MODEL}/tokenizer.model").encode(text)
    assert_equal ["<s>", ""], [tokenizer.decode([1], special: true), tokenizer.decode([1])]
    assert_equal 1, assert_status(:INVALID_TOKEN) { tokenizer.decode([5, 320]) }.offset
    assert_raises(TypeError) { tokenizer.encode(5) }
    assert_raises(RangeError) { tokenizer.decode([2**40]) }
  end

  def test_chat
    tokenizer = model.tokenizer
    messages = [[:system, "Be brief."], ["user", "one</s>"]]
    assert_includes Quire.chat_templates.map { |template| template[:name] }, "llama2"
    assert_status(:NOT_FOUND) { tokenizer.chat_template }
    assert_equal "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]", tokenizer.render_chat(messages, template: "llama2")
    assert_includes tokenizer.render_chat(messages, template: "llama3.1", date: "2025-03-09"), "Today Date: 09 Mar 2025"
    assert tokenizer.render_chat(messages, template: "qwen3", thinking: false).end_with?("</think>\n\n")
    assert tokenizer.render_chat(messages, template: "qwen3", answer: false).end_with?("<|im_end|>\n")
    count = tokenizer.encode_chat(messages, template: "llama2").size
    session = model.session.feed_messages(messages, template: "llama2")
    assert_equal count, session.n_pending
    session.generate(3, ignore_eos: true).to_a
    session.feed_messages([["user", "three"]])
    assert_equal count + 3, session.n_tokens
  end

  def answer(of_model, adapters: nil)
    of_model.session("full + base(theta=10000)", kv_type: :f32, adapters: adapters) do |session|
      tokens(session.feed("Rain fell on the harbour all night."), 24)
    end
  end

  def test_adapters
    seen = []
    adapter = model.load_adapter("#{ADAPTERS}/attention", progress: ->(*numbers) { seen = numbers })
    assert_equal(*seen)
    assert_equal [4, true, true, false],
                 adapter.info.values_at(:rank, :replaces_embedding, :changes_queries_or_keys, :replaces_norms)
    assert_equal ["text_256", 32], [adapter.metadata("base_model"), adapter.metadata("identity").size]
    answers = [answer(model), answer(model, adapters: [adapter]), answer(model, adapters: [[adapter, 2.0]])]
    assert_equal 3, answers.uniq.size
    assert_equal answers.last, answer(runtime.load(MODEL, merge: [["#{ADAPTERS}/attention", 2.0]]))
    assert_status(:INVALID_ARGUMENT, "scale") { model.session(adapters: [[adapter, 0]]) }
  end

  def test_without_weights
    runtime.check(MODEL, "dca", expected_tokens: 5000)
    assert_status(:OVERFLOW) { runtime.check(MODEL, "full", expected_tokens: 5000) }
    assert_status(:OVERFLOW) { model.check("full", expected_tokens: 5000) }
    assert_equal model.describe_strategy(expected_tokens: 5000), runtime.describe_strategy(MODEL, expected_tokens: 5000)
    plan = runtime.plan_memory(MODEL, 1000, "dca", model: { weight_type: :f32 })
    assert_equal [true, 0], [plan[:kv_host_bytes].positive?, plan[:kv_device_bytes]]
    assert_operator model.estimate(1000, "dca")[:prefill_ns], :>, 0
  end

  def test_strategies
    canonical = Quire.describe_strategy("dca", train_len: 4096)
    assert_includes canonical, "chunk=3072"
    assert_equal canonical, Quire.describe_strategy(canonical, train_len: 4096)
    assert_operator Quire.strategies(train_len: 4096).size, :>, 20
    matrix = Quire.strategy_positions("dca(chunk=6, cap=9)", train_len: 10, n_keys: 12)
    assert_equal [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0], matrix.last
    assert_predicate matrix[0][1], :nan?
    assert_raises(ArgumentError) { Quire.strategy_positions("full", train_len: 16, n_keys: 4, keys: :words) }
  end
end
