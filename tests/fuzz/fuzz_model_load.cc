// Whole models through the C interface: a small good one is made, damaged, loaded, and decodes a token where it loads.
// Input: five bytes that choose the model, then damages: a byte that chooses one, one that chooses the file, and their
// arguments. With bit 7 of the second byte the model is a directory instead: the behavior and the inversion of
// tokenizer.json's pre-tokenizer, and its expression.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "quire/quire.h"
#include "tests/fuzz/require.h"
#include "tests/gguf_model.h"
#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using quire::test::GgufModel;
using quire::test::GgufShape;
using quire::test::GgufTensorData;

constexpr int kMostDamages = 8;
constexpr uint32_t kMostParts = 3;

// Bytes of the input; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t byte() { return empty() ? 0 : data_[at_++]; }
  size_t below(size_t n) { return n == 0 ? 0 : byte() % n; }
  std::string_view bytes(size_t n) {
    n = std::min(n, size_ - at_);
    at_ += n;
    return {reinterpret_cast<const char*>(data_) + at_ - n, n};
  }
  // Numbers that are likely to be wrong, or any.
  uint64_t number() {
    constexpr uint64_t kNumbers[] = {0,
                                     1,
                                     31,
                                     32,
                                     64,
                                     257,
                                     4096,
                                     INT32_MAX,
                                     uint64_t{1} << 31,
                                     UINT32_MAX,
                                     uint64_t{1} << 32,
                                     uint64_t{1} << 40,
                                     uint64_t{1} << 62,
                                     INT64_MAX - 31,
                                     INT64_MAX,
                                     UINT64_MAX - 31,
                                     UINT64_MAX};
    const uint8_t first = byte();
    if (first < std::size(kNumbers)) return kNumbers[first];
    if (first < 200) return first - std::size(kNumbers);
    uint64_t value = 0;
    const std::string_view given = bytes(sizeof value);
    if (!given.empty()) std::memcpy(&value, given.data(), given.size());
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

// One folder for the process.
std::string file(const std::string& name) {
  static const quire::test::TemporaryFolder kFolder;
  return kFolder.file(name);
}

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string part_path(uint32_t part, uint32_t n_parts) {
  if (n_parts == 1) return file("model.gguf");
  return file("model-0000" + std::to_string(part + 1) + "-of-0000" + std::to_string(n_parts) + ".gguf");
}

void damage_tensor(GgufModel& model, Input& in) {
  const size_t what = in.below(10);
  if (model.tensors.empty()) return;
  const size_t at = in.below(model.tensors.size());
  GgufTensorData& tensor = model.tensors[at];
  switch (what) {
    case 0:
      tensor.offset = in.number();
      return;
    case 1:
      if (!tensor.dims.empty()) tensor.dims[in.below(tensor.dims.size())] = in.number();
      return;
    case 2:
      tensor.dims.push_back(in.number());
      return;
    case 3:
      if (!tensor.dims.empty()) tensor.dims.pop_back();
      return;
    case 4:
      tensor.type = static_cast<uint32_t>(in.number());
      return;
    case 5:
      tensor.name = in.bytes(in.below(24));
      return;
    case 6:
      model.tensors.push_back(model.tensors[at]);
      return;
    case 7:
      model.tensors.erase(model.tensors.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    case 8:
      std::swap(tensor.name, model.tensors[in.below(model.tensors.size())].name);
      return;
    default:  // numbers that are not finite, or not small
      std::fill(tensor.data.begin(), tensor.data.end(), static_cast<char>(in.byte()));
  }
}

void damage_key(GgufModel& model, Input& in) {
  const size_t what = in.below(9);
  if (model.metadata.empty()) return;
  const size_t at = in.below(model.metadata.size());
  const std::string key = model.metadata[at].first;
  std::string& value = model.metadata[at].second;
  switch (what) {
    case 0:
      model.set(key, static_cast<uint32_t>(in.number()));
      return;
    case 1: {
      const auto bits = static_cast<uint32_t>(in.number());
      float number;
      std::memcpy(&number, &bits, sizeof number);
      model.set(key, number);
      return;
    }
    case 2:
      model.set(key, in.bytes(in.below(40)));
      return;
    case 3:
      model.set(key, std::vector<std::string>{std::string(in.bytes(in.below(12))), std::string(in.bytes(4))});
      return;
    case 4:
      model.set(key, std::vector<int32_t>(in.below(200), static_cast<int32_t>(in.number())));
      return;
    case 5:
      model.remove(key);
      return;
    case 6:
      model.metadata.push_back(model.metadata[at]);
      return;
    case 7: {  // a count or a length within the value
      const uint64_t number = in.number();
      const size_t place = in.below(value.size());
      std::memcpy(&value[place], &number, std::min(sizeof number, value.size() - place));
      return;
    }
    default:
      value.resize(in.below(value.size()));
  }
}

void damage(std::vector<GgufModel>& parts, Input& in) {
  const uint8_t what = in.byte();
  GgufModel& part = parts[in.below(parts.size())];
  switch (what % 12) {
    case 0:
    case 1:
    case 2:
      return damage_tensor(part, in);
    case 3:
    case 4:
    case 5:
      return damage_key(part, in);
    case 6:
      part.n_tensors = in.number();
      return;
    case 7:
      part.n_keys = in.number();
      return;
    case 8:
      part.version = static_cast<uint32_t>(in.number());
      return;
    case 9:
      part.alignment = 1 + in.byte();
      part.set("general.alignment", static_cast<uint32_t>(in.number()));
      return;
    case 10:
      part.set(in.below(2) == 0 ? "split.count" : "split.no", static_cast<uint32_t>(in.number()));
      return;
    default: {
      constexpr std::string_view kFills[] = {"{", "{{ a }}", "\xff", "<|im_start|>"};
      const std::string_view fill = kFills[in.below(4)];
      std::string text;
      for (const size_t bytes = in.below(2) == 0 ? 1 << 20 : 4000; text.size() < bytes;) text += fill;
      part.set("tokenizer.chat_template", text);
    }
  }
}

// The path of the first file.
std::string make_gguf(Input& in) {
  constexpr const char* kArchitectures[] = {"llama",   "mistral", "mistral3", "qwen2",  "qwen3",
                                            "smollm3", "phi3",    "granite",  "gemma3", "gemma"};
  GgufShape shape;
  shape.architecture = kArchitectures[in.below(std::size(kArchitectures))];
  const uint8_t how = in.byte();
  shape.is_bpe = (how & 1) == 0;
  shape.is_tied = (how & 2) != 0;
  shape.has_biases = (how & 4) != 0;
  const uint32_t n_parts = 1 + (how >> 4 & 3) % kMostParts;
  for (int i = 0; i < 2; ++i) {
    shape.types.push_back(quire::test::kGgufMatrixTypes[in.below(std::size(quire::test::kGgufMatrixTypes))]);
  }
  const GgufModel whole = quire::test::make_gguf_model(shape);
  std::vector<GgufModel> parts = n_parts == 1 ? std::vector{whole} : whole.split(n_parts);
  const uint8_t after = in.byte();  // what becomes of the files' bytes
  for (int n = 0; n < kMostDamages && !in.empty(); ++n) damage(parts, in);
  std::error_code ignored;
  for (uint32_t i = 0; i < n_parts; ++i) {
    std::string bytes = parts[i].file();
    if (i == after % n_parts) {
      if (after & 64) bytes.resize(static_cast<size_t>(in.number() % (bytes.size() + 1)));
      if (after & 32 && !bytes.empty()) bytes[static_cast<size_t>(in.number() % bytes.size())] ^= 0x41;
    }
    const std::string path = part_path(i, n_parts);
    write(path, bytes);
    if (after & 128 && i == n_parts - 1) fs::remove(path, ignored);
  }
  return part_path(0, n_parts);
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string make_directory(Input& in) {
  const std::string path = file("directory");
  if (fs::create_directory(path)) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::create_symlink(fs::path(quire::test::source_path("tests/golden/models/short_128")) / name,
                         fs::path(path) / name);
    }
  }
  constexpr const char* kBehaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const char* behavior = kBehaviors[in.below(std::size(kBehaviors))];
  std::string vocabulary;
  for (char c = 'a'; c <= 'z'; ++c) vocabulary += json_text(std::string(1, c)) + ":" + std::to_string(c - 'a') + ",";
  write(path + "/tokenizer.json",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{" + vocabulary +
            "\"\xC4\xA0\":26,\"th\":27},\"merges\":[[\"t\",\"h\"]]}," +
            "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"" +
            behavior + "\",\"invert\":" + (in.below(2) == 0 ? "false" : "true") +
            ",\"pattern\":{\"Regex\":" + json_text(in.bytes(SIZE_MAX)) +
            "}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
            "\"decoder\":{\"type\":\"ByteLevel\"}}");
  return path;
}

quire_runtime* runtime() {
  static quire_runtime* const kRuntime = [] {
    quire_runtime_options options;
    quire_runtime_options_init(&options, sizeof options);
    options.n_threads = 1;
    quire_runtime* made = nullptr;
    FUZZ_REQUIRE(quire_runtime_create(&options, &made, nullptr) == QUIRE_OK);
    return made;
  }();
  return kRuntime;
}

void check_failure(quire_status status, const quire_error& error, std::initializer_list<quire_status> expected) {
  if (std::find(expected.begin(), expected.end(), status) == expected.end()) {
    std::fprintf(stderr, "%s: %s\n", quire_get_status_name(status), error.message);
    FUZZ_REQUIRE(!"an unexpected status");
  }
  FUZZ_REQUIRE(error.code == status && error.message[0] != '\0');
}

// Text where the tokenizer makes some of it, and else an id.
void decode(quire_model* model) {
  quire_error error;
  quire_tokenizer* tokenizer = nullptr;
  FUZZ_REQUIRE(quire_model_get_tokenizer(model, &tokenizer, nullptr) == QUIRE_OK);
  char name[64];
  size_t needed = 0;
  const quire_status named = quire_tokenizer_get_chat_template(tokenizer, name, sizeof name, &needed, &error);
  if (named != QUIRE_OK) {
    check_failure(named, error, {QUIRE_ERROR_NOT_FOUND, QUIRE_ERROR_UNSUPPORTED, QUIRE_ERROR_BAD_FILE});
  }
  quire_tokenizer_release(tokenizer);
  quire_session_options options;
  quire_session_options_init(&options, sizeof options);
  quire_session* session = nullptr;
  const quire_status created = quire_session_create(model, &options, &session, &error);
  if (created != QUIRE_OK) {  // what the metadata say of RoPE's scaling or of a window
    check_failure(created, error, {QUIRE_ERROR_UNSUPPORTED, QUIRE_ERROR_BAD_STRATEGY, QUIRE_ERROR_BAD_FILE});
    return;
  }
  constexpr std::string_view kText = "the th\n a12 ";
  const quire_status fed = quire_session_feed_text(session, kText.data(), kText.size(), 0, &error);
  if (fed != QUIRE_OK) check_failure(fed, error, {QUIRE_ERROR_UNSUPPORTED});
  const int32_t id = 0;
  FUZZ_REQUIRE(quire_session_feed_tokens(session, &id, 1, nullptr) == QUIRE_OK);
  quire_stream_options go;
  quire_stream_options_init(&go, sizeof go);
  go.max_tokens = 1;
  quire_stream* stream = nullptr;
  const quire_status opened = quire_stream_open(session, &go, &stream, &error);
  if (opened == QUIRE_OK) {
    quire_event event;
    quire_event_init(&event, sizeof event);
    quire_status status;
    while ((status = quire_stream_next(stream, -1, &event, &error)) == QUIRE_OK) {
    }
    if (status != QUIRE_END) check_failure(status, error, {QUIRE_ERROR_NUMERIC});
  } else {
    check_failure(opened, error, {QUIRE_ERROR_OVERFLOW});
  }
  quire_stream_release(stream);
  quire_session_release(session);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  const bool is_directory = size > 1 && data[1] & 128;
  const std::string path = is_directory ? (in.bytes(2), make_directory(in)) : make_gguf(in);
  quire_model_options options;
  quire_model_options_init(&options, sizeof options);
  options.load = size > 1 && data[1] & 8 ? QUIRE_LOAD_READ : QUIRE_LOAD_MMAP;
  quire_model* model = nullptr;
  quire_error error;
  const quire_status status = quire_model_load(runtime(), path.data(), path.size(), &options, &model, &error);
  FUZZ_REQUIRE((model != nullptr) == (status == QUIRE_OK));
  if (status != QUIRE_OK) {
    check_failure(status, error, {QUIRE_ERROR_BAD_FILE, QUIRE_ERROR_UNSUPPORTED, QUIRE_ERROR_NOT_FOUND});
    return 0;
  }
  decode(model);
  quire_model_release(model);
  return 0;
}
