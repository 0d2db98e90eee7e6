// What keys and values of a real text compress to, and how fast, in the forms that a compressed tier could give them.
//
//   quire_bench_compression MODEL TEXT TOKENS [DIRECTORY]
//
// Reads the first TOKENS tokens of the file TEXT with each KV type, and in f16 with each type of old text, all complete
// chunks being old; saves the session to DIRECTORY (default: /tmp), and compresses some of the snapshot's records, keys
// and values apart, scales included. The machine's own rates (memcpy, a file from the page cache and from the disk) are
// those of the same run. Each rate is a median of rounds in turn.
#include <fcntl.h>
#include <unistd.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "lib/backend/kv_records.h"
#include "lib/format/snapshot_file.h"
#include "lib/session/snapshot_index.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kSampleBytes = int64_t{16} << 20;

using Bytes = std::vector<std::byte>;

// Keys or values of a record: [rows][head_dim], the rows of a head one after the other. Of narrow records the bytes
// that stand for a head's, one head after the other.
struct Part {
  Bytes bytes;
  size_t width = 2;  // of an element; narrow: 1
  size_t row = 0;    // elements
  size_t rows_of_head = 0;
};

// Planes of bytes, the most significant one last; each is compressed by itself.
using Planes = std::vector<Bytes>;

uint32_t load(const std::byte* from, size_t width) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, width);
  return bits;
}

Planes whole(const Part& part) { return {part.bytes}; }

// rotate: the sign goes to the lowest bit, so that the exponent begins a byte.
Planes planes(const Part& part, bool rotate) {
  const size_t n = part.bytes.size() / part.width, bits = 8 * part.width;
  Planes out(part.width, Bytes(n));
  for (size_t i = 0; i < n; ++i) {
    uint32_t x = load(&part.bytes[i * part.width], part.width);
    if (rotate) x = x << 1 | x >> (bits - 1);
    for (size_t p = 0; p < part.width; ++p) out[p][i] = static_cast<std::byte>(x >> (8 * p));
  }
  return out;
}

// The last plane, each byte against the one of the token before.
Planes against_neighbour(const Part& part, bool difference) {
  Planes out = planes(part, true);
  Bytes& top = out.back();
  for (size_t i = top.size(); i-- > 0;) {
    if (i / part.row % part.rows_of_head == 0) continue;
    const auto a = static_cast<unsigned>(top[i]), b = static_cast<unsigned>(top[i - part.row]);
    top[i] = static_cast<std::byte>(difference ? a - b : a ^ b);
  }
  return out;
}

// The last plane by channel, all tokens of one after the other; `relative`: against the channel's most frequent byte.
Planes by_channel(const Part& part, bool relative) {
  Planes out = planes(part, true);
  const Bytes top = out.back();
  const size_t heads = top.size() / part.row / part.rows_of_head;
  size_t to = 0;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t c = 0; c < part.row; ++c) {
      std::array<int, 256> count{};
      const auto at = [&](size_t t) { return static_cast<uint8_t>(top[(h * part.rows_of_head + t) * part.row + c]); };
      for (size_t t = 0; t < part.rows_of_head; ++t) ++count[at(t)];
      const auto usual = static_cast<unsigned>(std::max_element(count.begin(), count.end()) - count.begin());
      for (size_t t = 0; t < part.rows_of_head; ++t) {
        out.back()[to++] = static_cast<std::byte>(at(t) - (relative ? usual : 0));
      }
    }
  }
  return out;
}

Planes bit_planes(const Part& part) {
  const size_t n = part.bytes.size() / part.width;
  Planes out(8 * part.width, Bytes(n / 8));
  for (size_t i = 0; i < n; ++i) {
    const uint32_t x = load(&part.bytes[i * part.width], part.width);
    for (size_t b = 0; b < out.size(); ++b) out[b][i / 8] |= static_cast<std::byte>((x >> b & 1) << (i % 8));
  }
  return out;
}

struct Form {
  const char* name;
  std::function<Planes(const Part&)> split;
  bool of_narrow = false;  // says something of bytes that are no numbers
};

const Form kForms[] = {
    {"as it is", whole, true},  // with bytes for elements also what the codec does
    {"bit planes", bit_planes, true},
    {"byte planes", [](const Part& p) { return planes(p, false); }},
    {"exponent", [](const Part& p) { return planes(p, true); }},
    {"exponent - last token's", [](const Part& p) { return against_neighbour(p, true); }},
    {"exponent ^ last token's", [](const Part& p) { return against_neighbour(p, false); }},
    {"exponent by channel", [](const Part& p) { return by_channel(p, false); }},
    {"exponent - channel's", [](const Part& p) { return by_channel(p, true); }},
};

struct Setting {
  const char* name;
  int level;
  bool codes;  // bytes get codes by their frequency at any level
};
// The lower a level, the less it looks for repeated strings; the codec has -1000 with codes.
constexpr Setting kSettings[] = {
    {"-5", -5, false}, {"-5 codes", -5, true}, {"-100 codes", -100, true}, {"-1000 codes", -1000, true},
    {"1", 1, false},   {"3", 3, false}};

class Zstd {
 public:
  explicit Zstd(const Setting& setting) {
    ZSTD_CCtx_setParameter(to_, ZSTD_c_compressionLevel, setting.level);
    ZSTD_CCtx_setParameter(to_, ZSTD_c_contentSizeFlag, 0);
    if (setting.codes) ZSTD_CCtx_setParameter(to_, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
  }
  ~Zstd() { ZSTD_freeCCtx(to_), ZSTD_freeDCtx(from_); }
  // Of a plane; one that does not get smaller stays as it is.
  size_t compress(const Bytes& plane, Bytes& out) {
    out.resize(ZSTD_compressBound(plane.size()));
    const size_t n = ZSTD_compress2(to_, out.data(), out.size(), plane.data(), plane.size());
    if (n >= plane.size()) {
      out = plane;
    } else {
      out.resize(n);
    }
    return out.size();
  }
  void decompress(const Bytes& from, Bytes& plane) {
    if (from.size() == plane.size()) {
      std::memcpy(plane.data(), from.data(), from.size());
    } else if (ZSTD_decompressDCtx(from_, plane.data(), plane.size(), from.data(), from.size()) != plane.size()) {
      std::exit((std::fprintf(stderr, "decompressing failed\n"), 1));
    }
  }

 private:
  ZSTD_CCtx* const to_ = ZSTD_createCCtx();
  ZSTD_DCtx* const from_ = ZSTD_createDCtx();
};

struct Sample {
  std::vector<Part> keys, values;
  int64_t bytes = 0;
};

// Bytes of a head's keys and of its values, in a record's neutral form.
std::array<size_t, 2> head_bytes(const KvGeometry& g) {
  if (g.type == ElementType::kInt4) return {int4_key_bytes(g.chunk, g.head_dim), int4_value_bytes(g.chunk, g.head_dim)};
  const size_t rows = static_cast<size_t>(g.chunk) * row_bytes(g.type, g.head_dim);
  if (g.type != ElementType::kInt8) return {rows, rows};
  return {rows + static_cast<size_t>(g.head_dim) * sizeof(float), rows + static_cast<size_t>(g.chunk) * sizeof(float)};
}

bool is_narrow(ElementType type) { return type == ElementType::kInt8 || type == ElementType::kInt4; }

// Of a session without condensed entries, and of a model without windows of some layers.
Sample read_records(const std::string& path, const KvGeometry& geometry, int n_layers) {
  const auto file = take(SnapshotFile::open(take(ReadFile::open(path))));
  const SnapshotIndex index = take(read_index(*file));
  const auto n_blocks = [&](RecordKind kind) {
    int64_t n = 0;
    for (const ChunkRange& range : index.kv.held[static_cast<size_t>(kind)]) n += range.end - range.begin;
    return n * n_layers;
  };
  const bool narrow = is_narrow(geometry.type);
  const int64_t first = index.kv.first_block + (narrow ? n_blocks(RecordKind::kText) : 0);
  const int64_t n = n_blocks(narrow ? RecordKind::kNarrow : RecordKind::kText);
  const auto bytes = static_cast<int64_t>(kv_neutral_bytes(geometry));
  const int64_t every = std::max<int64_t>(1, n * bytes / kSampleBytes);
  const auto runs = head_bytes(geometry);
  Sample sample;
  Bytes record(static_cast<size_t>(bytes));
  for (int64_t block = 0; block < n; block += every) {
    check(file->read(first + block, record));
    Part parts[2];
    for (size_t at = 0, run = 0; at < record.size(); at += runs[run], run = 1 - run) {
      parts[run].bytes.insert(parts[run].bytes.end(), &record[at], &record[at] + runs[run]);
    }
    for (Part& part : parts) {
      part.width = narrow ? 1 : element_bytes(geometry.type);
      part.row = static_cast<size_t>(geometry.head_dim);
      part.rows_of_head = static_cast<size_t>(geometry.chunk);
    }
    sample.keys.push_back(std::move(parts[0]));
    sample.values.push_back(std::move(parts[1]));
    sample.bytes += bytes;
  }
  return sample;
}

struct Rates {
  double ratio = 0, compress = 0, decompress = 0;  // bytes a second of planes
};

Rates measure(const std::vector<Part>& parts, const Form& form, const Setting& setting) {
  Zstd zstd(setting);
  std::vector<Bytes> split, packed;
  size_t before = 0, after = 0;
  for (const Part& part : parts) {
    for (Bytes& plane : form.split(part)) split.push_back(std::move(plane));
  }
  packed.resize(split.size());
  std::vector<double> to, from;
  Bytes plane;
  for (int round = 0; round < kRounds; ++round) {
    to.push_back(seconds([&] {
      for (size_t i = 0; i < split.size(); ++i) zstd.compress(split[i], packed[i]);
    }));
    from.push_back(seconds([&] {
      for (size_t i = 0; i < split.size(); ++i) {
        plane.resize(split[i].size());
        zstd.decompress(packed[i], plane);
      }
    }));
  }
  for (size_t i = 0; i < split.size(); ++i) before += split[i].size(), after += packed[i].size();
  const auto bytes = static_cast<double>(before);
  return {static_cast<double>(after) / bytes, bytes / median(to), bytes / median(from)};
}

double file_rate(const std::string& path, int64_t bytes, size_t piece, bool cached) {
  std::vector<char> buffer(piece);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) std::exit((std::perror(path.c_str()), 1));
  if (!cached) ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const double s = seconds([&] {
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(piece)) {
      if (::pread(fd, buffer.data(), piece, at) <= 0) std::exit((std::perror("pread"), 1));
    }
  });
  ::close(fd);
  return static_cast<double>(bytes) / s;
}

void measure_machine(const std::string& path, size_t piece) {
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path)) / static_cast<int64_t>(piece) *
                    static_cast<int64_t>(piece);
  Bytes from(static_cast<size_t>(kSampleBytes), std::byte{1}), to(from.size());
  std::map<std::string, std::vector<double>> rates;
  for (int round = 0; round < kRounds; ++round) {
    rates["memcpy"].push_back(static_cast<double>(from.size()) /
                              seconds([&] { std::memcpy(to.data(), from.data(), from.size()); }));
    rates["pread from the disk"].push_back(file_rate(path, size, piece, false));
    rates["pread from the page cache"].push_back(file_rate(path, size, piece, true));
  }
  for (const auto& [name, all] : rates) std::printf("  %-26s %8.0f MB/s\n", name.c_str(), 1e-6 * median(all));
}

int run(const std::string& model_path, const std::string& text_path, int64_t n_tokens, const std::string& directory) {
  const auto model = take(load_model(std::make_shared<Runtime>(RuntimeOptions()), model_path, {}));
  std::ifstream file(text_path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string path = directory + "/quire_bench_compression.quire";
  for (const ElementType type :
       {ElementType::kBF16, ElementType::kF16, ElementType::kF32, ElementType::kInt8, ElementType::kInt4}) {
    SessionOptions options;
    options.strategy = "dca";
    if (is_narrow(type)) {
      options.old_text = {.type = type, .after = 0};
    } else {
      options.kv_type = type;
    }
    const auto session = take(Session::create(model, options));
    check(session->feed_text(std::string_view(text).substr(0, static_cast<size_t>(8 * n_tokens)), false, true));
    check(session->truncate(std::min(n_tokens, stats_of(*session).n_pending)));
    generate(session, 1);
    check(session->save(path, {}));
    const LlamaModel& llama = *model->llama;
    const auto strategy = take(choose_strategy(*model, options));
    const KvGeometry geometry = llama.kv_geometry(*strategy, type);
    const Sample sample = read_records(path, geometry, llama.config().n_layers);
    std::printf("%s: %lld tokens, records of %zu bytes, %.1f MB of them\n", element_name(type),
                static_cast<long long>(n_tokens), kv_neutral_bytes(geometry), 1e-6 * static_cast<double>(sample.bytes));
    measure_machine(path, kv_neutral_bytes(geometry));
    std::printf("  %-24s %-11s %22s %22s\n", "form", "level", "keys: ratio, MB/s", "values: ratio, MB/s");
    for (const Form& form : kForms) {
      if (is_narrow(type) && !form.of_narrow) continue;
      for (const Setting& setting : kSettings) {
        const Rates k = measure(sample.keys, form, setting), v = measure(sample.values, form, setting);
        std::printf("  %-24s %-11s %6.3f %7.0f %7.0f %6.3f %7.0f %7.0f\n", form.name, setting.name, k.ratio,
                    1e-6 * k.compress, 1e-6 * k.decompress, v.ratio, 1e-6 * v.compress, 1e-6 * v.decompress);
      }
    }
    std::filesystem::remove(path);
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: quire_bench_compression MODEL TEXT TOKENS [DIRECTORY]\n");
    return 2;
  }
  return quire::bench::run(argv[1], argv[2], std::atoll(argv[3]), argc > 4 ? argv[4] : "/tmp");
}
