// Loading: mapped or read, converted, tied, with progress and cancellation.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/model/quantize_model.h"
#include "tests/source_path.h"
#include "tests/unit/model/file_bytes.h"
#include "tests/unit/model/loaded_model.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire {
namespace {

using test::difference;
using test::kModels;
using test::largest;
using test::Loaded;
using test::model_names;

class EveryModel : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Golden, EveryModel, testing::ValuesIn(model_names()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryModel, MappedAndReadGiveTheSameBits) {
  ModelLoader::Options map;
  map.map = true;
  Loaded mapped(kModels + GetParam(), map), copied(kModels + GetParam());
  ASSERT_TRUE(mapped.status().ok()) << mapped.status().message();
  ASSERT_TRUE(copied.status().ok()) << copied.status().message();
  const auto a = mapped.logits(), b = copied.logits();
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * sizeof(float)));
  EXPECT_LT(mapped.bytes(), copied.bytes());  // the embedding stays in the map
  EXPECT_GT(largest(a), 0);
}

TEST_P(EveryModel, ProgressAscendsToTheTotal) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  ModelLoader::Options options;
  options.control.progress = [&](int64_t done, int64_t total) { seen.emplace_back(done, total); };
  const Loaded loaded(kModels + GetParam(), options);
  ASSERT_TRUE(loaded.status().ok());
  ASSERT_GT(seen.size(), 5u);
  int64_t before = 0;
  for (const auto& [done, total] : seen) {
    EXPECT_GE(done, before);
    EXPECT_LE(done, total);
    EXPECT_EQ(total, seen[0].second);
    before = done;
  }
  EXPECT_EQ(before, seen[0].second);
}

TEST_P(EveryModel, CountsParametersOnceAndItsBytes) {
  Loaded loaded(kModels + GetParam());
  const ModelConfig& c = loaded.model().config();
  const int64_t q = c.n_query_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim, h = c.hidden_size;
  const int64_t ffn = c.intermediate_size;
  int64_t layer = h * (2 * q + 2 * kv) + 3 * h * ffn + 2 * h;
  if (c.sandwich_norms) layer += 2 * h;
  if (c.qkv_bias) layer += q + 2 * kv;
  if (c.o_bias) layer += h;
  if (c.qk_norm) layer += 2 * c.head_dim;
  if (c.mlp_bias) layer += 2 * ffn + h;
  const int64_t vocab = int64_t{c.vocab_size} * h;
  EXPECT_EQ(loaded.model().weights().n_parameters, c.n_layers * layer + h + (c.tie_word_embeddings ? 1 : 2) * vocab);
  EXPECT_GE(loaded.model().weights().bytes, 2 * loaded.model().weights().n_parameters);
}

TEST(ModelLoader, ConvertsProjections) {
  Loaded f32(kModels + "mha_default");
  const auto exact = f32.logits();
  ModelLoader::Options options;
  const std::pair<ElementType, double> types[] = {{ElementType::kF16, 4e-3}, {ElementType::kBF16, 4e-2}};
  for (const auto& [type, tolerance] : types) {
    options.weight_type = static_cast<int32_t>(type);
    Loaded converted(kModels + "mha_default", options);
    EXPECT_EQ(converted.model().weights().type, type);
    const auto rounded = converted.logits();
    EXPECT_GT(difference(exact, rounded), 0);
    EXPECT_LT(difference(exact, rounded), tolerance * largest(exact)) << element_name(type);
    EXPECT_LT(converted.model().weights().bytes, f32.model().weights().bytes);
  }
  // Widening changes nothing: f16 weights kept as f32 give the same bits.
  Loaded f16(kModels + "mha_yarn_f16");
  options.weight_type = static_cast<int32_t>(ElementType::kF32);
  Loaded widened(kModels + "mha_yarn_f16", options);
  EXPECT_EQ(f16.model().weights().type, ElementType::kF16);
  EXPECT_EQ(widened.model().weights().type, ElementType::kF32);
  EXPECT_EQ(f16.logits(), widened.logits());
}

// Root mean squares.
double relative_error(const std::vector<float>& x, const std::vector<float>& exact) {
  double squares = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    squares += std::pow(double{x[i]} - exact[i], 2);
    all += std::pow(double{exact[i]}, 2);
  }
  return std::sqrt(squares / all);
}

// Projections that are rounded while a model of floats is loaded: what that changes grows with the steps between
// values, a GGUF file of the same floats gives the same bits, and floats that `quantize` rounded before stay what they
// are.
TEST(ModelLoader, QuantizesProjections) {
  const test::TemporaryFolder folder;
  ThreadPool pool{2};
  const auto write = [&](const std::string& from, const char* recipe) {
    const std::string to = folder.file(std::string(recipe) + ".gguf");
    EXPECT_TRUE(quantize_model({from, to, recipe, &pool, nullptr, {}}).ok());
    return to;
  };
  const std::string directory = test::source_path("examples/embedded_model/model");
  const std::string file = write(directory, "f32");
  Loaded f32(directory);
  const auto exact = f32.logits();
  ModelLoader::Options options;
  options.activation_type = ElementType::kF32;
  double of_8_bits = 0;
  const std::pair<ElementType, double> steps[] = {{ElementType::kQ8_0, 1},
                                                  {ElementType::kQ5_1, 8},
                                                  {ElementType::kQ5_0, 8},
                                                  {ElementType::kQ4_1, 16},
                                                  {ElementType::kQ4_0, 16}};
  for (const auto& [type, step] : steps) {
    SCOPED_TRACE(element_name(type));
    options.weight_type = static_cast<int32_t>(type);
    options.map = false;
    Loaded quantized(directory, options);
    ASSERT_TRUE(quantized.status().ok()) << quantized.status().message();
    for (const auto& part : quantized.model().weights().matrix_parts) EXPECT_EQ(part.type, type);
    EXPECT_LT(quantized.model().weights().bytes, f32.model().weights().bytes);
    const auto logits = quantized.logits();
    const double error = relative_error(logits, exact);
    if (type == ElementType::kQ8_0) of_8_bits = error;
    EXPECT_LT(error, step * 0.08);
    EXPECT_GT(error, step / 2 * of_8_bits);
    EXPECT_LT(error, step * 2 * of_8_bits);
    options.map = true;
    Loaded of_file(file, options);
    ASSERT_TRUE(of_file.status().ok()) << of_file.status().message();
    EXPECT_EQ(of_file.logits(), logits);
  }
  const std::string rounded = write(directory, "q8_0");
  const std::string floats = write(rounded, "f32");
  options.weight_type = static_cast<int32_t>(ElementType::kQ8_0);
  Loaded again(floats, options);
  options.weight_type = 0;
  Loaded once(rounded, options);
  ASSERT_TRUE(again.status().ok() && once.status().ok());
  EXPECT_EQ(again.logits(), once.logits());
}

// What a matrix is kept in counts for each: layers of one type and a head of another are two ways to round.
TEST(ModelLoader, NamesTheTypesOfAllMatricesInTheIdentity) {
  const test::TemporaryFolder folder;
  std::filesystem::copy(kModels + "mha_yarn_f16", folder.path());
  std::ifstream in(folder.file("model.safetensors"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  in.close();
  const std::string f16 = R"("lm_head.weight":{"dtype":"F16",)", bf16 = R"("lm_head.weight":{"dtype":"BF16",)";
  const size_t at = bytes.find(f16);
  ASSERT_NE(at, std::string::npos);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  header += 8;  // safetensors headers are padded
  bytes.replace(at, f16.size(), bf16);
  bytes.insert(static_cast<size_t>(header), 7, ' ');
  std::memcpy(bytes.data(), &header, sizeof header);
  std::ofstream(folder.file("model.safetensors"), std::ios::binary) << bytes;
  const Loaded mixed(folder.path());
  ASSERT_TRUE(mixed.status().ok()) << mixed.status().message();
  EXPECT_EQ(mixed.model().weights().type, ElementType::kF16);
  EXPECT_EQ(mixed.model().weights().matrix_parts.back().type, ElementType::kBF16);
  ModelLoader::Options options;
  options.weight_type = static_cast<int32_t>(ElementType::kF16);
  const Loaded rounded(folder.path(), options);
  EXPECT_NE(mixed.model().identity(), rounded.model().identity());
}

TEST(ModelLoader, TiedEmbeddingsAreTheHead) {
  Loaded tied(kModels + "gqa_llama3_tied");
  ASSERT_TRUE(tied.model().config().tie_word_embeddings);
  EXPECT_EQ(tied.model().weights().lm_head->n, tied.model().config().vocab_size);
  EXPECT_EQ(tied.model().weights().embedding->rows, tied.model().config().vocab_size);
  EXPECT_GT(largest(tied.logits()), 0);
}

TEST(ModelLoader, StopsAtAnyReportWhenCancelled) {
  int64_t reports = 0;
  {
    ModelLoader::Options options;
    options.control.progress = [&](int64_t, int64_t) { ++reports; };
    const Loaded all(kModels + "mha_default", options);
  }
  for (int64_t stop_after = 0; stop_after < reports; ++stop_after) {
    CancelToken cancel;
    int64_t seen = 0;
    ModelLoader::Options options;
    options.control.cancel = &cancel;
    options.control.progress = [&](int64_t, int64_t) {
      if (++seen == stop_after) cancel.cancel();
    };
    if (stop_after == 0) cancel.cancel();
    const Loaded loaded(kModels + "mha_default", options);
    if (loaded.status().ok()) {  // cancelled when all had been read
      EXPECT_GT(stop_after, reports - 2);
      continue;
    }
    EXPECT_EQ(loaded.status().code(), Code::kCancelled);
    EXPECT_EQ(loaded.bytes(), 0);
  }
}

TEST(ModelLoader, SaysWhatIsWrongWithADirectory) {
  EXPECT_EQ(Loaded(kModels + "no_such_model").status().code(), Code::kNotFound);
  const Loaded file(kModels + "mha_default/config.json");
  EXPECT_EQ(file.status().code(), Code::kBadFile);
  EXPECT_NE(file.status().message().find("config.json: the beginning, byte 0: no GGUF file"), std::string::npos)
      << file.status().message();
}

// A model directory with one file changed.
class ChangedModel : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) / "quire_changed_model";
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(kModels + "mha_default", directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void replace(const std::string& file, const std::string& from, const std::string& to) {
    std::ifstream in(directory_ / file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    in.close();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(directory_ / file, std::ios::binary) << text;
  }
  std::filesystem::path directory_;
};

TEST_F(ChangedModel, NamesTheTensorWhoseShapeContradictsTheConfig) {
  replace("config.json", "\"intermediate_size\": 80", "\"intermediate_size\": 96");
  const Loaded loaded(directory_.string());
  EXPECT_EQ(loaded.status().code(), Code::kBadFile);
  EXPECT_NE(loaded.status().message().find("mlp.gate_proj.weight"), std::string::npos) << loaded.status().message();
}

TEST_F(ChangedModel, NamesTheTensorThatIsMissing) {
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  const Loaded loaded(directory_.string());
  EXPECT_EQ(loaded.status().code(), Code::kBadFile);
  EXPECT_NE(loaded.status().message().find("model.layers.2."), std::string::npos) << loaded.status().message();
}

// The first layers of a model alone would answer, but with nonsense.
TEST_F(ChangedModel, NamesTheTensorOfALayerTooMany) {
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  const Loaded loaded(directory_.string());
  EXPECT_EQ(loaded.status().code(), Code::kBadFile);
  for (const char* part : {"model.safetensors: tensor model.layers.1.", "its number of layers is 1"}) {
    EXPECT_NE(loaded.status().message().find(part), std::string::npos) << loaded.status().message();
  }
}

// A configuration may say that the head is the embedding, or leave it to a default, where the files have another head.
TEST_F(ChangedModel, AHeadInTheFilesIsUsed) {
  const auto expected = Loaded(directory_.string()).logits();
  replace("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  Loaded loaded(directory_.string());
  ASSERT_TRUE(loaded.status().ok()) << loaded.status().message();
  EXPECT_FALSE(loaded.model().config().tie_word_embeddings);
  EXPECT_EQ(loaded.logits(), expected);
}

// Some files repeat the embedding as the head.
TEST_F(ChangedModel, AHeadThatRepeatsTheEmbeddingStaysTied) {
  replace("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  std::string bytes = test::read_file((directory_ / "model.safetensors").string());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  const auto place = [&](const char* tensor) {
    const auto& offsets = header.at(tensor).at("data_offsets");
    const size_t begin = offsets[0], end = offsets[1];
    return std::pair(sizeof length + length + begin, end - begin);
  };
  const auto [embedding, size] = place("model.embed_tokens.weight");
  bytes.replace(place("lm_head.weight").first, size, bytes.substr(embedding, size));
  test::write_file((directory_ / "model.safetensors").string(), bytes);
  int64_t last_done = 0, last_total = -1;
  ModelLoader::Options options;
  options.control.progress = [&](int64_t done, int64_t total) { last_done = done, last_total = total; };
  const Loaded loaded(directory_.string(), options);
  ASSERT_TRUE(loaded.status().ok()) << loaded.status().message();
  EXPECT_TRUE(loaded.model().config().tie_word_embeddings);
  EXPECT_EQ(last_done, last_total);
}

// A text model's tensors as a larger model calls them: since version 4.52 of transformers, and before.
std::string name_in_larger_model(std::string name, bool is_newer) {
  if (!is_newer) return "language_model." + name;
  return name.starts_with("model.") ? name.insert(6, "language_model.") : name;
}

TEST(ModelLoader, ReadsTheTextModelOfALargerOne) {
  const std::pair<const char*, const char*> cases[] = {{"gemma3", "Gemma3ForConditionalGeneration"},
                                                       {"mistral_window_64", "Mistral3ForConditionalGeneration"}};
  for (const auto& [name, architecture] : cases) {
    const auto expected = Loaded(kModels + name).logits();
    for (const bool is_newer : {false, true}) {
      test::TemporaryFolder folder;
      std::filesystem::copy(kModels + name, folder.path(), std::filesystem::copy_options::recursive);
      const auto config = nlohmann::json::parse(test::read_file(folder.file("config.json")));
      test::write_file(folder.file("config.json"),
                       nlohmann::json{{"architectures", {architecture}}, {"text_config", config}}.dump());
      const std::string bytes = test::read_file(folder.file("model.safetensors"));
      uint64_t length = 0;
      std::memcpy(&length, bytes.data(), sizeof length);
      const auto old_header = nlohmann::json::parse(bytes.substr(8, length));
      nlohmann::json header;
      for (const auto& [tensor, info] : old_header.items()) {
        header[tensor == "__metadata__" ? tensor : name_in_larger_model(tensor, is_newer)] = info;
      }
      std::string text = header.dump();
      text.resize((text.size() + 7) / 8 * 8, ' ');
      const uint64_t new_length = text.size();
      const std::string begin(reinterpret_cast<const char*>(&new_length), sizeof new_length);
      test::write_file(folder.file("model.safetensors"), begin + text + bytes.substr(8 + length));
      Loaded loaded(folder.path());
      ASSERT_TRUE(loaded.status().ok()) << name << ": " << loaded.status().message();
      EXPECT_EQ(loaded.logits(), expected) << name << " " << is_newer;
    }
  }
}

}  // namespace
}  // namespace quire
