#include "lib/session/snapshot_index.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "lib/chat/known_templates.h"
#include "lib/support/content_hash.h"

namespace quire {
namespace {

constexpr int64_t kMost = int64_t{1} << 48;  // of any count of tokens or blocks
constexpr size_t kMostMessages = 200'000;    // so that the index stays within the reader's limits
// What the index says that it describes. Keys that were taken over from an earlier text have a name of their own, so
// that a library which does not know n_exact refuses them rather than take them for exact.
constexpr const char* kExact = "session";
constexpr const char* kApproximate = "approximate session";
constexpr const char* kOverflow[] = {"error", "stop", "extrapolate"};  // in the order of OverflowPolicy
static_assert(sizeof(KeyRange) == 16 && sizeof(TextPositions::Run) == 16 && sizeof(TokenLabel) == 24 &&
              sizeof(StickyChunks::Entry) == 16);
static_assert(std::endian::native == std::endian::little, "blocks of numbers are little-endian");

// ---- writing

Json to_json(const std::string& text) { return Json(text); }
Json to_json(int64_t number) { return Json(number); }
Json to_json(bool value) { return Json(value); }

class ObjectWriter {
 public:
  template <typename T>
  ObjectWriter& add(const char* key, const T& value) {
    object_.emplace(key, to_json(value));
    return *this;
  }
  ObjectWriter& add(const char* key, Json value) {
    object_.emplace(key, std::move(value));
    return *this;
  }
  Json take() { return Json(std::move(object_)); }

 private:
  Json::Object object_;
};

template <typename T>
Result<int64_t> add_array(SnapshotWriter& writer, std::span<const T> values) {
  return writer.add(std::as_bytes(values));
}

Json chunk_ranges(const std::vector<ChunkRange>& ranges) {
  Json::Array list;
  for (const ChunkRange& range : ranges) {
    Json::Array pair;
    pair.emplace_back(range.begin), pair.emplace_back(range.end);
    list.emplace_back(std::move(pair));
  }
  return Json(std::move(list));
}

Json messages_json(const std::vector<FedMessages>& messages) {
  Json::Array list;
  for (const FedMessages& m : messages) {
    ObjectWriter out;
    out.add("begin", m.begin).add("end", m.end).add("cut", m.cut);
    out.add("template", std::string(m.format->chat_template().name()));
    out.add("begun", m.state.begun).add("answering", m.state.answering).add("asked", m.state.asked);
    out.add("thinking", m.state.thinking).add("turns", m.state.n_turns);
    if (m.state.system) out.add("system", *m.state.system);
    list.push_back(out.take());
  }
  return Json(std::move(list));
}

// ---- reading

Result<JsonReader> member(const JsonReader& reader, const char* key) {
  const Json* found = reader.find(key);
  if (!found || !found->object()) return reader.bad(key, "an object");
  return JsonReader(*found, reader.what() + "." + key);
}

Result<std::string> text_of(const JsonReader& reader, const char* key) {
  QUIRE_ASSIGN(std::string text, reader.string(key, ""));
  if (text.empty()) return reader.bad(key, "a text");
  return text;
}

Result<JsonReader> root(const SnapshotFile& file) {
  return JsonReader(file.index(), file.name() + ": the snapshot's index");
}

Result<std::vector<ChunkRange>> read_chunk_ranges(const JsonReader& reader, const char* key) {
  std::vector<ChunkRange> ranges;
  const Json* list = reader.find(key);
  if (!list || !list->array()) return reader.bad(key, "a list of ranges");
  for (const Json& pair : *list->array()) {
    if (!pair.array() || pair.array()->size() != 2) return reader.bad(key, "a list of pairs");
    const auto begin = (*pair.array())[0].integer(0, kMost), end = (*pair.array())[1].integer(0, kMost);
    if (!begin || !end) return reader.bad(key, "a list of pairs of numbers");
    ranges.push_back({*begin, *end});
  }
  return ranges;
}

// Of an index's text.
Result<int64_t> read_n_exact(const SnapshotIndex& index, const JsonReader& text) {
  if (index.exact) return kNoLimit;
  return text.integer("n_exact", 0, kMost);
}

// The numbers of the block that `key` names.
template <typename T>
Status read_array(const SnapshotFile& file, const JsonReader& reader, const char* key, std::vector<T>* values) {
  QUIRE_ASSIGN(const int64_t block, reader.integer(key, 0, kMost));
  const int64_t bytes = file.block_bytes(block);
  if (bytes < 0 || bytes % static_cast<int64_t>(sizeof(T)) != 0) {
    return reader.bad(key, "the number of a block of whole entries of " + std::to_string(sizeof(T)) + " bytes");
  }
  values->resize(static_cast<size_t>(bytes) / sizeof(T));
  return file.read(block, std::as_writable_bytes(std::span(*values)));
}

class MessagesReader {
 public:
  MessagesReader(const SnapshotFile& file, const ModelTokenizer& tokenizer) : file_(file), tokenizer_(tokenizer) {}

  Result<FedMessages> read(const Json& json) {
    const JsonReader reader(json, file_.name() + ": the snapshot's index.text.messages[]");
    FedMessages m;
    QUIRE_ASSIGN(m.begin, reader.integer("begin", 0, kMost));
    QUIRE_ASSIGN(m.end, reader.integer("end", 0, kMost));
    QUIRE_ASSIGN(m.cut, reader.boolean("cut", false));
    QUIRE_ASSIGN(m.state.begun, reader.boolean("begun", false));
    QUIRE_ASSIGN(m.state.answering, reader.boolean("answering", false));
    QUIRE_ASSIGN(m.state.asked, reader.boolean("asked", false));
    QUIRE_ASSIGN(m.state.thinking, reader.boolean("thinking", true));
    QUIRE_ASSIGN(m.state.n_turns, reader.integer("turns", 0, kMost));
    if (const Json* system = reader.find("system")) {
      if (!system->string()) return reader.bad("system", "a text");
      m.state.system = *system->string();
    }
    QUIRE_ASSIGN(const std::string name, text_of(reader, "template"));
    QUIRE_ASSIGN(m.format, format(name));
    return m;
  }

 private:
  Result<std::shared_ptr<const ChatFormat>> format(const std::string& name) {
    auto& known = formats_[name];
    if (!known) {
      auto make = [&]() -> Result<std::shared_ptr<const ChatFormat>> {
        QUIRE_ASSIGN(const ChatTemplate* found, find_chat_template(name));
        return ChatFormat::make(*found, tokenizer_);
      };
      auto made = make();
      if (!made.ok()) {
        return Status(Code::kUnsupported,
                      file_.name() + ": messages of the chat template \"" + name + "\": " + made.status().message());
      }
      known = std::move(*made);
    }
    return known;
  }

  const SnapshotFile& file_;
  const ModelTokenizer& tokenizer_;
  std::map<std::string, std::shared_ptr<const ChatFormat>> formats_;
};

std::string list(const std::vector<SnapshotOrigin::Adapter>& adapters) {
  if (adapters.empty()) return "no adapters";
  std::string text;
  for (const auto& a : adapters) {
    text += (text.empty() ? "adapter " : ", ") + a.identity + " times " + std::to_string(a.scale);
  }
  return text;
}

}  // namespace

std::string fingerprint(const SnapshotOrigin& origin) {
  ContentHash hash;
  hash.add_text("quire session 1").add_text(origin.model);
  for (const SnapshotOrigin::Adapter& a : origin.adapters) hash.add_text(a.identity).add_real(a.scale);
  hash.add_text(origin.strategy).add_text(origin.kv_type);
  if (!origin.kv_old_type.empty()) hash.add_text(origin.kv_old_type).add_text(std::to_string(origin.old_after));
  return hash.hex();
}

Status check_same(const SnapshotOrigin& saved, const SnapshotOrigin& own) {
  const auto refuse = [](const char* field, const std::string& of_snapshot, const std::string& of_session) {
    return Status(Code::kInvalidArgument, std::string("the snapshot is of another session: its ") + field + " is " +
                                              of_snapshot + "; here it is " + of_session);
  };
  if (saved.model != own.model) {
    return refuse("model", saved.model,
                  own.model + " (weights, weight_type, activation_type and merged adapters make it)");
  }
  if (saved.strategy != own.strategy) return refuse("strategy", saved.strategy, own.strategy);
  if (saved.kv_type != own.kv_type) return refuse("kv_type", saved.kv_type, own.kv_type);
  const auto named = [](const std::string& type) { return type.empty() ? std::string("none") : type; };
  if (saved.kv_old_type != own.kv_old_type) {
    return refuse("kv_old_type", named(saved.kv_old_type), named(own.kv_old_type));
  }
  if (saved.old_after != own.old_after) {
    return refuse("old_after", std::to_string(saved.old_after), std::to_string(own.old_after));
  }
  const auto equal = [](const auto& a, const auto& b) { return a.identity == b.identity && a.scale == b.scale; };
  if (!std::equal(saved.adapters.begin(), saved.adapters.end(), own.adapters.begin(), own.adapters.end(), equal)) {
    return refuse("list of adapters", list(saved.adapters), list(own.adapters));
  }
  return {};
}

Json origin_json(const SnapshotOrigin& origin) {
  Json::Array adapters;
  for (const SnapshotOrigin::Adapter& adapter : origin.adapters) {
    adapters.push_back(ObjectWriter().add("identity", adapter.identity).add("scale", Json(adapter.scale)).take());
  }
  ObjectWriter out;
  out.add("model", origin.model).add("adapters", Json(std::move(adapters)));
  out.add("strategy", origin.strategy).add("kv_type", origin.kv_type);
  if (!origin.kv_old_type.empty()) out.add("kv_old_type", origin.kv_old_type).add("old_after", origin.old_after);
  return out.take();
}

Result<SnapshotOrigin> read_origin(const JsonReader& reader) {
  SnapshotOrigin origin;
  QUIRE_ASSIGN(origin.model, text_of(reader, "model"));
  QUIRE_ASSIGN(origin.strategy, text_of(reader, "strategy"));
  QUIRE_ASSIGN(origin.kv_type, text_of(reader, "kv_type"));
  QUIRE_ASSIGN(origin.kv_old_type, reader.string("kv_old_type", ""));
  if (!origin.kv_old_type.empty()) {
    QUIRE_ASSIGN(origin.old_after, reader.integer("old_after", 0, kMost));
  }
  const Json* adapters = reader.find("adapters");
  if (!adapters || !adapters->array()) return reader.bad("adapters", "a list");
  for (const Json& json : *adapters->array()) {
    const JsonReader adapter(json, reader.what() + ".adapters[]");
    SnapshotOrigin::Adapter& read = origin.adapters.emplace_back();
    QUIRE_ASSIGN(read.identity, text_of(adapter, "identity"));
    constexpr double kAny = std::numeric_limits<double>::max();
    QUIRE_ASSIGN(read.scale, adapter.number("scale", -kAny, kAny));
  }
  return origin;
}

Result<Json> write_index(SnapshotWriter& writer, const SnapshotIndex& index, const TextState& text,
                         std::span<const float> last_logits, const StickyChunks& sticky) {
  const TextState::Parts parts = text.parts();
  if (parts.messages.size() > kMostMessages) {
    return Status(Code::kUnsupported, "messages were fed " + std::to_string(parts.messages.size()) +
                                          " times; a snapshot holds at most " + std::to_string(kMostMessages));
  }
  ObjectWriter out;
  out.add("n_settled", parts.n_settled).add("n_computed", parts.n_computed).add("reread_end", parts.reread_end);
  const bool exact = parts.n_exact == kNoLimit;
  if (!exact) out.add("n_exact", parts.n_exact);
  QUIRE_ASSIGN(const int64_t tokens, add_array(writer, std::span(parts.tokens)));
  QUIRE_ASSIGN(const int64_t generated, add_array(writer, std::span(parts.generated)));
  QUIRE_ASSIGN(const int64_t positions, add_array(writer, std::span(parts.positions)));
  QUIRE_ASSIGN(const int64_t labels, add_array(writer, std::span(parts.labels)));
  QUIRE_ASSIGN(const int64_t marks, add_array(writer, std::span(parts.marks)));
  out.add("tokens", tokens).add("generated", generated).add("positions", positions).add("labels", labels);
  out.add("marks", marks);
  if (!last_logits.empty()) {
    QUIRE_ASSIGN(const int64_t logits, add_array(writer, last_logits));
    out.add("logits", logits);
  }
  if (!sticky.entries().empty()) {
    QUIRE_ASSIGN(const int64_t entries, add_array(writer, sticky.entries()));
    out.add("sticky", entries);
  }
  out.add("messages", messages_json(parts.messages));
  ObjectWriter kv;
  kv.add("n_tokens", index.kv.n_keys[0]).add("n_entries", index.kv.n_keys[1]);
  kv.add("chunks", chunk_ranges(index.kv.held[0])).add("entry_chunks", chunk_ranges(index.kv.held[1]));
  if (!index.origin.kv_old_type.empty()) {
    kv.add("n_narrow", index.kv.n_keys[2]).add("narrow_chunks", chunk_ranges(index.kv.held[2]));
  }
  if (index.kv.n_keys[3] > 0) {
    kv.add("n_windowed", index.kv.n_keys[3]).add("windowed_chunks", chunk_ranges(index.kv.held[3]));
  }
  kv.add("queries", index.kv.has_queries).add("first_block", index.kv.first_block);
  ObjectWriter all;
  all.add("contents", std::string(exact ? kExact : kApproximate));
  if (!index.title.empty()) all.add("title", index.title);
  return all.add("origin", origin_json(index.origin))
      .add("expected_tokens", index.expected_tokens)
      .add("overflow", std::string(kOverflow[static_cast<size_t>(index.overflow)]))
      .add("text", out.take())
      .add("kv", kv.take())
      .take();
}

Result<SnapshotIndex> read_index(const SnapshotFile& file) {
  SnapshotIndex index;
  QUIRE_ASSIGN(const JsonReader all, root(file));
  QUIRE_ASSIGN(const std::string contents, text_of(all, "contents"));
  if (contents != kExact && contents != kApproximate) return all.bad("contents", "\"session\"");
  index.exact = contents == kExact;
  QUIRE_ASSIGN(index.title, all.string("title", ""));
  QUIRE_ASSIGN(const JsonReader origin, member(all, "origin"));
  QUIRE_ASSIGN(index.origin, read_origin(origin));
  QUIRE_ASSIGN(index.expected_tokens, all.integer("expected_tokens", 0, INT64_MAX));
  QUIRE_ASSIGN(const std::string overflow, text_of(all, "overflow"));
  const auto policy = std::find(std::begin(kOverflow), std::end(kOverflow), overflow);
  if (policy == std::end(kOverflow)) return all.bad("overflow", "error, stop or extrapolate");
  index.overflow = static_cast<OverflowPolicy>(policy - std::begin(kOverflow));
  QUIRE_ASSIGN(const JsonReader kv, member(all, "kv"));
  QUIRE_ASSIGN(index.kv.n_keys[0], kv.integer("n_tokens", 0, kMost));
  QUIRE_ASSIGN(index.kv.n_keys[1], kv.integer("n_entries", 0, kMost));
  QUIRE_ASSIGN(index.kv.held[0], read_chunk_ranges(kv, "chunks"));
  QUIRE_ASSIGN(index.kv.held[1], read_chunk_ranges(kv, "entry_chunks"));
  if (!index.origin.kv_old_type.empty()) {
    QUIRE_ASSIGN(index.kv.n_keys[2], kv.integer("n_narrow", 0, kMost));
    QUIRE_ASSIGN(index.kv.held[2], read_chunk_ranges(kv, "narrow_chunks"));
  }
  QUIRE_ASSIGN(index.kv.n_keys[3], kv.integer("n_windowed", 0, kMost, 0));
  if (index.kv.n_keys[3] > 0) {
    QUIRE_ASSIGN(index.kv.held[3], read_chunk_ranges(kv, "windowed_chunks"));
  }
  QUIRE_ASSIGN(index.kv.has_queries, kv.boolean("queries", false));
  QUIRE_ASSIGN(index.kv.first_block, kv.integer("first_block", 0, kMost));
  return index;
}

Result<Json> describe(const SnapshotFile& file) {
  QUIRE_ASSIGN(const SnapshotIndex index, read_index(file));
  QUIRE_ASSIGN(const JsonReader all, root(file));
  QUIRE_ASSIGN(const JsonReader text, member(all, "text"));
  QUIRE_ASSIGN(const int64_t n_settled, text.integer("n_settled", 0, kMost));
  QUIRE_ASSIGN(const int64_t tokens, text.integer("tokens", 0, kMost));
  const int64_t n_tokens = file.block_bytes(tokens) / static_cast<int64_t>(sizeof(int32_t));
  if (n_tokens < n_settled) return text.bad("n_settled", "at most " + std::to_string(n_tokens));
  std::vector<KeyRange> generated;
  std::vector<TextPositions::Run> positions;
  QUIRE_TRY(read_array(file, text, "generated", &generated));
  QUIRE_TRY(read_array(file, text, "positions", &positions));
  int64_t n_generated = 0;
  const auto inside = [&](int64_t token) { return std::clamp<int64_t>(token, 0, n_tokens); };
  for (const KeyRange& run : generated) n_generated += std::max<int64_t>(0, inside(run.end) - inside(run.begin));
  QUIRE_ASSIGN(const int64_t n_exact, read_n_exact(index, text));
  int64_t kv_bytes = 0;  // all blocks but those of the text, which come last
  for (int64_t block = 0; block < std::min(tokens, file.n_blocks()); ++block) kv_bytes += file.block_bytes(block);
  return ObjectWriter()
      .add("version", file.version())
      .add("contents", std::string("session"))
      .add("title", index.title)
      .add("bytes", file.size())
      .add("unused_bytes", file.size() - file.used_bytes())
      .add("origin", origin_json(index.origin))
      .add("n_tokens", n_settled)
      .add("n_generated", n_generated)
      .add("n_pending", n_tokens - n_settled)
      .add("n_gaps", static_cast<int64_t>(positions.size()))
      .add("n_approximate", std::max<int64_t>(0, n_settled - n_exact))
      .add("kv_bytes", kv_bytes)
      .take();
}

Result<std::vector<int32_t>> read_plain_tokens(const SnapshotFile& file) {
  QUIRE_ASSIGN(const SnapshotIndex index, read_index(file));
  QUIRE_ASSIGN(const JsonReader all, root(file));
  QUIRE_ASSIGN(const JsonReader text, member(all, "text"));
  QUIRE_ASSIGN(int64_t n, text.integer("n_settled", 0, kMost));
  std::vector<int32_t> tokens;
  std::vector<KeyRange> generated;
  std::vector<TextPositions::Run> positions;
  QUIRE_TRY(read_array(file, text, "tokens", &tokens));
  QUIRE_TRY(read_array(file, text, "generated", &generated));
  QUIRE_TRY(read_array(file, text, "positions", &positions));
  if (n > static_cast<int64_t>(tokens.size())) return text.bad("n_settled", "at most " + std::to_string(tokens.size()));
  QUIRE_ASSIGN(const int64_t n_exact, read_n_exact(index, text));
  n = std::min(n, n_exact);
  for (const KeyRange& run : generated) n = std::min(n, std::max<int64_t>(0, run.begin));
  for (const TextPositions::Run& run : positions) n = std::min(n, std::max<int64_t>(0, run.first_token));
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

Result<SavedText> read_text(const SnapshotFile& file, const ModelTokenizer& tokenizer, int64_t vocab_size) {
  QUIRE_ASSIGN(const SnapshotIndex index, read_index(file));
  QUIRE_ASSIGN(const JsonReader all, root(file));
  QUIRE_ASSIGN(const JsonReader text, member(all, "text"));
  TextState::Parts parts;
  QUIRE_ASSIGN(parts.n_settled, text.integer("n_settled", 0, kMost));
  QUIRE_ASSIGN(parts.n_computed, text.integer("n_computed", 0, kMost));
  QUIRE_ASSIGN(parts.reread_end, text.integer("reread_end", 0, kMost));
  QUIRE_ASSIGN(parts.n_exact, read_n_exact(index, text));
  QUIRE_TRY(read_array(file, text, "tokens", &parts.tokens));
  QUIRE_TRY(read_array(file, text, "generated", &parts.generated));
  QUIRE_TRY(read_array(file, text, "positions", &parts.positions));
  QUIRE_TRY(read_array(file, text, "labels", &parts.labels));
  if (text.find("marks")) QUIRE_TRY(read_array(file, text, "marks", &parts.marks));
  for (size_t i = 0; i < parts.tokens.size(); ++i) {
    if (parts.tokens[i] < 0 || parts.tokens[i] >= vocab_size) {
      return Status(Code::kBadFile, file.name() + ": token " + std::to_string(i) + " is " +
                                        std::to_string(parts.tokens[i]) + "; the model has " +
                                        std::to_string(vocab_size));
    }
  }
  SavedText saved;
  if (text.find("logits")) {
    QUIRE_TRY(read_array(file, text, "logits", &saved.last_logits));
    if (static_cast<int64_t>(saved.last_logits.size()) != vocab_size || parts.n_computed == 0) {
      return text.bad("logits", "a block of " + std::to_string(vocab_size) + " floats after a computed token");
    }
  }
  if (text.find("sticky")) QUIRE_TRY(read_array(file, text, "sticky", &saved.sticky));
  const Json* messages = text.find("messages");
  if (!messages || !messages->array()) return text.bad("messages", "a list");
  MessagesReader reader(file, tokenizer);
  for (const Json& json : *messages->array()) {
    QUIRE_ASSIGN(FedMessages m, reader.read(json));
    parts.messages.push_back(std::move(m));
  }
  Result<TextState> made = TextState::make(std::move(parts));
  if (!made.ok()) return made.status().with_context(file.name());
  saved.text = std::move(*made);
  return saved;
}

}  // namespace quire
