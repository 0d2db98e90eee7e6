// GGUF models in one file and in several, written by GgufWriter.
#include "lib/format/gguf_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "lib/format/gguf_writer.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Access = TensorFiles::Access;

class GgufFilesTest : public testing::Test {
 protected:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    ElementType type = ElementType::kF32;
  };

  // The bytes of tensor t are all t + 1.
  std::string write(const std::string& name, const std::vector<Tensor>& tensors,
                    const std::function<void(GgufWriter&)>& add_metadata = {}) {
    GgufWriter writer;
    if (add_metadata) add_metadata(writer);
    std::string data;
    for (size_t t = 0; t < tensors.size(); ++t) {
      writer.add_tensor(tensors[t].name, tensors[t].shape, tensors[t].type);
      int64_t elements = 1;
      for (const int64_t n : tensors[t].shape) elements *= n;
      const auto bytes = static_cast<int64_t>(row_bytes(tensors[t].type, elements));
      data.append(static_cast<size_t>(bytes), static_cast<char>(t + 1));
      data.append(static_cast<size_t>(GgufWriter::padding(bytes)), '\0');
    }
    EXPECT_EQ(static_cast<int64_t>(data.size()), writer.data_bytes());
    const std::string path = folder_.file(name);
    std::ofstream(path, std::ios::binary) << writer.header() << data;
    return path;
  }

  static std::function<void(GgufWriter&)> part(int number, int count) {
    return [=](GgufWriter& writer) {
      if (number == 0) writer.add("general.architecture", "llama");
      writer.add("split.no", static_cast<uint32_t>(number));
      writer.add("split.count", static_cast<uint32_t>(count));
    };
  }

  Status failure(const std::string& path) { return open_gguf(path).status(); }

  const test::TemporaryFolder folder_;
};

TEST_F(GgufFilesTest, WrittenValuesAreRead) {
  const std::vector<std::string> texts = {"a", "", "Grüße"};
  const std::vector<int32_t> integers = {1, -2};
  const std::vector<float> numbers = {0.5f, -1.25f};
  const std::string path = write("m.gguf", {{"x", {2, 3}, ElementType::kF16}}, [&](GgufWriter& w) {
    w.add("u32", 4000000000u);
    w.add("i32", -7);
    w.add("f32", 0.25f);
    w.add("yes", true);
    w.add("text", "Grüße");
    w.add("texts", texts);
    w.add("integers", integers);
    w.add("numbers", numbers);
  });
  auto model = open_gguf(path);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto& m = model->header.metadata;
  EXPECT_EQ(*m.at("u32").integer(), 4000000000);
  EXPECT_EQ(*m.at("i32").integer(), -7);
  EXPECT_EQ(*m.at("f32").number(), 0.25);
  EXPECT_EQ(*m.at("yes").boolean(), true);
  EXPECT_EQ(*m.at("text").string(), "Grüße");
  EXPECT_EQ(*m.at("texts").strings(), texts);
  EXPECT_THAT(*m.at("integers").integers(), ElementsAre(1, -2));
  EXPECT_THAT(*m.at("numbers").numbers(), ElementsAre(0.5, -1.25));
  EXPECT_THAT(model->header.tensors.at("x").shape, ElementsAre(2, 3));

  // Copied as they are stored, they are the same again.
  const std::string copy = write("copy.gguf", {}, [&](GgufWriter& w) {
    for (const auto& [key, place] : model->header.metadata_places) {
      std::vector<std::byte> bytes(static_cast<size_t>(place.second - place.first));
      ASSERT_TRUE(model->files[0]->read_at(place.first, bytes).ok());
      w.add_stored(key, bytes);
    }
  });
  auto again = open_gguf(copy);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->header.metadata.size(), m.size());
  EXPECT_EQ(*again->header.metadata.at("texts").strings(), texts);
  EXPECT_EQ(*again->header.metadata.at("u32").integer(), 4000000000);
}

TEST_F(GgufFilesTest, TensorsHaveHuggingFaceNames) {
  const std::pair<const char*, const char*> names[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
      {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"},
      {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"},
      {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight"},
      {"blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
      {"blk.1.attn_k_norm.weight", "model.layers.1.self_attn.k_norm.weight"},
      {"blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
      {"blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"},
      {"blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"},
      {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"},
      {"rope_freqs.weight", "rope_freqs.weight"},
      {"blk.1.other.weight", "blk.1.other.weight"},
      {"blk.", "blk."},
      {"blk.1", "blk.1"},
      {"blk.attn_q", "blk.attn_q"}};
  for (const auto& [gguf, hugging_face] : names) {
    EXPECT_EQ(hugging_face_name(gguf), hugging_face);
    EXPECT_EQ(gguf_name(hugging_face), gguf);
  }
  const std::pair<const char*, const char*> fused[] = {
      {"blk.3.attn_qkv.weight", "model.layers.3.self_attn.qkv_proj.weight"},
      {"blk.3.ffn_up.weight", "model.layers.3.mlp.gate_up_proj.weight"},
      {"blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"}};
  for (const auto& [gguf, hugging_face] : fused) {
    EXPECT_EQ(hugging_face_name(gguf, true), hugging_face);
    EXPECT_EQ(gguf_name(hugging_face), gguf);
  }
  // post_attention_layernorm is another norm where there are some behind attention and the MLP.
  const std::pair<const char*, const char*> sandwich[] = {
      {"blk.3.attn_norm.weight", "model.layers.3.input_layernorm.weight"},
      {"blk.3.post_attention_norm.weight", "model.layers.3.post_attention_layernorm.weight"},
      {"blk.3.ffn_norm.weight", "model.layers.3.pre_feedforward_layernorm.weight"},
      {"blk.3.post_ffw_norm.weight", "model.layers.3.post_feedforward_layernorm.weight"}};
  for (const auto& [gguf, hugging_face] : sandwich) {
    EXPECT_EQ(hugging_face_name(gguf, false, true), hugging_face);
    EXPECT_EQ(gguf_name(hugging_face, true), gguf);
  }
}

ModelConfig heads_of_8() {
  ModelConfig config;
  config.head_dim = 8;
  return config;
}

TEST_F(GgufFilesTest, OnlyLlamaInterleavesHeads) {
  for (const char* architecture : {"llama", "qwen2"}) {
    const std::string path = write("m.gguf",
                                   {{"blk.0.attn_q.weight", {16, 32}, ElementType::kQ4_0},
                                    {"blk.0.attn_k.bias", {8}},
                                    {"blk.0.attn_v.weight", {8, 32}, ElementType::kQ8_0}},
                                   [&](GgufWriter& w) { w.add("general.architecture", architecture); });
    for (const Access access : {Access::kMap, Access::kRead}) {
      auto model = open_gguf(path);
      ASSERT_TRUE(model.ok()) << model.status().message();
      auto files = gguf_tensor_files(std::move(*model), heads_of_8(), access);
      ASSERT_TRUE(files.ok()) << files.status().message();
      const int64_t expected = std::string(architecture) == "llama" ? 8 : 0;
      const std::string q = "model.layers.0.self_attn.q_proj.weight", v = "model.layers.0.self_attn.v_proj.weight";
      EXPECT_EQ((*files)->find(q)->interleaved_rows, expected);
      EXPECT_EQ((*files)->find("model.layers.0.self_attn.k_proj.bias")->interleaved_rows, expected);
      EXPECT_EQ((*files)->find(v)->interleaved_rows, 0);
      auto view = (*files)->view(q, std::array<int64_t, 2>{16, 32});
      ASSERT_TRUE(view.ok()) << view.status().message();
      EXPECT_EQ(view->type, ElementType::kQ4_0);
      EXPECT_EQ(view->bytes, 16 * 18);
      EXPECT_EQ(view->mapped != nullptr, access == Access::kMap);
      std::vector<std::byte> bytes(16 * 18);
      ASSERT_TRUE((*files)->read(q, 0, bytes).ok());
      EXPECT_EQ(bytes, std::vector<std::byte>(16 * 18, std::byte{1}));
    }
  }
}

TEST_F(GgufFilesTest, ModelsMayBeSplit) {
  const std::string first = write("m-00001-of-00003.gguf", {{"output_norm.weight", {4}}}, part(0, 3));
  const auto second = [&](int number, int count) {
    return write("m-00002-of-00003.gguf", {{"output.weight", {2, 4}}}, part(number, count));
  };
  second(1, 3);
  EXPECT_EQ(failure(first).code(), Code::kNotFound);  // the third is not there
  EXPECT_EQ(failure(first).code(), Code::kNotFound);
  EXPECT_THAT(failure(first).message(), HasSubstr("first of 3 files, of which file 3 is missing: "));
  EXPECT_THAT(failure(first).message(), HasSubstr("m-00003-of-00003.gguf"));
  const auto third = [&](const char* tensor) {
    return write("m-00003-of-00003.gguf", {{"unused", {4}}, {tensor, {4, 4}}}, part(2, 3));
  };
  third("token_embd.weight");
  {
    auto model = open_gguf(first);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(*model->header.metadata.at("general.architecture").string(), "llama");
    EXPECT_THAT(*read_gguf_values(*model, "output_norm.weight"), testing::SizeIs(4));
    EXPECT_THAT(*read_gguf_values(*model, "none"), testing::IsEmpty());
    auto files = gguf_tensor_files(std::move(*model), heads_of_8(), Access::kRead);
    ASSERT_TRUE(files.ok()) << files.status().message();
    std::vector<std::byte> bytes(16);
    ASSERT_TRUE((*files)->read("model.embed_tokens.weight", 48, bytes).ok());
    EXPECT_EQ(bytes, std::vector<std::byte>(16, std::byte{2}));
  }
  second(1, 2);
  EXPECT_THAT(failure(first).message(), HasSubstr("file 2 of 2; expected file 2 of 3"));
  second(2, 3);
  EXPECT_THAT(failure(first).message(), HasSubstr("file 3 of 3; expected file 2 of 3"));
  second(1, 3);
  third("output.weight");
  EXPECT_EQ(failure(first).code(), Code::kBadFile);
  EXPECT_THAT(failure(first).message(), HasSubstr("output.weight is in another file too"));
  EXPECT_THAT(failure(folder_.file("m-00002-of-00003.gguf")).message(),
              HasSubstr("expected file 1 of 3: a split model is opened by its first file"));
  std::filesystem::copy(first, folder_.file("renamed.gguf"));
  EXPECT_THAT(failure(folder_.file("renamed.gguf")).message(), HasSubstr("must end in -00001-of-00003.gguf"));
}

TEST_F(GgufFilesTest, RefusesWhatCannotBe) {
  EXPECT_EQ(failure(folder_.file("none.gguf")).code(), Code::kNotFound);
  EXPECT_THAT(failure(write("a.gguf", {}, part(0, 5000))).message(), HasSubstr("split.count is 5000"));
  EXPECT_THAT(failure(write("a.gguf", {}, [](GgufWriter& w) { w.add("split.count", "three"); })).message(),
              HasSubstr("split.count must be an integer"));
  CancelToken cancel;
  cancel.cancel();
  EXPECT_EQ(open_gguf(write("a.gguf", {}), &cancel).status().code(), Code::kCancelled);

  auto large = open_gguf(write("b.gguf", {{"x", {1 << 17}}}));
  ASSERT_TRUE(large.ok());
  EXPECT_THAT(read_gguf_values(*large, "x").status().message(), HasSubstr("131072 elements"));

  // Two names of GGUF for one of Hugging Face.
  auto twice = open_gguf(write("c.gguf", {{"output.weight", {4}}, {"lm_head.weight", {4}}}));
  ASSERT_TRUE(twice.ok());
  EXPECT_THAT(gguf_tensor_files(std::move(*twice), heads_of_8(), Access::kRead).status().message(),
              HasSubstr("under two names"));
}

}  // namespace
}  // namespace quire
