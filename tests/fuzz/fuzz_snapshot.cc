// Snapshots through the C interface: the parts of a good one are changed, put together again with right checksums, or
// damaged as bytes; what loads goes on for some tokens, is cut, and is saved, into its own file too. Or the changed
// parts stand behind the good snapshot, as its future. Input: a byte that chooses the snapshot, whether it is appended
// and whether bytes are damaged, then changes: a byte that chooses one, and its arguments.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/content_hash.h"
#include "quire/quire.h"
#include "tests/fuzz/require.h"
#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"

namespace {

constexpr int kMostChanges = 12;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t byte() { return empty() ? 0 : data_[at_++]; }
  size_t below(size_t n) { return n == 0 ? 0 : (byte() | static_cast<size_t>(byte()) << 8) % n; }
  std::string_view bytes(size_t n) {
    n = std::min(n, size_ - at_);
    at_ += n;
    return {reinterpret_cast<const char*>(data_) + at_ - n, n};
  }
  uint64_t number() {
    constexpr uint64_t kNumbers[] = {
        0, 1, 2, 3, 15, 16, 17, 4096, 1023, INT32_MAX, INT64_MAX, UINT64_MAX, uint64_t{1} << 48, UINT64_MAX - 63};
    const uint8_t first = byte();
    return first < std::size(kNumbers) ? kNumbers[first] : first - std::size(kNumbers);
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

// A snapshot in its parts (lib/kv/FORMAT.md).
struct Parts {
  struct Entry {
    uint64_t offset = 0, bytes = 0;
  };
  uint64_t version = 1;
  std::string json;
  std::vector<std::string> blocks;
  std::vector<std::pair<size_t, Entry>> wrong_entries;  // of the table: instead of the right ones
};

uint64_t get(const std::string& bytes, size_t at) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void put(std::string& out, uint64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

void put_checksum(std::string& out, std::string_view of) {
  const auto checksum = quire::content_checksum(std::as_bytes(std::span(of)));
  out.append(reinterpret_cast<const char*>(checksum.data()), checksum.size());
}

void pad(std::string& out) { out.resize((out.size() + 63) / 64 * 64); }

Parts take_apart(const std::string& file) {
  Parts parts;
  parts.version = get(file, 8);
  const size_t footer = file.size() - 64;
  const uint64_t at = get(file, footer + 8), json = get(file, footer + 16), n = get(file, footer + 24);
  parts.json = file.substr(at, json);
  for (uint64_t b = 0; b < n; ++b) {
    const size_t entry = at + json + b * 32;
    parts.blocks.push_back(file.substr(get(file, entry), get(file, entry + 8)));
  }
  return parts;
}

// earlier: may be null; else its file stands first, and its blocks are those of the same number, if they are equal.
std::string put_together(const Parts& parts, const Parts* earlier = nullptr) {
  std::string file = "QUIRESNP";
  put(file, parts.version);
  file.resize(48);
  put_checksum(file, file);
  if (earlier) file = put_together(*earlier);
  std::vector<Parts::Entry> table;
  uint64_t earlier_at = 64;
  for (size_t b = 0; b < parts.blocks.size(); ++b) {
    const std::string& block = parts.blocks[b];
    const bool known = earlier && b < earlier->blocks.size();
    if (known && earlier->blocks[b] == block) {
      table.push_back({earlier_at, block.size()});
    } else {
      table.push_back({file.size(), block.size()});
      file += block;
      pad(file);
    }
    if (known) earlier_at += (earlier->blocks[b].size() + 63) / 64 * 64;
  }
  for (const auto& [block, entry] : parts.wrong_entries) table[block % table.size()] = entry;
  const uint64_t at = file.size();
  std::string tail = parts.json;
  for (size_t b = 0; b < parts.blocks.size(); ++b) {
    put(tail, table[b].offset);
    put(tail, table[b].bytes);
    put_checksum(tail, parts.blocks[b]);
  }
  std::string footer = "QUIREEND";
  put(footer, at);
  put(footer, parts.json.size());
  put(footer, parts.blocks.size());
  put_checksum(footer, tail);
  put_checksum(footer, footer);
  file += tail;
  pad(file);
  return file + footer;
}

// The k-th number of a JSON text, as [begin, end).
std::pair<size_t, size_t> number_in(const std::string& json, size_t k) {
  std::vector<std::pair<size_t, size_t>> all;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] < '0' || json[i] > '9') continue;
    const size_t begin = i;
    while (i < json.size() && json[i] >= '0' && json[i] <= '9') ++i;
    all.emplace_back(begin, i);
  }
  return all.empty() ? std::pair<size_t, size_t>{} : all[k % all.size()];
}

void change(Parts& parts, Input& in) {
  const size_t what = in.byte() % 10;
  const size_t block = in.below(parts.blocks.size());
  std::string& bytes = parts.blocks[block];
  switch (what) {
    case 0:
    case 1: {
      const auto [begin, end] = number_in(parts.json, in.below(4096));
      parts.json.replace(begin, end - begin, std::to_string(in.number()));
      return;
    }
    case 2: {
      const size_t at = in.below(parts.json.size() + 1), n = in.below(16);
      parts.json.replace(at, n, in.bytes(in.below(16)));
      return;
    }
    case 3:
      bytes.resize(in.below(bytes.size() + 9));
      return;
    case 4:
      if (!bytes.empty()) bytes[in.below(bytes.size())] = static_cast<char>(in.byte());
      return;
    case 5:
      if (bytes.size() >= 8) {
        const uint64_t value = in.number();
        std::memcpy(bytes.data() + in.below(bytes.size() / 8) * 8, &value, 8);
      }
      return;
    case 6:
      std::swap(bytes, parts.blocks[in.below(parts.blocks.size())]);
      return;
    case 7:
      if (parts.blocks.size() > 1) parts.blocks.erase(parts.blocks.begin() + static_cast<std::ptrdiff_t>(block));
      return;
    case 8:
      parts.wrong_entries.push_back({block, {in.number(), in.number()}});
      return;
    default:
      parts.version = in.number();
  }
}

std::string path(const char* name) {
  static const quire::test::TemporaryFolder kFolder;
  return kFolder.file(name);
}

std::string read(const std::string& from) {
  std::ostringstream bytes;
  bytes << std::ifstream(from, std::ios::binary).rdbuf();
  return bytes.str();
}

// A snapshot of a session on a model.
struct Saved {
  quire_model* model;
  Parts parts;
};

// Snapshots of all versions.
struct World {
  World() {
    quire_runtime_options options;
    quire_runtime_options_init(&options, sizeof options);
    options.n_threads = 1;
    FUZZ_REQUIRE(quire_runtime_create(&options, &runtime, nullptr) == QUIRE_OK);
    for (const char* strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=3)", "streaming_llm(recent=20)"}) {
      make("text_256", strategy, 0);
    }
    make("text_256", "full(kv_chunk=16)", QUIRE_TYPE_INT8);
    for (const int32_t old_type : {0, QUIRE_TYPE_INT4}) make("gemma3", "full(kv_chunk=16)", old_type);
  }

  quire_model* load(const std::string& name) {
    quire_model*& model = models[name];
    const std::string directory = quire::test::source_path(("tests/golden/models/" + name).c_str());
    if (!model) {
      FUZZ_REQUIRE(quire_model_load(runtime, directory.data(), directory.size(), nullptr, &model, nullptr) == QUIRE_OK);
    }
    return model;
  }

  // old_type: 0: no text is old. Tokens enough for layers with a window to drop some.
  void make(const std::string& name, const char* strategy, int32_t old_type) {
    quire_session_options options;
    quire_session_options_init(&options, sizeof options);
    options.strategy = strategy;
    options.strategy_len = std::strlen(strategy);
    options.kv_old_type = old_type;
    options.old_after = old_type == 0 ? 0 : QUIRE_OLD_AT_ONCE;
    quire_session* session = nullptr;
    FUZZ_REQUIRE(quire_session_create(load(name), &options, &session, nullptr) == QUIRE_OK);
    const std::string text = "Every chapter began with a map, and every map left out the road that they had taken.";
    const quire_label labels[] = {{0, 20, 1}, {20, 60, 2}};
    FUZZ_REQUIRE(quire_session_feed_labelled(session, text.data(), text.size(), 0, labels, 2, nullptr) == QUIRE_OK);
    std::vector<int32_t> more(name == "gemma3" ? 100 : 0, 7);
    FUZZ_REQUIRE(quire_session_feed_tokens(session, more.data(), more.size(), nullptr) == QUIRE_OK);
    generate(session, 3);
    FUZZ_REQUIRE(quire_session_feed_text(session, "more", 4, QUIRE_TEXT_NO_BOS, nullptr) == QUIRE_OK);
    const std::string file = path("good");
    FUZZ_REQUIRE(quire_session_save(session, file.data(), file.size(), nullptr, nullptr) == QUIRE_OK);
    quire_session_release(session);
    snapshots.push_back({load(name), take_apart(read(file))});
  }

  static quire_status generate(quire_session* session, int64_t n) {
    quire_stream_options options;
    quire_stream_options_init(&options, sizeof options);
    options.max_tokens = n;
    quire_stream* stream = nullptr;
    const quire_status opened = quire_stream_open(session, &options, &stream, nullptr);
    if (opened != QUIRE_OK) return opened;
    quire_event event;
    quire_event_init(&event, sizeof event);
    quire_status status = QUIRE_OK;
    while ((status = quire_stream_next(stream, -1, &event, nullptr)) == QUIRE_OK) {
    }
    quire_stream_release(stream);
    return status == QUIRE_END ? QUIRE_OK : status;
  }

  quire_runtime* runtime = nullptr;
  std::map<std::string, quire_model*> models;
  std::vector<Saved> snapshots;
};

// What a damaged file may lead to; anything else is a mistake of the library's.
bool is_refusal(quire_status status) {
  return status == QUIRE_ERROR_BAD_FILE || status == QUIRE_ERROR_INVALID_ARGUMENT ||
         status == QUIRE_ERROR_UNSUPPORTED || status == QUIRE_ERROR_BAD_STRATEGY || status == QUIRE_ERROR_OVERFLOW ||
         status == QUIRE_ERROR_NUMERIC || status == QUIRE_ERROR_IO;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const World& world = *new World;  // never destroyed: its models stay in use
  Input in(data, size);
  const uint8_t which = in.byte();
  const auto& [model, good] = world.snapshots[which % world.snapshots.size()];
  Parts parts = good;
  for (int n = 0; n < kMostChanges && !in.empty(); ++n) change(parts, in);
  std::string file = put_together(parts, (which & 64) != 0 ? &good : nullptr);
  if (which >= 128 && !file.empty()) {  // bytes that no checksum knows of
    file.resize(in.below(file.size()) + file.size() / 2);
    for (int n = 0; n < 4 && !file.empty(); ++n) file[in.below(file.size())] ^= static_cast<char>(in.byte());
  }
  const std::string damaged = path("damaged"), again = path("again");
  std::ofstream(damaged, std::ios::binary | std::ios::trunc) << file;

  size_t needed = 0;
  const quire_status described = quire_snapshot_describe(damaged.data(), damaged.size(), nullptr, 0, &needed, nullptr);
  FUZZ_REQUIRE(described == QUIRE_OK || is_refusal(described));
  const quire_status verified = quire_snapshot_verify(damaged.data(), damaged.size(), nullptr, nullptr);
  FUZZ_REQUIRE(verified == QUIRE_OK || is_refusal(verified));
  quire_session* session = nullptr;
  const quire_status loaded = quire_session_load(model, damaged.data(), damaged.size(), nullptr, &session, nullptr);
  FUZZ_REQUIRE(loaded == QUIRE_OK || is_refusal(loaded));
  if (loaded != QUIRE_OK) return 0;
  const quire_status went_on = World::generate(session, 2);
  FUZZ_REQUIRE(went_on == QUIRE_OK || is_refusal(went_on));
  const quire_status saved = quire_session_save(session, again.data(), again.size(), nullptr, nullptr);
  FUZZ_REQUIRE(saved == QUIRE_OK || is_refusal(saved));
  if (saved == QUIRE_OK) {
    quire_session* second = nullptr;
    FUZZ_REQUIRE(quire_session_load(model, again.data(), again.size(), nullptr, &second, nullptr) == QUIRE_OK);
    quire_session_release(second);
  }
  // Its file is that of its past: what is damaged there does not come into what is appended.
  const quire_status behind = quire_session_save(session, damaged.data(), damaged.size(), nullptr, nullptr);
  FUZZ_REQUIRE(behind == QUIRE_OK || is_refusal(behind));
  if (behind == QUIRE_OK) {
    quire_session* second = nullptr;
    FUZZ_REQUIRE(quire_session_load(model, damaged.data(), damaged.size(), nullptr, &second, nullptr) == QUIRE_OK);
    quire_session_release(second);
  }
  int64_t n_tokens = 0, n_pending = 0;
  FUZZ_REQUIRE(quire_session_get_token_counts(session, &n_tokens, &n_pending, nullptr) == QUIRE_OK);
  FUZZ_REQUIRE(quire_session_truncate(session, (n_tokens + n_pending) / 2, nullptr) == QUIRE_OK);
  const quire_status cut = World::generate(session, 1);
  FUZZ_REQUIRE(cut == QUIRE_OK || is_refusal(cut));
  quire_session_release(session);
  return 0;
}
