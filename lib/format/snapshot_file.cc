#include "lib/format/snapshot_file.h"

#include <algorithm>
#include <cstring>

#include "lib/support/content_hash.h"

namespace quire {
namespace {

constexpr char kMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'N', 'P'};
constexpr char kEndMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'E', 'N', 'D'};
constexpr int64_t kAlignment = 64;
constexpr int64_t kHeaderBytes = 64, kFooterBytes = 64;
constexpr int64_t kTableEntryBytes = 32;
constexpr int64_t kMostIndexBytes = int64_t{1} << 26;
constexpr int64_t kMostIndexValues = int64_t{1} << 22;
constexpr int64_t kMostBlocks = int64_t{1} << 24;

using Bytes = std::vector<std::byte>;

void put(Bytes& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

uint64_t get(const std::byte* from) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return value;
}

void put(Bytes& out, std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

std::span<const std::byte> bytes_of(const char (&text)[8]) { return std::as_bytes(std::span(text)); }

// Header and footer end with the checksum of the bytes before it.
void put_checksum(Bytes& out) {
  const auto checksum = content_checksum(out);
  put(out, checksum);
}

bool checksum_holds(std::span<const std::byte> bytes) {
  const auto checksum = content_checksum(bytes.first(bytes.size() - 16));
  return std::equal(checksum.begin(), checksum.end(), bytes.end() - 16);
}

}  // namespace

// ---- writing

Result<std::unique_ptr<SnapshotWriter>> SnapshotWriter::create(ByteSink& sink) {
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(sink));
  Bytes header;
  put(header, bytes_of(kMagic));
  put(header, uint64_t{SnapshotFile::kVersion});
  header.resize(kHeaderBytes - 16);
  put_checksum(header);
  QUIRE_TRY(writer->write(header));
  return writer;
}

Status SnapshotWriter::write(std::span<const std::byte> bytes) {
  QUIRE_TRY(sink_.write(bytes));
  offset_ += static_cast<int64_t>(bytes.size());
  return {};
}

Status SnapshotWriter::pad() {
  const std::array<std::byte, kAlignment> zeros{};
  const auto used = static_cast<size_t>(offset_ % kAlignment);
  return used == 0 ? Status() : write(std::span(zeros).subspan(used));
}

Result<int64_t> SnapshotWriter::add(std::span<const std::byte> block) {
  SnapshotBlock entry;
  entry.offset = offset_;
  entry.bytes = static_cast<int64_t>(block.size());
  entry.checksum = content_checksum(block);
  blocks_.push_back(entry);
  QUIRE_TRY(write(block));
  QUIRE_TRY(pad());
  return static_cast<int64_t>(blocks_.size()) - 1;
}

Status SnapshotWriter::finish(const Json& index) {
  std::string json;
  index.print(json, kMostIndexBytes);
  if (static_cast<int64_t>(json.size()) > kMostIndexBytes) {
    return Status(Code::kUnsupported,
                  "the snapshot's index would have more than " + std::to_string(kMostIndexBytes) + " bytes");
  }
  Bytes tail;
  put(tail, std::as_bytes(std::span(json)));
  for (const SnapshotBlock& block : blocks_) {
    put(tail, static_cast<uint64_t>(block.offset));
    put(tail, static_cast<uint64_t>(block.bytes));
    put(tail, block.checksum);
  }
  Bytes footer;
  put(footer, bytes_of(kEndMagic));
  put(footer, static_cast<uint64_t>(offset_));
  put(footer, static_cast<uint64_t>(json.size()));
  put(footer, static_cast<uint64_t>(blocks_.size()));
  put(footer, content_checksum(tail));
  put_checksum(footer);
  QUIRE_TRY(write(tail));
  QUIRE_TRY(pad());
  QUIRE_TRY(write(footer));
  return sink_.commit();
}

// ---- reading

Status SnapshotFile::damaged(const std::string& what) const { return Status(Code::kBadFile, name() + ": " + what); }

Result<std::unique_ptr<SnapshotFile>> SnapshotFile::open(std::shared_ptr<const ByteSource> source) {
  std::unique_ptr<SnapshotFile> snapshot(new SnapshotFile(std::move(source)));
  QUIRE_TRY(snapshot->read_index());
  return snapshot;
}

Status SnapshotFile::read_index() {
  std::array<std::byte, kHeaderBytes> header;
  if (size() < kHeaderBytes) return damaged("not a snapshot: it has " + std::to_string(size()) + " bytes");
  QUIRE_TRY(source_->read_at(0, header));
  if (std::memcmp(header.data(), kMagic, sizeof kMagic) != 0) return damaged("not a snapshot");
  if (!checksum_holds(header)) return damaged("the snapshot's header is damaged");
  const uint64_t version = get(header.data() + 8);
  if (version != uint64_t{kVersion}) {
    return damaged("a snapshot of version " + std::to_string(version) + "; this library reads version " +
                   std::to_string(kVersion));
  }

  std::array<std::byte, kFooterBytes> footer;
  const int64_t footer_at = size() - kFooterBytes;
  if (footer_at < kHeaderBytes) return damaged("the snapshot ends behind its header");
  QUIRE_TRY(source_->read_at(footer_at, footer));
  if (std::memcmp(footer.data(), kEndMagic, sizeof kEndMagic) != 0 || !checksum_holds(footer)) {
    return damaged("the snapshot's last " + std::to_string(kFooterBytes) +
                   " bytes are damaged, or its end is missing (it has " + std::to_string(size()) + " bytes)");
  }
  const uint64_t at = get(footer.data() + 8), json_bytes = get(footer.data() + 16), n = get(footer.data() + 24);
  const auto end = static_cast<uint64_t>(footer_at);
  if (n > kMostBlocks || json_bytes > kMostIndexBytes || at > end || at < kHeaderBytes ||
      json_bytes + n * kTableEntryBytes > end - at) {
    return damaged("the snapshot's index does not lie inside the file");
  }
  Bytes tail(static_cast<size_t>(json_bytes + n * kTableEntryBytes));
  QUIRE_TRY(source_->read_at(static_cast<int64_t>(at), tail));
  const auto checksum = content_checksum(tail);
  if (!std::equal(checksum.begin(), checksum.end(), footer.begin() + 32)) {
    return damaged("the snapshot's index is damaged: its checksum is another one");
  }
  blocks_.reserve(static_cast<size_t>(n));
  for (const std::byte* entry = tail.data() + json_bytes; entry < tail.data() + tail.size();
       entry += kTableEntryBytes) {
    const uint64_t offset = get(entry), bytes = get(entry + 8);
    if (offset < kHeaderBytes || offset > at || bytes > at - offset || offset % kAlignment != 0) {
      return damaged("block " + std::to_string(blocks_.size()) + " does not lie before the index");
    }
    SnapshotBlock& block = blocks_.emplace_back();
    block.offset = static_cast<int64_t>(offset);
    block.bytes = static_cast<int64_t>(bytes);
    std::copy_n(entry + 16, block.checksum.size(), block.checksum.begin());
  }
  const std::string_view json(reinterpret_cast<const char*>(tail.data()), static_cast<size_t>(json_bytes));
  QUIRE_ASSIGN(index_, parse_json_object(json, name() + ": the snapshot's index", {.max_values = kMostIndexValues}));
  return {};
}

int64_t SnapshotFile::block_bytes(int64_t block) const {
  return block < 0 || block >= n_blocks() ? -1 : blocks_[static_cast<size_t>(block)].bytes;
}

Status SnapshotFile::read(int64_t number, std::span<std::byte> out) const {
  if (block_bytes(number) != static_cast<int64_t>(out.size())) {
    return damaged("block " + std::to_string(number) + " has " + std::to_string(block_bytes(number)) +
                   " bytes; expected " + std::to_string(out.size()));
  }
  const SnapshotBlock& block = blocks_[static_cast<size_t>(number)];
  QUIRE_TRY(source_->read_at(block.offset, out));
  if (content_checksum(out) == block.checksum) return {};
  return damaged("block " + std::to_string(number) + ", " + std::to_string(block.bytes) + " bytes from byte " +
                 std::to_string(block.offset) + " on, is damaged: its checksum is another one");
}

}  // namespace quire
