#include "lib/session/stored_text.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/format/snapshot_check.h"
#include "lib/support/content_hash.h"
#include "lib/support/os_file.h"
#include "lib/support/os_output_file.h"

namespace quire {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// The numbers of a block of any length.
template <typename T>
Status read_block(const SnapshotFile& file, const JsonReader& reader, const char* key, std::vector<T>* values) {
  QUIRE_ASSIGN(const int64_t block, reader.integer(key, 0, kAny));
  const int64_t bytes = file.block_bytes(block);
  if (bytes < 0 || bytes % static_cast<int64_t>(sizeof(T)) != 0) {
    return reader.bad(key, "the number of a block of entries of " + std::to_string(sizeof(T)) + " bytes");
  }
  values->resize(static_cast<size_t>(bytes) / sizeof(T));
  return file.read(block, std::as_writable_bytes(std::span(*values)));
}

// What the first link is hashed over, beside its tokens.
TokenChain::Link root(const std::string& fingerprint) {
  return content_checksum(std::as_bytes(std::span(fingerprint)));
}

}  // namespace

TokenChain::TokenChain(const std::string& fingerprint, std::span<const int32_t> tokens) {
  Link last = root(fingerprint);
  std::vector<std::byte> hashed;
  for (; tokens.size() >= kTokens; tokens = tokens.subspan(kTokens)) {
    const auto ids = std::as_bytes(tokens.first(kTokens));
    hashed.assign(last.begin(), last.end());
    hashed.insert(hashed.end(), ids.begin(), ids.end());
    last = content_checksum(hashed);
    links.push_back(last);
  }
  tail.assign(tokens.begin(), tokens.end());
}

std::string TokenChain::name(const std::string& fingerprint) const {
  return ContentHash().add(links.empty() ? root(fingerprint) : links.back()).add(std::as_bytes(std::span(tail))).hex();
}

int64_t TokenChain::common(const TokenChain& other, std::span<const int32_t> tokens) const {
  const auto differs = std::mismatch(links.begin(), links.end(), other.links.begin(), other.links.end()).first;
  const int64_t n = (differs - links.begin()) * kTokens;
  if (differs != links.end()) return n;
  const auto rest = tokens.subspan(static_cast<size_t>(n));
  if (rest.size() < tail.size() || !std::equal(tail.begin(), tail.end(), rest.begin())) return n;
  return n_tokens();
}

Result<StoredText> describe_text(const SnapshotFile& snapshot) {
  StoredText text;
  QUIRE_ASSIGN(SnapshotIndex index, read_index(snapshot));
  QUIRE_ASSIGN(const auto tokens, read_plain_tokens(snapshot));
  text.chain = TokenChain(fingerprint(index.origin), tokens);
  text.origin = std::move(index.origin);
  text.title = std::move(index.title);
  return text;
}

Status write_stored_text(const std::string& path, const StoredText& text) {
  // What a crash leaves of it is noticed by its checksums, and made again.
  QUIRE_ASSIGN(const auto file, OutputFile::create(path, {.owner_only = true, .lasting = false}));
  QUIRE_ASSIGN(const auto writer, SnapshotWriter::create(*file, SnapshotFile::kVersion));
  QUIRE_ASSIGN(const int64_t links, writer->add(std::as_bytes(std::span(text.chain.links))));
  QUIRE_ASSIGN(const int64_t tail, writer->add(std::as_bytes(std::span(text.chain.tail))));
  Json::Object index;
  index.emplace("contents", Json(std::string("stored text")));
  index.emplace("stored_text_version", Json(kVersion));
  index.emplace("origin", origin_json(text.origin));
  index.emplace("title", Json(text.title));
  index.emplace("links", Json(links));
  index.emplace("tail", Json(tail));
  index.emplace("snapshot_bytes", Json(text.snapshot_bytes));
  index.emplace("snapshot_modified_ns", Json(text.snapshot_modified_ns));
  return writer->finish(Json(std::move(index)));
}

Result<StoredText> read_stored_text(const std::string& path) {
  QUIRE_ASSIGN(auto opened, ReadFile::open(path, false));
  QUIRE_ASSIGN(const auto file, SnapshotFile::open(std::shared_ptr<const ByteSource>(std::move(opened))));
  const JsonReader all(file->index(), path + ": the index");
  StoredText text;
  QUIRE_TRY(all.integer("stored_text_version", kVersion, kVersion).status());
  const Json* origin = all.find("origin");
  if (!origin || !origin->object()) return all.bad("origin", "an object");
  QUIRE_ASSIGN(text.origin, read_origin(JsonReader(*origin, all.what() + ".origin")));
  QUIRE_ASSIGN(text.title, all.string("title", ""));
  QUIRE_TRY(read_block(*file, all, "links", &text.chain.links));
  QUIRE_TRY(read_block(*file, all, "tail", &text.chain.tail));
  QUIRE_ASSIGN(text.snapshot_bytes, all.integer("snapshot_bytes", 0, kAny));
  QUIRE_ASSIGN(text.snapshot_modified_ns,
               all.integer("snapshot_modified_ns", std::numeric_limits<int64_t>::min(), kAny));
  QUIRE_TRY(SnapshotCheck(*file).rest());
  return text;
}

}  // namespace quire
