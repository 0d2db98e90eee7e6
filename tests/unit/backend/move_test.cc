// Records made of two others, against rotation in float64.

#include <gtest/gtest.h>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/rope_cache.h"
#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {
namespace {

// A record's neutral form as numbers, [n_kv_heads][keys, values][chunk][head_dim].
class Numbers {
 public:
  Numbers(const Backend& backend, const KvGeometry& g, const KvRecord& record) : g_(g), bytes_(kv_neutral_bytes(g)) {
    backend.to_neutral(g, cpu::record_ptr(record), bytes_.data());
  }
  std::span<const std::byte> row(int64_t head, int part, int64_t token) const {
    const size_t row = row_bytes(g_.type, g_.head_dim);
    return std::span(bytes_).subspan(static_cast<size_t>((head * 2 + part) * g_.chunk + token) * row, row);
  }
  double at(int64_t head, int part, int64_t token, int64_t channel) const {
    return load_element(g_.type, row(head, part, token).data(), channel);
  }

 private:
  KvGeometry g_;
  std::vector<std::byte> bytes_;
};

void fill(Machine& machine, Random& random, const KvGeometry& g, const KvRecord& record) {
  const auto numbers = random.normal(static_cast<int64_t>(kv_neutral_bytes(g) / element_bytes(g.type)));
  std::vector<std::byte> neutral(kv_neutral_bytes(g));
  cpu::scalar::convert(ElementType::kF32, numbers.data(), g.type, neutral.data(), static_cast<int64_t>(numbers.size()));
  machine.backend->from_neutral(g, neutral.data(), cpu::record_ptr(record));
}

TEST(MoveKv, TurnsKeysAndCopiesValues) {
  Random random;
  SCOPED_TRACE(random.trace());
  for (const int threads : {1, 3}) {
    Machine machine(threads);
    for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
      for (const auto& [d, chunk] : {std::pair{16, 16}, {24, 48}, {64, 256}, {80, 32}}) {
        const KvGeometry g{d == 80 ? 1 : 3, d, chunk, type};
        RopeTable table;
        for (int a = 0; a < d / 2; ++a) table.theta.push_back(std::pow(10000.0, -2.0 * a / d));
        const auto rope = take(machine.backend->create_rope(table, chunk));
        const Records records(*machine.backend, machine.backend->kv_record_bytes(g), 3);
        for (const int64_t offset : {int64_t{1}, random.between(1, chunk - 1), int64_t{chunk - 1}}) {
          for (const int64_t stored_div : {1, 0, 8, 3}) {
            SCOPED_TRACE("d " + std::to_string(d) + ", chunk " + std::to_string(chunk) + ", offset " +
                         std::to_string(offset) + ", " + element_name(type) + ", stored_div " +
                         std::to_string(stored_div));
            fill(machine, random, g, records.chunks[0]);
            fill(machine, random, g, records.chunks[1]);
            ASSERT_TRUE(machine.backend
                            ->move_kv(machine.exec(), {.geometry = g,
                                                       .rope = rope.get(),
                                                       .stored_div = stored_div,
                                                       .first = records.chunks[0],
                                                       .second = records.chunks[1],
                                                       .offset = offset,
                                                       .to = records.chunks[2]})
                            .ok());
            const Numbers sources[] = {{*machine.backend, g, records.chunks[0]},
                                       {*machine.backend, g, records.chunks[1]}};
            const Numbers made(*machine.backend, g, records.chunks[2]);
            // Half a unit in the last place of numbers of up to about 6, and what f32 adds.
            const double tolerance = type == ElementType::kF32 ? 2e-6 : type == ElementType::kF16 ? 4e-3 : 3e-2;
            for (int64_t head = 0; head < g.n_kv_heads; ++head) {
              for (int64_t token = 0; token < chunk; ++token) {
                const int64_t from = (token + offset) % chunk;
                const Numbers& source = sources[token + offset < chunk ? 0 : 1];
                const auto value = made.row(head, 1, token), old_value = source.row(head, 1, from);
                ASSERT_TRUE(std::ranges::equal(value, old_value)) << "value " << token;
                if (stored_div == 0) {
                  ASSERT_TRUE(std::ranges::equal(made.row(head, 0, token), source.row(head, 0, from)))
                      << "key " << token;
                  continue;
                }
                const int64_t turn = stored_position(token, stored_div) - stored_position(from, stored_div);
                for (int64_t a = 0; a < d / 2; ++a) {
                  const double angle = static_cast<double>(turn) * table.theta[static_cast<size_t>(a)];
                  const double x = source.at(head, 0, from, a), y = source.at(head, 0, from, a + d / 2);
                  ASSERT_NEAR(made.at(head, 0, token, a), x * std::cos(angle) - y * std::sin(angle), tolerance)
                      << "key " << token;
                  ASSERT_NEAR(made.at(head, 0, token, a + d / 2), y * std::cos(angle) + x * std::sin(angle), tolerance)
                      << "key " << token;
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::test
