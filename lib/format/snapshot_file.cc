#include "lib/format/snapshot_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/support/content_hash.h"

namespace quire {
namespace {

constexpr char kMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'N', 'P'};
constexpr char kEndMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'E', 'N', 'D'};
constexpr int64_t kAlignment = 64;
constexpr int64_t kHeaderBytes = SnapshotFile::kHeaderBytes, kFooterBytes = 64;
constexpr int64_t kTableEntryBytes = 32;
constexpr int64_t kSearchWindow = int64_t{1} << 20;  // bytes that are searched for a footer at a time
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

int64_t padded(int64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

// What a footer says.
struct Footer {
  uint64_t index_at, json_bytes, n_blocks;
  std::span<const std::byte> index_checksum;
};

Footer footer_of(const SnapshotMark& mark) {
  const std::byte* bytes = mark.footer.data();
  return {get(bytes + 8), get(bytes + 16), get(bytes + 24), std::span(mark.footer).subspan(32, 16)};
}

// Whether the bytes are a whole footer, which belongs where they lie.
bool is_footer(std::span<const std::byte> bytes, int64_t at) {
  if (std::memcmp(bytes.data(), kEndMagic, sizeof kEndMagic) != 0 || !checksum_holds(bytes)) return false;
  const uint64_t index_at = get(bytes.data() + 8), json_bytes = get(bytes.data() + 16), n = get(bytes.data() + 24);
  if (index_at < kHeaderBytes || index_at > static_cast<uint64_t>(at) || json_bytes > kMostIndexBytes ||
      n > kMostBlocks) {
    return false;
  }
  return padded(static_cast<int64_t>(index_at + json_bytes + n * kTableEntryBytes)) == at;
}

// Of the last whole footer in bytes [begin, end); nothing: there is none.
Result<std::optional<SnapshotMark>> find_footer(const ByteSource& source, int64_t begin, int64_t end) {
  Bytes window;
  begin = padded(begin);
  int64_t most = kFooterBytes;  // the file's last one usually is where the file ends
  for (int64_t to = end / kAlignment * kAlignment; to > begin; most = kSearchWindow) {
    window.resize(static_cast<size_t>(std::min(most, to - begin)));
    const int64_t window_end = to;
    to -= static_cast<int64_t>(window.size());
    if (const Status read = source.read_at(to, window); !read.ok()) {
      // Somebody who appended another snapshot may have taken it back since the source was opened.
      const int64_t now = source.size_now();
      if (now >= window_end) return read;
      to = now / kAlignment * kAlignment;
      continue;
    }
    for (size_t at = window.size(); at > 0;) {
      at -= kAlignment;
      const auto footer = std::span(window).subspan(at, kFooterBytes);
      const int64_t place = to + static_cast<int64_t>(at);
      if (!is_footer(footer, place)) continue;
      SnapshotMark mark;
      mark.footer_at = place;
      std::ranges::copy(footer, mark.footer.begin());
      return std::optional(mark);
    }
  }
  return std::optional<SnapshotMark>();
}

}  // namespace

// ---- writing

Result<std::unique_ptr<SnapshotWriter>> SnapshotWriter::create(ByteSink& sink, int64_t version) {
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(sink, nullptr, 0));
  Bytes header;
  put(header, bytes_of(kMagic));
  put(header, static_cast<uint64_t>(version));
  header.resize(kHeaderBytes - 16);
  put_checksum(header);
  QUIRE_TRY(writer->write(header));
  return writer;
}

std::unique_ptr<SnapshotWriter> SnapshotWriter::append(ByteSink& sink, const SnapshotFile& base, int64_t n_bytes) {
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(sink, &base, n_bytes));
  writer->by_checksum_.reserve(base.blocks().size());
  for (const SnapshotBlock& block : base.blocks()) writer->by_checksum_.push_back(&block);
  std::ranges::sort(writer->by_checksum_, {}, &SnapshotBlock::checksum);
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

int64_t SnapshotWriter::keep(int64_t base_block) {
  blocks_.push_back(base_->blocks()[static_cast<size_t>(base_block)]);
  return static_cast<int64_t>(blocks_.size()) - 1;
}

// -1: the base does not have such a block, or it is damaged there.
int64_t SnapshotWriter::find_in_base(const SnapshotBlock& wanted) const {
  const auto same = std::ranges::lower_bound(by_checksum_, wanted.checksum, {}, &SnapshotBlock::checksum);
  if (same == by_checksum_.end() || (*same)->checksum != wanted.checksum || (*same)->bytes != wanted.bytes) return -1;
  const int64_t number = *same - base_->blocks().data();
  Bytes bytes(static_cast<size_t>(wanted.bytes));
  return base_->read(number, bytes).ok() ? number : -1;
}

Result<int64_t> SnapshotWriter::add(std::span<const std::byte> block) {
  SnapshotBlock entry;
  entry.offset = offset_;
  entry.bytes = static_cast<int64_t>(block.size());
  entry.checksum = content_checksum(block);
  if (const int64_t same = find_in_base(entry); same >= 0) return keep(same);
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
  const auto checksum = content_checksum(tail);
  if (base_ && base_->end() == offset_ && std::ranges::equal(footer_of(base_->mark()).index_checksum, checksum)) {
    mark_ = base_->mark();
    return {};
  }
  Bytes footer;
  put(footer, bytes_of(kEndMagic));
  put(footer, static_cast<uint64_t>(offset_));
  put(footer, static_cast<uint64_t>(json.size()));
  put(footer, static_cast<uint64_t>(blocks_.size()));
  put(footer, checksum);
  put_checksum(footer);
  QUIRE_TRY(write(tail));
  QUIRE_TRY(pad());
  QUIRE_TRY(sink_.barrier());
  mark_.footer_at = offset_;
  std::ranges::copy(footer, mark_.footer.begin());
  QUIRE_TRY(write(footer));
  return sink_.commit();
}

// ---- reading

Status SnapshotFile::damaged(const std::string& what, int64_t byte) const {
  return Status(Code::kBadFile, name() + ": " + what, byte);
}

Result<std::unique_ptr<SnapshotFile>> SnapshotFile::open(std::shared_ptr<const ByteSource> source) {
  std::unique_ptr<SnapshotFile> snapshot(new SnapshotFile(std::move(source)));
  QUIRE_TRY(snapshot->read_header());
  // It ends the file, unless a crash cut the appending of another snapshot short.
  QUIRE_ASSIGN(const auto mark, find_footer(*snapshot->source_, kHeaderBytes, snapshot->size()));
  if (!mark) {
    return snapshot->damaged("the snapshot's last " + std::to_string(kFooterBytes) +
                                 " bytes are damaged, or its end is missing (it has " +
                                 std::to_string(snapshot->size()) + " bytes)",
                             snapshot->size() - kFooterBytes);
  }
  snapshot->mark_ = *mark;
  QUIRE_TRY(snapshot->read_index());
  return snapshot;
}

Result<std::unique_ptr<SnapshotFile>> SnapshotFile::open(std::shared_ptr<const ByteSource> source,
                                                         const SnapshotMark& mark) {
  std::unique_ptr<SnapshotFile> snapshot(new SnapshotFile(std::move(source)));
  QUIRE_TRY(snapshot->read_header());
  snapshot->mark_.footer_at = mark.footer_at;
  const bool inside = mark.footer_at >= kHeaderBytes && mark.footer_at <= snapshot->size() - kFooterBytes;
  if (inside) QUIRE_TRY(snapshot->source_->read_at(mark.footer_at, snapshot->mark_.footer));
  if (!inside || snapshot->mark_ != mark || !is_footer(mark.footer, mark.footer_at)) {
    return Status(Code::kNotFound, snapshot->name() + " does not hold that snapshot");
  }
  QUIRE_TRY(snapshot->read_index());
  return snapshot;
}

Result<std::unique_ptr<SnapshotFile>> SnapshotFile::find_earlier(int64_t begin, int64_t end) const {
  QUIRE_ASSIGN(const auto mark, find_footer(*source_, begin, end));
  if (!mark) return std::unique_ptr<SnapshotFile>();
  return open(source_, *mark);
}

int64_t SnapshotFile::index_begin() const { return static_cast<int64_t>(footer_of(mark_).index_at); }

int64_t SnapshotFile::index_end() const {
  const Footer footer = footer_of(mark_);
  return index_begin() + static_cast<int64_t>(footer.json_bytes + footer.n_blocks * kTableEntryBytes);
}

int64_t SnapshotFile::end() const { return mark_.footer_at + kFooterBytes; }

int64_t SnapshotFile::used_bytes() const {
  std::vector<std::pair<int64_t, int64_t>> used;  // [begin, end); several numbers may stand for one place
  for (const SnapshotBlock& block : blocks_) used.emplace_back(block.offset, padded(block.offset + block.bytes));
  std::ranges::sort(used);
  int64_t sum = kHeaderBytes + end() - index_begin(), before = 0;
  for (const auto& [begin, end] : used) {
    sum += std::max<int64_t>(0, end - std::max(begin, before));
    before = std::max(before, end);
  }
  return sum;
}

Status SnapshotFile::read_header() {
  std::array<std::byte, kHeaderBytes> header;
  if (size() < kHeaderBytes) return damaged("not a snapshot: it has " + std::to_string(size()) + " bytes", size());
  QUIRE_TRY(source_->read_at(0, header));
  if (std::memcmp(header.data(), kMagic, sizeof kMagic) != 0) return damaged("not a snapshot", 0);
  if (!checksum_holds(header)) return damaged("the snapshot's header is damaged", 0);
  const uint64_t version = get(header.data() + 8);
  if (version < uint64_t{kVersion} || version > uint64_t{kNewestVersion}) {
    return damaged("a snapshot of version " + std::to_string(version) + "; this library reads versions " +
                       std::to_string(kVersion) + " to " + std::to_string(kNewestVersion),
                   sizeof kMagic);
  }
  version_ = static_cast<int64_t>(version);
  return {};
}

Status SnapshotFile::read_index() {
  const auto [at, json_bytes, n, index_checksum] = footer_of(mark_);
  Bytes tail(static_cast<size_t>(json_bytes + n * kTableEntryBytes));
  QUIRE_TRY(source_->read_at(static_cast<int64_t>(at), tail));
  const auto checksum = content_checksum(tail);
  if (!std::ranges::equal(checksum, index_checksum)) {
    return damaged("the snapshot's index is damaged: its checksum is another one", static_cast<int64_t>(at));
  }
  blocks_.reserve(static_cast<size_t>(n));
  for (const std::byte* entry = tail.data() + json_bytes; entry < tail.data() + tail.size();
       entry += kTableEntryBytes) {
    const uint64_t offset = get(entry), bytes = get(entry + 8);
    if (offset < kHeaderBytes || offset > at || bytes > at - offset || offset % kAlignment != 0) {
      return damaged("block " + std::to_string(blocks_.size()) + " does not lie before the index",
                     static_cast<int64_t>(at) + (entry - tail.data()));
    }
    SnapshotBlock& block = blocks_.emplace_back();
    block.offset = static_cast<int64_t>(offset);
    block.bytes = static_cast<int64_t>(bytes);
    std::copy_n(entry + 16, block.checksum.size(), block.checksum.begin());
  }
  const std::string_view json(reinterpret_cast<const char*>(tail.data()), static_cast<size_t>(json_bytes));
  Result<Json> index = parse_json_object(json, name() + ": the snapshot's index", {.max_values = kMostIndexValues});
  if (const Status bad = index.status(); !bad.ok()) {  // its offset counts from the index on
    return Status(bad.code(), bad.message(), bad.offset() < 0 ? -1 : static_cast<int64_t>(at) + bad.offset());
  }
  index_ = std::move(*index);
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
                     std::to_string(block.offset) + " on, is damaged: its checksum is another one",
                 block.offset);
}

void SnapshotFile::will_read(int64_t number) const {
  if (block_bytes(number) <= 0) return;
  const SnapshotBlock& block = blocks_[static_cast<size_t>(number)];
  source_->will_read(block.offset, block.bytes);
}

}  // namespace quire
