// A cache of random keys and values, for benchmarks: how fast a long session is, without computing a long text first.
#include <algorithm>
#include <cstring>

#include "lib/session/session.h"
#include "lib/support/int4.h"

namespace quire {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Sign and mantissa are drawn, the exponent is fixed: every element has a magnitude in [0.25, 0.5). Eight bytes of
// elements at a time.
struct ElementBits {
  uint64_t random;
  uint64_t exponent;
};

ElementBits element_bits(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return {0x83FF83FF83FF83FFu, 0x3400340034003400u};
    case ElementType::kBF16:
      return {0x807F807F807F807Fu, 0x3E803E803E803E80u};
    default:  // f32: narrow records are filled otherwise
      return {0x807FFFFF807FFFFFu, 0x3E8000003E800000u};
  }
}

// Writes buffers, whatever order the backend keeps their elements in.
class Filler {
 public:
  Filler(Backend& backend, Queue& queue, uint64_t seed) : backend_(backend), queue_(queue), random_(seed) {}

  Status fill(Buffer& buffer, size_t offset, size_t bytes, ElementType type) {
    QUIRE_TRY(draw(bytes, type));
    const size_t from = random_.next() % (kPlaces * kBetween) / kBetween * kBetween;
    QUIRE_TRY(backend_.upload(queue_, static_cast<const std::byte*>(drawn_->host()) + from, buffer, offset, bytes));
    return finish_queue(backend_, queue_);  // the next buffer may need other elements
  }

  // A narrow record of numbers below 1: integers or codes are drawn, the scales and minima are equal.
  Status fill_narrow(const KvRecord& record, const KvGeometry& g) {
    const float scale = 1.0f / 128;
    std::vector<std::byte> neutral(kv_neutral_bytes(g)), bytes(backend_.kv_record_bytes(g));
    const auto rows = static_cast<size_t>(g.chunk * g.head_dim);
    auto* at = neutral.data();
    for (int head = 0; head < g.n_kv_heads; ++head) {
      if (g.type == ElementType::kInt4) {
        at = fill_int4(int4_key_place, g, int4_key_bytes(g.chunk, g.head_dim), at);
        at = fill_int4(int4_value_place, g, int4_value_bytes(g.chunk, g.head_dim), at);
        continue;
      }
      for (const int64_t n_scales : {int64_t{g.head_dim}, g.chunk}) {
        for (size_t i = 0; i < rows; ++i) *at++ = static_cast<std::byte>(random_.next() % 255 - 127);
        for (int64_t i = 0; i < n_scales; ++i, at += sizeof scale) std::memcpy(at, &scale, sizeof scale);
      }
    }
    backend_.from_neutral(g, neutral.data(), bytes.data());
    QUIRE_TRY(backend_.upload(queue_, bytes.data(), *record.page, record.offset, bytes.size()));
    return finish_queue(backend_, queue_);
  }

  Queue& queue() { return queue_; }

 private:
  // Buffers are filled from kPlaces places of the drawn elements, kBetween bytes apart: drawing all of them anew would
  // take ten times as long as copying them to a device.
  static constexpr size_t kPlaces = 16384, kBetween = 64;

  // Draws what `bytes` of elements can be taken from.
  Status draw(size_t bytes, ElementType type) {
    const size_t wanted = (bytes + 7) / 8 * 8 + kPlaces * kBetween;
    if (drawn_ && drawn_->size() >= wanted && drawn_type_ == type) return {};
    QUIRE_ASSIGN(drawn_, backend_.allocate(wanted, MemoryKind::kStaging));
    drawn_type_ = type;
    const ElementBits bits = element_bits(type);
    auto* const words = static_cast<uint64_t*>(drawn_->host());
    for (size_t i = 0; i < wanted / sizeof(uint64_t); ++i) words[i] = (random_.next() & bits.random) | bits.exponent;
    return {};
  }

  std::byte* fill_int4(Int4Place (*place)(int64_t, int64_t, int64_t), const KvGeometry& g, size_t bytes,
                       std::byte* at) {
    const uint16_t scale = to_f16(1.0f / 16), minimum = to_f16(-0.5f);
    for (int64_t j = 0; j < g.chunk; ++j) {
      uint64_t codes = 0;
      for (int64_t i = 0; i < g.head_dim; ++i, codes >>= 4) {
        if (i % 16 == 0) codes = random_.next();
        store_int4(at, place(j, i, g.head_dim), static_cast<int>(codes & 15), scale, minimum);
      }
    }
    return at + bytes;
  }

  Backend& backend_;
  Queue& queue_;
  Random random_;
  std::unique_ptr<Buffer> drawn_;
  ElementType drawn_type_ = ElementType::kF32;
};

// Makes room for the keys of one chunk, [first, first + n), in all layers and fills their records.
Status fill_chunk(ChunkStore& kv, Filler& filler, KvKind kind, int n_layers, int64_t first, int64_t n) {
  const int64_t chunk[] = {first / kv.geometry().chunk};
  QUIRE_TRY(kind == KvKind::kText ? kv.reserve(first, n) : kv.reserve_condensed(first, n));
  for (int layer = 0; layer < n_layers; ++layer) {
    QUIRE_TRY(kv.acquire(filler.queue(), layer, chunk, Access::kWrite, kind));
    const KvRecord record = kv.layer(layer, kind).chunks[static_cast<size_t>(chunk[0])];
    QUIRE_TRY(filler.fill(*record.page, record.offset, static_cast<size_t>(kv.record_bytes()), kv.geometry().type));
    if (kind != KvKind::kText) continue;
    for (const int64_t old : kv.to_narrow(layer)) {
      QUIRE_TRY(kv.acquire(filler.queue(), layer, {&old, 1}, Access::kWrite, KvKind::kNarrow));
      const KvRecord narrow = kv.layer(layer, KvKind::kNarrow).chunks[static_cast<size_t>(old)];
      QUIRE_TRY(filler.fill_narrow(narrow, narrow_geometry(kv.geometry(), kv.old_text())));
    }
  }
  if (kind == KvKind::kText) kv.narrowed();
  return {};
}

// What a strategy that selects chunks reads besides: representations, and the queries of the chunk in progress.
Status fill_selection(ChunkStore& kv, Filler& filler, const Strategy& strategy, int n_layers, int64_t n_keys) {
  if (!strategy.selects_chunks()) return {};
  const ElementType type = strategy.selection().vector_type(kv.geometry().type);
  for (int layer = 0; layer < n_layers; ++layer) {
    for (const auto& page : kv.representations(layer).pages) {
      QUIRE_TRY(filler.fill(*page, 0, page->size(), type));
    }
    const int64_t chunk = strategy.selection().chunk;
    const Rows queries = kv.queries_in_progress(layer, n_keys / chunk);
    if (!queries.buffer) continue;
    const size_t row = static_cast<size_t>(queries.stride) * sizeof(float);
    QUIRE_TRY(filler.fill(*queries.buffer, static_cast<size_t>(queries.offset) * sizeof(float),
                          static_cast<size_t>(chunk) * row, ElementType::kF32));
  }
  return {};
}

// Fills the keys [0, n_keys), dropping on the way what the strategy drops. kCancelled.
Status fill_keys(ChunkStore& kv, Filler& filler, const Strategy& strategy, int n_layers, int64_t n_keys,
                 const CancelToken& cancel) {
  const int64_t chunk = kv.geometry().chunk;
  for (int64_t first = 0; first < n_keys; first += chunk) {
    if (cancel.cancelled()) return Status(Code::kCancelled, "filling was cancelled");
    const int64_t n = std::min(chunk, n_keys - first);
    QUIRE_TRY(fill_chunk(kv, filler, KvKind::kText, n_layers, first, n));
    kv.drop_unseen(kv.kept_keys(first + n, {}));
  }
  const int64_t n_entries = strategy.condensed_entries(n_keys);
  for (int64_t first = 0; first < n_entries; first += chunk) {
    QUIRE_TRY(fill_chunk(kv, filler, KvKind::kCondensed, n_layers, first, std::min(chunk, n_entries - first)));
  }
  return fill_selection(kv, filler, strategy, n_layers, n_keys);
}

}  // namespace

Status Session::fill_random(int64_t n_tokens, uint64_t seed) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  TextState& text = contents_->text;
  if (text.n_tokens() > 0) {
    return Status(Code::kInvalidArgument, "the session holds " + std::to_string(text.n_settled()) + " tokens and " +
                                              std::to_string(text.n_pending()) +
                                              " pending ones; only an empty one can be filled");
  }
  if (n_tokens == 0) return {};
  Backend& backend = model_->llama->backend();
  const auto vocab = static_cast<uint64_t>(model_->llama->config().vocab_size);
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n_tokens));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.next() % vocab);
  QUIRE_ASSIGN(const auto queue, backend.create_queue());
  Filler filler(backend, *queue, random.next());
  struct End {  // whatever fails, allocation included
    ChunkStore& kv;
    Queue& queue;
    bool filled = false;
    ~End() {
      kv.release(queue);
      if (!filled) kv.truncate(0);
    }
  } end{contents_->kv(), *queue};
  QUIRE_TRY(unless_closed(
      fill_keys(contents_->kv(), filler, *strategy_, model_->llama->config().n_layers, n_tokens - 1, closing_)));
  end.filled = true;
  // As after a delivered token: the last one has no keys yet, so the next stream computes it and has its logits.
  text.fill(std::move(tokens));
  return {};
}

}  // namespace quire
