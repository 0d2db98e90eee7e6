#include "tests/unit/backend/attention_scene.h"

#include <map>
#include <set>

#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"

namespace quire::test {
// Positions repeat, so their rotations are kept.
class Rotations {
 public:
  explicit Rotations(const std::vector<double>& theta) : theta_(theta) {}
  const Rotation& at(double position) {
    Rotation& r = made_[position];
    if (r.cos.empty()) {
      for (const double t : theta_) {
        r.cos.push_back(std::cos(position * t));
        r.sin.push_back(std::sin(position * t));
      }
    }
    return r;
  }

 private:
  const std::vector<double>& theta_;
  std::map<double, Rotation> made_;
};

namespace {}  // namespace

std::string Shape::name() const {
  return "group " + std::to_string(group) + ", kv heads " + std::to_string(n_kv_heads) + ", d " +
         std::to_string(head_dim) + ", chunk " + std::to_string(chunk) + ", " + element_name(type);
}

AttentionScene::AttentionScene(Machine& machine, Random& random, const Shape& shape, int64_t stored_div)
    : shape_(shape), stored_div_(stored_div) {
  for (int a = 0; a < shape.head_dim / 2; ++a) table_.theta.push_back(std::pow(10000.0, -2.0 * a / shape.head_dim));
  rope_ = take(machine.backend->create_rope(table_, shape.chunk));
  scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  queries_ = random.normal(kQueries * shape.n_query_heads() * shape.head_dim);
  store(machine, random, kTextKeys, stored_div, kinds_[0]);
  store(machine, random, kMemoryKeys, 1, kinds_[1]);
  if (shape.old().narrows()) narrow(machine, random);
}

// Narrow records of all complete chunks, some chunks at a time.
void AttentionScene::narrow(Machine& machine, Random& random) {
  const int64_t n_chunks = kTextKeys / shape_.chunk;
  const KvGeometry geometry = narrow_geometry(shape_.geometry(), shape_.old());
  KeysAndValues& narrow = kinds_[static_cast<int>(KvKind::kNarrow)];
  narrow.records = Records(*machine.backend, machine.backend->kv_record_bytes(geometry), n_chunks);
  const auto step =
      machine.storing_step({.n = 1, .rope = rope_.get(), .old = shape_.old(), .geometry = shape_.geometry()});
  int64_t count = 0;
  for (int64_t first = 0; first < n_chunks; first += count) {
    count = std::min(n_chunks - first, random.between(1, 3));
    const NarrowArgs args{
        .first_chunk = first, .n_chunks = count, .records = {kinds_[0].records.chunks}, .out = {narrow.records.chunks}};
    if (!machine.backend->narrow_chunks(machine.exec(), *step, args).ok()) throw std::runtime_error("narrow_chunks");
  }
  // Each number is its integer times its scale, which is the greatest magnitude of those that share it, over 127; of
  // kInt4 its code times the scale and the minimum.
  const cpu::RecordLayout full(shape_.geometry()), layout(geometry);
  const int64_t d = shape_.head_dim, l = shape_.chunk;
  Rotations rotations(table_.theta);
  for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
    const auto* from = cpu::record_ptr(kinds_[0].records.chunks[static_cast<size_t>(chunk)]);
    const auto* record = cpu::record_ptr(narrow.records.chunks[static_cast<size_t>(chunk)]);
    const auto at = [&](int64_t head, bool is_key, int64_t j, int64_t i) {
      if (!is_key) return load_element(shape_.type, from + full.values(head), j * d + i);
      return load_element(shape_.type, from + full.keys(head), (j / 16 * d + i) * 16 + j % 16);
    };
    for (int64_t j = 0; j < l; ++j) {
      for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
        std::vector<float> key(static_cast<size_t>(d));
        for (const bool is_key : {true, false}) {
          for (int64_t i = 0; i < d; ++i) {
            const int64_t place = (is_key ? cpu::key_place : cpu::value_place)(ElementType::kInt8, j, i, d);
            const auto* stored = record + (is_key ? layout.keys(head) : layout.values(head));
            float scale = 0;
            double number = 0, most = 0;
            if (geometry.type == ElementType::kInt4) {
              const Int4Place in_group = (is_key ? int4_key_place : int4_value_place)(j, i, d);
              scale = load_f16(stored, in_group.scale);
              number = load_int4(stored, in_group);
            }
            for (int64_t other = 0; other < (is_key ? l : d); ++other) {
              most = std::max<double>(most, std::fabs(is_key ? at(head, true, other, i) : at(head, false, j, other)));
            }
            if (geometry.type == ElementType::kInt8) {
              std::memcpy(&scale,
                          record + (is_key ? layout.key_scales(head) + static_cast<size_t>(i) * sizeof scale
                                           : layout.value_scales(head) + static_cast<size_t>(j) * sizeof scale),
                          sizeof scale);
              ASSERT_NEAR(scale, most / 127, 1e-6 * most);
              number = static_cast<double>(load_element(ElementType::kInt8, stored, place)) * scale;
            }
            ASSERT_LE(scale, 2 * most / 15 * 1.01);
            ASSERT_NEAR(number, at(head, is_key, j, i), 0.501 * scale);
            if (is_key) key[static_cast<size_t>(i)] = static_cast<float>(number);
            if (!is_key) narrow.rounded_values.push_back(number);
          }
        }
        append_unrotated(key, stored_position(j, stored_div_), rotations, narrow);
      }
    }
  }
}

void AttentionScene::append_unrotated(const std::vector<float>& key, int64_t stored, Rotations& rotations,
                                      KeysAndValues& kind) const {
  const int64_t half = shape_.head_dim / 2;
  const Rotation& back = rotations.at(-static_cast<double>(stored));
  std::vector<double> unrotated(key.size());
  for (int64_t a = 0; a < half; ++a) {
    unrotated[a] = key[a] * back.cos[a] - key[a + half] * back.sin[a];
    unrotated[a + half] = key[a + half] * back.cos[a] + key[a] * back.sin[a];
  }
  kind.rounded_keys.insert(kind.rounded_keys.end(), unrotated.begin(), unrotated.end());
}

const AttentionScene::KeysAndValues& AttentionScene::read_by(int64_t i, const SeenKey& seen) const {
  // Chunks that end old_after keys before the query's own chunk.
  const int64_t l = shape_.chunk, end = (seen.key / l + 1) * l;
  const bool old = shape_.old().narrows() && seen.kind == KvKind::kText && end + shape_.old_after <= i / l * l;
  return kinds_[static_cast<int>(old ? KvKind::kNarrow : seen.kind)];
}

void AttentionScene::store(Machine& machine, Random& random, int64_t n, int64_t stored_div, KeysAndValues& kind) {
  const int64_t width = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  kind.keys = random.normal(n * width);
  kind.values = random.normal(n * width);
  kind.records =
      Records(*machine.backend, machine.backend->kv_record_bytes(shape_.geometry()), ceil_div(n, shape_.chunk));
  const auto keys = machine.buffer(kind.keys), values = machine.buffer(kind.values);
  StoreKvArgs args;
  args.records = {kind.records.chunks, stored_div};
  int64_t count = 0;
  for (int64_t first = 0; first < n; first += count) {  // in uneven parts, as sessions store
    count = std::min(n - first, random.between(1, 90));
    const auto step =
        machine.storing_step({.n = count, .first_key = first, .rope = rope_.get(), .geometry = shape_.geometry()});
    args.keys = Rows{keys.get(), 0, width}.at(first);
    args.values = Rows{values.get(), 0, width}.at(first);
    if (!machine.backend->store_kv(machine.exec(), *step, args).ok()) throw std::runtime_error("store_kv");
  }
  EXPECT_EQ(machine.values(*keys), kind.keys);  // store_kv changes neither
  EXPECT_EQ(machine.values(*values), kind.values);
  read_back(n, stored_div, kind);
}

void AttentionScene::read_back(int64_t n, int64_t stored_div, KeysAndValues& kind) const {
  const cpu::RecordLayout layout(shape_.geometry());
  const int64_t d = shape_.head_dim;
  Rotations rotations(table_.theta);
  std::vector<float> key(static_cast<size_t>(d));
  for (int64_t j = 0; j < n; ++j) {
    const auto* record = cpu::record_ptr(kind.records.chunks[static_cast<size_t>(j / shape_.chunk)]);
    const int64_t offset = j % shape_.chunk;
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      cpu::scalar::load_key(shape_.type, record + layout.keys(head), offset, d, key.data());
      append_unrotated(key, stored_position(offset, stored_div), rotations, kind);
      for (int64_t c = 0; c < d; ++c) {
        kind.rounded_values.push_back(load_element(shape_.type, record + layout.values(head), offset * d + c));
      }
    }
  }
  // Rounding apart, what was stored is what was given.
  const double tolerance = shape_.type == ElementType::kF32 ? 4e-6 : shape_.type == ElementType::kF16 ? 6e-3 : 4e-2;
  double worst = 0;
  for (size_t e = 0; e < kind.rounded_keys.size(); ++e) {
    worst = std::max(
        {worst, std::fabs(kind.rounded_keys[e] - kind.keys[e]), std::fabs(kind.rounded_values[e] - kind.values[e])});
  }
  ASSERT_LE(worst, tolerance) << shape_.name();
}

void AttentionScene::select(Random& random, int64_t chunk, int64_t count) {
  n_picks_ = count;
  picks_.clear();
  for (int64_t row = 0; row < kQueries * shape_.n_query_heads(); ++row) {
    const int64_t own = (kFirstQuery + row / shape_.n_query_heads()) / chunk;
    std::set<int64_t> chosen = {own};
    while (static_cast<int64_t>(chosen.size()) < std::min(count, own + 1)) chosen.insert(random.between(0, own));
    picks_.insert(picks_.end(), chosen.begin(), chosen.end());
    picks_.resize(static_cast<size_t>((row + 1) * count), -1);
  }
}

void AttentionScene::spoil_key(int64_t key, float number) {
  auto* const record = cpu::record_ptr(kinds_[0].records.chunks[static_cast<size_t>(key / shape_.chunk)]);
  const int64_t offset = key % shape_.chunk, first_of_16 = offset / 16 * shape_.head_dim * 16;
  const cpu::RecordLayout layout(shape_.geometry());
  store_element(shape_.type, record + layout.keys(0), first_of_16 + offset % 16, number);
}

std::vector<float> AttentionScene::run(Machine& machine, const Plan& plan, int64_t first, int64_t n,
                                       const RunOptions& options) const {
  const int64_t width = int64_t{shape_.n_query_heads()} * shape_.head_dim;
  const auto begin = queries_.begin() + (first - kFirstQuery) * width;
  const auto queries = machine.buffer(std::vector<float>(begin, begin + n * width));
  const auto out = machine.buffer(std::vector<float>(static_cast<size_t>(n * width), std::nanf("")));
  AttentionArgs args;
  args.queries = {queries.get(), 0, width};
  args.out = {out.get(), 0, width};
  const auto step = machine.step(shape_.n_query_heads(), {.plan = std::make_shared<Plan>(plan),
                                                          .n = n,
                                                          .first_key = first,
                                                          .rope = rope_.get(),
                                                          .stored_div = stored_div_,
                                                          .old = shape_.old(),
                                                          .geometry = shape_.geometry(),
                                                          .scale = scale_});
  std::unique_ptr<Buffer> picks;
  if (n_picks_ > 0) {
    const int64_t row = shape_.n_query_heads() * n_picks_;
    const size_t bytes = static_cast<size_t>(n * row) * sizeof(int32_t);
    picks = take(machine.backend->allocate(bytes, MemoryKind::kDevice));
    std::memcpy(picks->host(), &picks_[static_cast<size_t>((first - kFirstQuery) * row)], bytes);
    args.selection = picks.get();
  }
  std::unique_ptr<Buffer> shares;
  if (options.shares) {
    args.shares.first_row = options.shares->first_row;
    args.shares.first_key = options.shares->first_key;
    args.shares.end_key = options.shares->end_key;
    args.shares.n_entries = kMemoryKeys;
    const int64_t rows = (n - args.shares.first_row) * shape_.n_query_heads();
    shares = machine.buffer(std::vector<float>(static_cast<size_t>(rows * args.shares.n_cells()), std::nanf("")));
    args.shares.out = shares.get();
  }
  const Status done = attention(machine, *step, n, args, options);
  if (shares) options.shares->values = machine.values(*shares);
  if (options.status) {
    *options.status = done;
  } else if (!done.ok()) {
    throw std::runtime_error(done.message());
  }
  return machine.values(*out);
}

// One call, or one a window; a window's call has no text records but its own.
Status AttentionScene::attention(Machine& machine, const PreparedStep& step, int64_t n, AttentionArgs args,
                                 const RunOptions& options) const {
  for (int s = 0; s < kKvKinds; ++s) args.records[s] = {kinds_[s].records.chunks, s == 0 ? stored_div_ : 1};
  if (options.cuts.empty()) return machine.backend->attention(machine.exec(options.cancel), step, {&args, 1});
  const auto state = machine.buffer(std::vector<float>(
      static_cast<size_t>(attention_state_floats(n, shape_.n_query_heads(), shape_.head_dim)), std::nanf("")));
  args.state = state.get();
  const auto n_chunks = static_cast<int64_t>(kinds_[0].records.chunks.size());
  for (size_t w = 0; w <= options.cuts.size(); ++w) {
    args.window.first = w == 0;
    args.window.last = w == options.cuts.size();
    args.window.first_chunk = args.window.first ? 0 : options.cuts[w - 1];
    args.window.end_chunk = args.window.last ? kNoLimit : options.cuts[w];
    std::vector<KvRecord> records(static_cast<size_t>(n_chunks));
    for (int64_t c = args.window.first_chunk; c < std::min(n_chunks, args.window.end_chunk); ++c) {
      records[static_cast<size_t>(c)] = kinds_[0].records.chunks[static_cast<size_t>(c)];
    }
    args.records[0] = {records, stored_div_};
    const Status status = machine.backend->attention(machine.exec(options.cancel), step, {&args, 1});
    if (!status.ok()) return status;
  }
  return {};
}

// plan.h's definition, key by key.
std::vector<SeenKey> AttentionScene::seen_keys(const Plan& plan, const QueryBlock& block, int64_t i, int64_t head,
                                               Rotations& rotations) const {
  const int64_t l = plan.selection.chunk;
  std::map<int64_t, int64_t> ranks;  // of the chunks that were selected
  if (block.selected) {
    const int32_t* own = &picks_[static_cast<size_t>(((i - kFirstQuery) * shape_.n_query_heads() + head) * n_picks_)];
    for (int64_t u = 0; u < n_picks_ && own[u] >= 0; ++u) ranks[own[u]] = u;
  }
  std::vector<SeenKey> seen;
  const Plan::List& list = plan.list(block, static_cast<int>(head));
  for (int32_t s = list.begin; s < list.end; ++s) {
    const Span& span = plan.spans[static_cast<size_t>(s)];
    const double whole = static_cast<double>(i) / span.q_div;
    const double q = std::min((span.q_floor ? std::floor(whole) : whole) + span.q_offset, span.q_cap);
    for (int64_t t = 0; t < span.count; ++t) {
      const int64_t j = span.first_key + t * span.stride;
      if (i - j < span.min_lag || i - j > span.max_lag || (i - j) % span.lag_stride != 0) continue;
      if (block.selected && ranks.count(j / l) == 0) continue;
      double p = static_cast<double>(j - span.key_base);
      if (span.key_period > 0)
        p -= std::floor(p / static_cast<double>(span.key_period)) * static_cast<double>(span.key_period);
      p = span.key_div == 0 ? 0 : p / static_cast<double>(span.key_div);
      if (span.key_floor) p = std::floor(p);
      double distance = q - p;
      if (span.ranked) {
        const auto apart = static_cast<int64_t>(ranks.size()) - 1 - ranks[j / l];
        distance = static_cast<double>(apart * l + i % l - j % l);
      }
      seen.push_back({span.kind, j, &rotations.at(distance)});
    }
  }
  return seen;
}

// Of one query of one head: how much of its attention each key has that it sees.
std::vector<double> AttentionScene::softmax(int64_t i, int64_t head, double scale,
                                            const std::vector<SeenKey>& seen) const {
  const int64_t d = shape_.head_dim, half = d / 2;
  const float* q = &queries_[static_cast<size_t>(((i - kFirstQuery) * shape_.n_query_heads() + head) * d)];
  std::vector<double> weights;
  for (const SeenKey& s : seen) {
    const auto at = static_cast<size_t>((s.key * shape_.n_kv_heads + head / shape_.group) * d);
    const double* k = &read_by(i, s).rounded_keys[at];
    const double *cos = s.rotation->cos.data(), *sin = s.rotation->sin.data();
    double logit = 0;
    for (int64_t a = 0; a < half; ++a) {  // Re(q e^(i D theta) conj(k))
      logit += (q[a] * k[a] + q[a + half] * k[a + half]) * cos[a] + (q[a] * k[a + half] - q[a + half] * k[a]) * sin[a];
    }
    weights.push_back(logit * scale);
  }
  double most = -INFINITY, sum = 0;
  for (const double w : weights) most = std::max(most, w);
  for (double& w : weights) sum += w = std::exp(w - most);
  for (double& w : weights) w /= sum;
  return weights;
}

template <typename Use>
void AttentionScene::for_queries(const Plan& plan, int64_t first, int64_t step, const Use& use) const {
  const int64_t heads = shape_.n_query_heads();
  Rotations rotations(table_.theta);
  size_t scale_index = 0;
  for (const QueryBlock& block : plan.blocks) {
    for (int64_t i = block.first_query; i < block.first_query + block.n_queries; ++i, ++scale_index) {
      if ((i - kFirstQuery) % step != first) continue;
      const double scale = scale_ * (plan.query_scale.empty() ? 1.0 : plan.query_scale[scale_index]);
      std::vector<SeenKey> seen;
      for (int64_t head = 0; head < heads; ++head) {
        if (head == 0 || block.per_head || block.selected) seen = seen_keys(plan, block, i, head, rotations);
        use(i, head, seen, softmax(i, head, scale, seen));
      }
    }
  }
}

std::vector<double> AttentionScene::expected(const Plan& plan, int64_t first, int64_t step) const {
  const int64_t d = shape_.head_dim, heads = shape_.n_query_heads();
  std::vector<double> out(static_cast<size_t>(kQueries * heads * d), std::nan(""));
  for_queries(plan, first, step, [&](int64_t i, int64_t head, const auto& seen, const std::vector<double>& weights) {
    double* result = &out[static_cast<size_t>(((i - kFirstQuery) * heads + head) * d)];
    std::fill_n(result, d, 0.0);
    for (size_t s = 0; s < seen.size(); ++s) {
      const auto at = static_cast<size_t>((seen[s].key * shape_.n_kv_heads + head / shape_.group) * d);
      const double* v = &read_by(i, seen[s]).rounded_values[at];
      for (int64_t c = 0; c < d; ++c) result[c] += weights[s] * v[c];
    }
  });
  return out;
}

std::vector<double> AttentionScene::expected_shares(const Plan& plan, const SharesAsked& asked, int64_t first,
                                                    int64_t step) const {
  const int64_t heads = shape_.n_query_heads(), n_text = ceil_div(asked.end_key, AttentionShares::kCell);
  const int64_t n_cells = n_text + kMemoryKeys;
  std::vector<double> out(static_cast<size_t>(kQueries * heads * n_cells), std::nan(""));
  for_queries(plan, first, step, [&](int64_t i, int64_t head, const auto& seen, const std::vector<double>& weights) {
    double* cells = &out[static_cast<size_t>(((i - kFirstQuery) * heads + head) * n_cells)];
    std::fill_n(cells, n_cells, 0.0);
    for (size_t s = 0; s < seen.size(); ++s) {
      const int64_t key = seen[s].key;
      if (seen[s].kind == KvKind::kCondensed) {
        cells[n_text + key] += weights[s];
      } else if (key >= asked.first_key && key < asked.end_key) {
        cells[key / AttentionShares::kCell] += weights[s];
      }
    }
  });
  return out;
}

double relative_error(const std::vector<float>& actual, const std::vector<double>& expected) {
  double difference = 0, whole = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) continue;  // not asked for
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    whole += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / whole);  // all is 0 where no key is seen
}

void expect_close(const std::vector<float>& actual, const std::vector<double>& expected, int64_t d, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t row = 0; row < expected.size(); row += static_cast<size_t>(d)) {
    if (std::isnan(expected[row])) continue;  // not asked for
    double largest = 0, error = 0;
    for (size_t c = row; c < row + static_cast<size_t>(d); ++c) {
      largest = std::max(largest, std::fabs(expected[c]));
      const double difference = std::fabs(actual[c] - expected[c]);
      error = std::isnan(error) || difference <= error ? error : difference;  // a NaN stays
    }
    ASSERT_LE(error, tolerance * largest) << "query and head " << row / static_cast<size_t>(d);
  }
}

void expect_reference(const std::vector<float>& actual, const std::vector<double>& expected, const Shape& shape) {
  if (shape.old_after == kNoLimit || shape.old_type != ElementType::kInt8) {
    expect_close(actual, expected, shape.head_dim, 1e-5);
    return;
  }
  // Integers are multiplied with queries and weights that are rounded to 16 bits. What that does to one query grows
  // with its scores, and where its values cancel; in all of them together it was 4e-5, 9e-5 at most.
  expect_close(actual, expected, shape.head_dim, 2e-3);
  EXPECT_LE(relative_error(actual, expected), 1.5e-4);
}

}  // namespace quire::test
