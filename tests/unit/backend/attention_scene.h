// Keys, values and queries of one attention call, and what attention must give for them.
#pragma once

#include <string>
#include <vector>

#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {

struct Shape {
  int group = 1;  // query heads per KV head
  int n_kv_heads = 1;
  int head_dim = 64;
  int64_t chunk = 64;
  ElementType type = ElementType::kF32;

  int n_query_heads() const { return group * n_kv_heads; }
  KvGeometry geometry() const { return {n_kv_heads, head_dim, chunk, type}; }
  std::string name() const;
};

// cos and sin of p * theta for the head's pairs.
struct Rotation {
  std::vector<double> cos, sin;
};

struct SeenKey {
  KvStream stream;
  int64_t key;
  const Rotation* rotation;  // by its distance
};

// Stored records and queries: text keys [0, kTextKeys), memory keys [0, kMemoryKeys), queries [kFirstQuery, kTextKeys).
class AttentionScene {
 public:
  static constexpr int64_t kTextKeys = 331;
  static constexpr int64_t kMemoryKeys = 101;
  static constexpr int64_t kFirstQuery = 248;
  static constexpr int64_t kQueries = kTextKeys - kFirstQuery;

  // raw: text keys are stored unrotated (memory keys always rotated).
  AttentionScene(Machine& machine, Random& random, const Shape& shape, bool raw);

  const Shape& shape() const { return shape_; }
  // Runs queries [first, first + n) of the plan on any machine. [n][n_query_heads * head_dim].
  std::vector<float> run(Machine& machine, const Plan& plan, int64_t first, int64_t n,
                         const CancelToken* cancel = nullptr, Status* status = nullptr) const;
  // The same in float64 from the formulas of plan.h, with keys and values as they were rounded: query `first` and each
  // step-th after it, counted from kFirstQuery; NaN for the others.
  std::vector<double> expected(const Plan& plan, int64_t first = 0, int64_t step = 1) const;

 private:
  struct KeysAndValues {
    std::vector<float> keys, values;  // [n][n_kv_heads * head_dim], as given
    std::vector<std::unique_ptr<Buffer>> records;
    std::vector<double> rounded_keys, rounded_values;  // [n][n_kv_heads][head_dim], keys unrotated
  };
  void store(Machine& machine, Random& random, int64_t n, bool raw, KeysAndValues& stream);
  void attend(int64_t i, int64_t head, double scale, const std::vector<SeenKey>& seen, double* result) const;
  void read_back(int64_t n, bool raw, KeysAndValues& stream) const;

  Shape shape_;
  RopeTable table_;
  std::unique_ptr<Rope> rope_;
  KeysAndValues streams_[kKvStreams];
  std::vector<float> queries_;  // [kQueries][n_query_heads * head_dim]
  float scale_;
};

}  // namespace quire::test
