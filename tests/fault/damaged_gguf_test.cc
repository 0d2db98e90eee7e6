// Damaged GGUF models: the exact status, and a message that names the file, tensor or key.
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/fault/damaged_model.h"
#include "tests/gguf_model.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

constexpr uint64_t kHuge = uint64_t{1} << 62;
const std::string kUp = "blk.1.ffn_up.weight";

class DamagedGguf : public DamagedModel {
 protected:
  std::string write(const std::string& bytes, const std::string& name = "model.gguf") const {
    const std::string path = folder_.file(name);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  void expect_model(const std::function<void(GgufModel&)>& damage, quire_status status,
                    const std::vector<std::string>& parts) {
    GgufModel model = make_gguf_model(shape_);
    damage(model);
    const std::string path = write(model.file());
    expect(path, status, parts);
  }
  void expect_tensor(const std::function<void(GgufTensorData&)>& damage, quire_status status,
                     const std::vector<std::string>& parts) {
    expect_model([&](GgufModel& model) { damage(*model.tensor(kUp)); }, status, parts);
  }

  const TemporaryFolder folder_;
  GgufShape shape_;
};

// What is damaged below is good: every architecture, tokenizer and type computes.
TEST_F(DamagedGguf, WholeModelsLoad) {
  for (const char* architecture : {"llama", "mistral3", "qwen2", "qwen3", "smollm3", "phi3", "granite", "gemma3"}) {
    for (const bool is_bpe : {true, false}) {
      SCOPED_TRACE(architecture);
      shape_.architecture = architecture;
      shape_.is_bpe = is_bpe;
      shape_.is_tied = !is_bpe;
      shape_.has_biases = shape_.architecture == "qwen2";
      shape_.types.assign(std::begin(kGgufMatrixTypes), std::end(kGgufMatrixTypes));
      const GgufModel whole = make_gguf_model(shape_);
      const auto parts = whole.split(3);
      for (size_t i = 0; i < 3; ++i) write(parts[i].file(), "m-0000" + std::to_string(i + 1) + "-of-00003.gguf");
      std::vector<std::vector<int32_t>> tokens;
      for (const std::string& path : {write(whole.file()), folder_.file("m-00001-of-00003.gguf")}) {
        Owned<quire_model> model;
        Outcome outcome;
        ASSERT_EQ(load_model(runtime_.get(), path, &model, &outcome), QUIRE_OK) << outcome.text();
        const auto session = make_session(model.get(), "full");
        ASSERT_EQ(quire_session_feed_text(session.get(), "the a", 5, 0, nullptr), QUIRE_OK);
        const Generated run = generate(session.get(), 3);
        ASSERT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
        tokens.push_back(run.tokens);
      }
      EXPECT_EQ(tokens[0], tokens[1]);
    }
  }
}

TEST_F(DamagedGguf, Header) {
  const auto with = [&](const std::function<void(GgufModel&)>& damage, quire_status status, const std::string& part) {
    expect_model(damage, status, {"model.gguf", part});
  };
  with([](GgufModel& m) { m.version = 4; }, QUIRE_ERROR_UNSUPPORTED, "GGUF version 4");
  with([](GgufModel& m) { m.n_tensors = UINT64_MAX; }, QUIRE_ERROR_BAD_FILE, "18446744073709551615 tensors");
  with([](GgufModel& m) { m.n_tensors = m.tensors.size() + 1; }, QUIRE_ERROR_BAD_FILE, "tensor");
  with([](GgufModel& m) { m.n_tensors = m.tensors.size() - 2; }, QUIRE_ERROR_BAD_FILE,
       "missing tensor model.norm.weight");
  with([](GgufModel& m) { m.n_keys = kHuge; }, QUIRE_ERROR_BAD_FILE, "metadata keys");
  with([](GgufModel& m) { m.n_keys = m.metadata.size() + 1; }, QUIRE_ERROR_BAD_FILE, "the list of tensors");
  with([](GgufModel& m) { m.metadata.push_back(m.metadata.front()); }, QUIRE_ERROR_BAD_FILE, "it is there twice");
  with([](GgufModel& m) { m.set("general.alignment", 24u); }, QUIRE_ERROR_BAD_FILE, "no power of two");
  with([](GgufModel& m) { m.set("general.alignment", 0u); }, QUIRE_ERROR_BAD_FILE, "no power of two");
  with([](GgufModel& m) { m.set("general.alignment", 4096u); }, QUIRE_ERROR_BAD_FILE, "no multiple of 4096");
  with([](GgufModel& m) { m.find("tokenizer.ggml.tokens")->replace(8, 8, std::string(8, '\xff')); },
       QUIRE_ERROR_BAD_FILE, "18446744073709551615 elements");
  with([](GgufModel& m) { m.find("tokenizer.ggml.tokens")->replace(16, 8, std::string(8, '\xff')); },
       QUIRE_ERROR_BAD_FILE, "bytes of element 0");
  with([](GgufModel& m) { *m.find("tokenizer.ggml.pre") = std::string(4, '\x4d'); }, QUIRE_ERROR_BAD_FILE,
       "value type 1296911693 is unknown");
}

TEST_F(DamagedGguf, Tensors) {
  expect_tensor([](GgufTensorData& t) { t.offset = uint64_t{1} << 40; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "the file has"});
  expect_tensor([](GgufTensorData& t) { t.offset = UINT64_MAX - 31; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "no multiple"});
  expect_tensor([](GgufTensorData& t) { t.offset = INT64_MAX - 31; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "its size overflows"});
  expect_tensor([](GgufTensorData& t) { t.offset = 8; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "offset 8 is no multiple of 32"});
  expect_tensor([](GgufTensorData& t) { t.offset = 0; }, QUIRE_ERROR_BAD_FILE, {"model.gguf", "overlaps"});
  expect_tensor(
      [](GgufTensorData& t) {
        t.dims = {kHuge, kHuge};
      },
      QUIRE_ERROR_BAD_FILE, {"model.gguf", kUp, "its shape overflows"});
  expect_tensor(
      [](GgufTensorData& t) {
        t.dims = {UINT64_MAX, 1};
      },
      QUIRE_ERROR_BAD_FILE, {"model.gguf", kUp, "its shape overflows"});
  expect_tensor(
      [](GgufTensorData& t) {
        t.dims = {INT64_MAX, 1};
      },
      QUIRE_ERROR_BAD_FILE, {"model.gguf", kUp, "its size overflows"});
  expect_tensor([](GgufTensorData& t) { t.dims.assign(5, 1); }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "5 dimensions"});
  expect_tensor([](GgufTensorData& t) { std::swap(t.dims[0], t.dims[1]); }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", "model.layers.1.mlp.up_proj.weight", "[32, 256]", "[256, 32]"});
  expect_tensor([](GgufTensorData& t) { t.type = 99; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "tensor type 99 is unknown"});
  expect_tensor([](GgufTensorData& t) { t.type = 26; }, QUIRE_ERROR_UNSUPPORTED,
                {"model.gguf", "model.layers.1.mlp.up_proj.weight", "I32", "Q6_K"});
  expect_tensor([](GgufTensorData& t) { t.type = 12; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", kUp, "rows of 32 elements", "blocks of 256"});
  expect_tensor([](GgufTensorData& t) { t.name = "blk.1.ffn_uq.weight"; }, QUIRE_ERROR_BAD_FILE,
                {"model.gguf", "missing tensor", "model.layers.1.mlp.up_proj.weight"});
  expect_tensor([](GgufTensorData& t) { t.name = "\xff"; }, QUIRE_ERROR_BAD_FILE, {"model.gguf", "not UTF-8"});
  expect_model([](GgufModel& m) { m.tensors.push_back(*m.tensor(kUp)); }, QUIRE_ERROR_BAD_FILE,
               {"model.gguf", kUp, "it is there twice"});
  shape_.has_biases = true;
  expect_model([](GgufModel& m) { m.remove_tensor("blk.1.attn_k.bias"); }, QUIRE_ERROR_BAD_FILE,
               {"model.gguf", "blk.1.attn_k.bias is missing", "is there"});
  for (const GgufTensorData& tensor : make_gguf_model(shape_).tensors) {
    if (tensor.name == "output.weight") continue;  // then the embedding is the head
    expect_model([&](GgufModel& m) { m.remove_tensor(tensor.name); }, QUIRE_ERROR_BAD_FILE, {"model.gguf", "missing"});
  }
}

TEST_F(DamagedGguf, Vocabulary) {
  const auto with = [&](const std::function<void(GgufModel&)>& damage, quire_status status,
                        const std::vector<std::string>& parts) {
    std::vector<std::string> all = parts;
    all.emplace_back("model.gguf");
    expect_model(damage, status, all);
  };
  const std::vector<std::string> three = {"a", "b", "ab"};
  with(
      [&](GgufModel& m) {
        m.set("tokenizer.ggml.tokens", three);
        m.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
        m.remove("tokenizer.ggml.token_type");
        for (const char* key : {"bos", "eos"}) m.remove(std::string("tokenizer.ggml.") + key + "_token_id");
      },
      QUIRE_ERROR_BAD_FILE, {"model.embed_tokens.weight", "[3, 32]"});
  with([](GgufModel& m) { ++m.tensor("token_embd.weight")->dims[1]; }, QUIRE_ERROR_BAD_FILE, {"overlaps"});
  with([](GgufModel& m) { --m.tensor("token_embd.weight")->dims[1]; }, QUIRE_ERROR_BAD_FILE,
       {"model.embed_tokens.weight", "[100, 32]", "[101, 32]"});
  with([](GgufModel& m) { --m.tensor("output.weight")->dims[1]; }, QUIRE_ERROR_BAD_FILE,
       {"lm_head.weight", "[100, 32]", "[101, 32]"});
  with([](GgufModel& m) { m.set("tokenizer.ggml.tokens", std::vector<std::string>()); }, QUIRE_ERROR_BAD_FILE,
       {"tokenizer.ggml.tokens"});
  with([&](GgufModel& m) { m.set("tokenizer.ggml.merges", std::vector<std::string>{"th zz"}); }, QUIRE_ERROR_BAD_FILE,
       {"\"zz\" is not in the vocabulary"});
  with([&](GgufModel& m) { m.set("tokenizer.ggml.merges", std::vector<std::string>{"t e"}); }, QUIRE_ERROR_BAD_FILE,
       {"what they become is not in the vocabulary"});
  with([&](GgufModel& m) { m.set("tokenizer.ggml.merges", std::vector<std::string>{"the"}); }, QUIRE_ERROR_BAD_FILE,
       {"expected two tokens"});
  with([](GgufModel& m) { m.set("tokenizer.ggml.pre", "a-new-one"); }, QUIRE_ERROR_UNSUPPORTED, {"a-new-one"});
  with([](GgufModel& m) { m.set("tokenizer.ggml.bos_token_id", 101u); }, QUIRE_ERROR_BAD_FILE,
       {"tokenizer.ggml.bos_token_id", "101"});
  with([](GgufModel& m) { m.set("tokenizer.ggml.token_type", std::vector<int32_t>(100, 1)); }, QUIRE_ERROR_BAD_FILE,
       {"tokenizer.ggml.token_type", "no array of 101 integers"});
  shape_.is_bpe = false;
  with([](GgufModel& m) { m.set("tokenizer.ggml.scores", std::vector<float>{1}); }, QUIRE_ERROR_BAD_FILE,
       {"tokenizer.ggml.scores"});
}

TEST_F(DamagedGguf, Parts) {
  const auto name = [](size_t i) { return "m-0000" + std::to_string(i + 1) + "-of-00003.gguf"; };
  const auto with = [&](const std::function<void(std::vector<GgufModel>&)>& damage, quire_status status,
                        const std::vector<std::string>& texts) {
    auto parts = make_gguf_model(shape_).split(3);
    damage(parts);
    for (size_t i = 0; i < parts.size(); ++i) write(parts[i].file(), name(i));
    expect(folder_.file(name(0)), status, texts);
  };
  using Parts = std::vector<GgufModel>;
  with([](Parts& p) { p[0].set("split.count", 4u); }, QUIRE_ERROR_BAD_FILE, {name(0), "-00001-of-00004.gguf"});
  with([](Parts& p) { p[0].set("split.count", 5000u); }, QUIRE_ERROR_BAD_FILE, {name(0), "split.count is 5000"});
  with([](Parts& p) { p[0].set("split.count", 1u); }, QUIRE_ERROR_BAD_FILE, {"missing tensor"});
  with([](Parts& p) { p[0].set("split.no", 1u); }, QUIRE_ERROR_BAD_FILE, {name(0), "file 2 of 3; expected file 1"});
  with([](Parts& p) { p[1].set("split.count", 2u); }, QUIRE_ERROR_BAD_FILE, {name(1), "of 2; expected file 2 of 3"});
  with([](Parts& p) { p[1].remove("split.no"); }, QUIRE_ERROR_BAD_FILE, {name(1), "file 1 of 3; expected file 2"});
  with([](Parts& p) { p[2].tensors.push_back(p[1].tensors[0]); }, QUIRE_ERROR_BAD_FILE,
       {name(2), "in another file too"});
  with([](Parts& p) { p[2].tensors.clear(); }, QUIRE_ERROR_BAD_FILE, {"missing"});
  with([](Parts& p) { p[2].tensors[0].type = 99; }, QUIRE_ERROR_BAD_FILE, {name(2), "type 99 is unknown"});
  with([](Parts&) {}, QUIRE_OK, {});
  std::filesystem::remove(folder_.file(name(2)));
  expect(folder_.file(name(0)), QUIRE_ERROR_NOT_FOUND, {name(2)});
}

// Every file that ends early, at steps that meet each part of it.
TEST_F(DamagedGguf, Truncated) {
  const std::string whole = make_gguf_model(shape_).file();
  for (size_t size = 0; size < whole.size(); size += size < 6000 ? 97 : 9973) {
    SCOPED_TRACE(size);
    const std::string path = write(whole.substr(0, size));
    expect(path, QUIRE_ERROR_BAD_FILE, {"model.gguf"});
  }
}

// A template is read when it is asked for: what is wrong with it does not keep the model from computing.
TEST_F(DamagedGguf, ChatTemplateOfAMegabyte) {
  GgufModel model = make_gguf_model(shape_);
  model.set("tokenizer.chat_template", std::string(1 << 20, '{'));
  Owned<quire_model> loaded;
  Outcome outcome;
  ASSERT_EQ(load_model(runtime_.get(), write(model.file()), &loaded, &outcome), QUIRE_OK) << outcome.text();
  quire_tokenizer* tokenizer = nullptr;
  ASSERT_EQ(quire_model_get_tokenizer(loaded.get(), &tokenizer, nullptr), QUIRE_OK);
  const Owned<quire_tokenizer> owner(tokenizer);
  size_t needed = 0;
  outcome.status = quire_tokenizer_get_chat_template(tokenizer, nullptr, 0, &needed, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_ERROR_BAD_FILE);
  EXPECT_NE(outcome.text().find("tokenizer.chat_template has 1048576 bytes; at most 1048575"), std::string::npos)
      << outcome.text();
}

}  // namespace
}  // namespace quire::test
