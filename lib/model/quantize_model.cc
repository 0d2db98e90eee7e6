#include "lib/model/quantize_model.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/format/gguf.h"
#include "lib/format/gguf_export.h"
#include "lib/format/gguf_files.h"
#include "lib/format/gguf_writer.h"
#include "lib/format/json.h"
#include "lib/model/checkpoint.h"
#include "lib/model/weight_layout.h"
#include "lib/support/element.h"
#include "lib/support/os_output_file.h"
#include "lib/support/quantization.h"

namespace quire {
namespace {

constexpr int64_t kPieceElements = int64_t{4} << 20;  // read and rounded at once, but at least one run of rows

struct Recipe {
  std::string_view name;
  ElementType type;    // of most matrices
  ElementType output;  // of the output matrix, or of the embedding if that is the output matrix too
  ElementType better;  // of half of the V and down projections
  uint32_t file_type;  // general.file_type
};

constexpr Recipe kRecipes[] = {
    {"f32", ElementType::kF32, ElementType::kF32, ElementType::kF32, 0},
    {"f16", ElementType::kF16, ElementType::kF16, ElementType::kF16, 1},
    {"bf16", ElementType::kBF16, ElementType::kBF16, ElementType::kBF16, 32},
    {"q8_0", ElementType::kQ8_0, ElementType::kQ8_0, ElementType::kQ8_0, 7},
    {"q6_k", ElementType::kQ6_K, ElementType::kQ6_K, ElementType::kQ6_K, 18},
    {"q5_k_m", ElementType::kQ5_K, ElementType::kQ6_K, ElementType::kQ6_K, 17},
    {"q5_1", ElementType::kQ5_1, ElementType::kQ6_K, ElementType::kQ5_1, 9},
    {"q5_0", ElementType::kQ5_0, ElementType::kQ6_K, ElementType::kQ5_0, 8},
    {"q4_k_m", ElementType::kQ4_K, ElementType::kQ6_K, ElementType::kQ6_K, 15},
    {"q4_1", ElementType::kQ4_1, ElementType::kQ6_K, ElementType::kQ4_1, 3},
    {"q4_0", ElementType::kQ4_0, ElementType::kQ6_K, ElementType::kQ4_0, 2},
    {"iq4_nl", ElementType::kIQ4_NL, ElementType::kQ6_K, ElementType::kQ5_K, 25},
    {"iq4_xs", ElementType::kIQ4_XS, ElementType::kQ6_K, ElementType::kQ5_K, 30},
    {"q3_k_m", ElementType::kQ3_K, ElementType::kQ6_K, ElementType::kQ5_K, 12},
    {"q2_k", ElementType::kQ2_K, ElementType::kQ6_K, ElementType::kQ4_K, 10},
};

// The layers that lose most by rounding: the first and the last eighth, and every third between them.
bool is_sensitive(int layer, int n_layers) {
  return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

// A type for rows of k elements: `type`, or the next one whose blocks are whole.
ElementType fitting(ElementType type, int64_t k) {
  if (k % block_format(type).elements == 0) return type;
  if (k % 32 == 0) {
    if (type == ElementType::kQ4_K) return ElementType::kQ5_0;
    if (type == ElementType::kQ5_K) return ElementType::kQ5_1;
    if (type == ElementType::kQ6_K) return ElementType::kQ8_0;
    return ElementType::kIQ4_NL;
  }
  return ElementType::kF16;
}

// A tensor of the checkpoint on its way into the file.
struct Job {
  std::string name;  // of the checkpoint
  std::vector<int64_t> shape;
  ElementType type;
  bool interleave = false;  // rows of a head as GGUF has them; the checkpoint has them in order
  float offset = 0;         // added to a vector's values
};

void add_matrices(const WeightParts& layout, ElementType type, std::vector<Job>& jobs) {
  for (const WeightPart& part : layout.parts)
    jobs.push_back({part.name, {part.rows, layout.k}, fitting(type, layout.k)});
}

// GGUF has norms with their offset.
void add_vectors(const WeightParts& layout, bool has_offset, std::vector<Job>& jobs) {
  for (const WeightPart& part : layout.parts) {
    jobs.push_back({part.name, {part.rows}, ElementType::kF32, false, has_offset ? 0 : layout.offset});
  }
}

std::vector<Job> list_jobs(const ModelConfig& config, const Recipe& recipe, bool interleave) {
  std::vector<Job> jobs;
  const WeightLayout layout = weight_layout(config);
  add_matrices(layout.embedding, config.tie_word_embeddings ? recipe.output : recipe.type, jobs);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const LayerLayout l = layer_layout(config, layer);
    const ElementType better = is_sensitive(layer, config.n_layers) ? recipe.better : recipe.type;
    for (const WeightParts* vector : l.vectors()) add_vectors(*vector, config.norm_offset_is_stored, jobs);
    for (const WeightPart& part : l.qkv.parts) {
      const bool is_v = &part == &l.qkv.parts.back();  // or has V in it
      jobs.push_back({part.name, {part.rows, l.qkv.k}, fitting(is_v ? better : recipe.type, l.qkv.k)});
    }
    add_matrices(l.o, recipe.type, jobs);
    add_matrices(l.gate_up, recipe.type, jobs);
    add_matrices(l.down, better, jobs);
  }
  add_vectors(layout.final_norm, config.norm_offset_is_stored, jobs);
  if (!config.tie_word_embeddings) add_matrices(layout.lm_head, recipe.output, jobs);
  for (Job& job : jobs) job.interleave = interleave && is_rotated_projection(job.name);
  return jobs;
}

int64_t elements_of(const Job& job) {
  int64_t n = 1;
  for (const int64_t dimension : job.shape) n *= dimension;
  return n;
}

class Quantizer {
 public:
  explicit Quantizer(const QuantizeRequest& request) : request_(request) {}

  Status run() {
    const auto* recipe = std::find_if(std::begin(kRecipes), std::end(kRecipes),
                                      [&](const Recipe& r) { return r.name == request_.recipe; });
    if (recipe == std::end(kRecipes)) {
      return Status(Code::kInvalidArgument,
                    "no quantisation \"" + request_.recipe + "\"; known: " + quantization_recipes());
    }
    QUIRE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(request_.path, request_.cancel));
    const ModelConfig config = checkpoint.config();
    if (config.beacon.window > 0) return Status(Code::kUnsupported, "GGUF files have no place for beacons");
    GgufWriter writer;
    QUIRE_TRY(checkpoint.add_gguf_metadata(writer));
    writer.add("general.file_type", recipe->file_type);
    writer.add("general.quantization_version", uint32_t{2});
    const bool interleave = !checkpoint.is_gguf() && gguf_interleaves_heads(gguf_architecture(config));
    const std::vector<Job> jobs = list_jobs(config, *recipe, interleave);
    head_dim_ = config.head_dim;
    QUIRE_ASSIGN(const GgufRopeTensors rope_tensors, checkpoint.rope_tensors());
    QUIRE_ASSIGN(files_, checkpoint.open_tensors(TensorFiles::Access::kRead, request_.cancel));
    for (const Job& job : jobs) {
      QUIRE_ASSIGN(const auto view, files_->view(job.name, job.shape));
      total_ += view.bytes;
      writer.add_tensor(gguf_name(job.name, config.sandwich_norms), job.shape, job.type);
    }
    for (const auto& [name, values] : rope_tensors) {
      writer.add_tensor(name, std::array{static_cast<int64_t>(values.size())}, ElementType::kF32);
    }
    QUIRE_ASSIGN(out_, OutputFile::create(request_.out));
    const std::string header = writer.header();
    QUIRE_TRY(out_->write(std::as_bytes(std::span(header))));
    for (const Job& job : jobs) QUIRE_TRY(write(job));
    for (const auto& [name, values] : rope_tensors) QUIRE_TRY(write_padded(std::as_bytes(std::span(values))));
    return out_->commit();
  }

 private:
  Status write_padded(std::span<const std::byte> bytes) {
    QUIRE_TRY(out_->write(bytes));
    return pad(static_cast<int64_t>(bytes.size()));
  }
  Status pad(int64_t bytes) {
    constexpr std::array<std::byte, GgufWriter::kAlignment> kZeros{};
    return out_->write(std::span(kZeros).first(static_cast<size_t>(GgufWriter::padding(bytes))));
  }

  Status write(const Job& job) {
    QUIRE_ASSIGN(const auto view, files_->view(job.name, job.shape));
    // The elements of an interleaved vector are rows of one; such vectors are never quantised.
    const int64_t columns = job.interleave && job.shape.size() == 1 ? 1 : job.shape.back();
    const int64_t rows = elements_of(job) / columns;
    const int64_t run =
        job.interleave ? head_dim_ : 1;  // rows of a head stay together, so that they can be interleaved
    const int64_t step = std::clamp<int64_t>(kPieceElements / columns / run * run, run, rows);
    const size_t in_row = row_bytes(view.type, columns), out_row = row_bytes(job.type, columns);
    std::vector<std::byte> in(static_cast<size_t>(step) * in_row), out(static_cast<size_t>(step) * out_row);
    std::vector<float> wide(static_cast<size_t>(request_.pool->n_threads() * columns));  // a row of each thread
    for (int64_t first = 0; first < rows; first += step) {
      QUIRE_TRY(check_cancelled(request_.cancel));
      const int64_t n = std::min(step, rows - first);
      const auto piece = std::span(in).first(static_cast<size_t>(n) * in_row);
      QUIRE_TRY(files_->read(job.name, first * static_cast<int64_t>(in_row), piece));
      std::atomic<int64_t> bad{n};  // the first row of the piece whose rounded weights are not finite
      request_.pool->run(n, nullptr, [&](int64_t row, int thread) {
        const int64_t from = job.interleave ? source_row(row) : row;
        if (!round_row(view.type, in.data() + static_cast<size_t>(from) * in_row, columns,
                       wide.data() + thread * columns, job.type, out.data() + static_cast<size_t>(row) * out_row)) {
          for (int64_t least = bad; from < least && !bad.compare_exchange_weak(least, from);) {
          }
        }
      });
      if (bad < n) {
        dequantize(view.type, in.data() + static_cast<size_t>(bad) * in_row, columns, wide.data());
        return not_finite(job, first + bad, std::span(wide).first(static_cast<size_t>(columns)));
      }
      if (job.offset != 0) {  // a vector's values, in f32
        for (int64_t i = 0; i < n * columns; ++i) {
          store_element(job.type, out.data(), i, load_element(job.type, out.data(), i) + job.offset);
        }
      }
      QUIRE_TRY(out_->write(std::span(out).first(static_cast<size_t>(n) * out_row)));
      done_ += static_cast<int64_t>(piece.size());
      if (request_.progress) request_.progress(done_, total_);
    }
    return pad(rows * static_cast<int64_t>(out_row));
  }

  // The row in order that lies at `row` in GGUF's order.
  int64_t source_row(int64_t row) const {
    const int64_t in_head = row % head_dim_;
    return row - in_head + in_head % 2 * (head_dim_ / 2) + in_head / 2;
  }

  // Runs on the pool, so it must not allocate. wide: [n], overwritten. Returns whether what was rounded is finite.
  static bool round_row(ElementType type, const std::byte* source, int64_t n, float* wide, ElementType out_type,
                        std::byte* out) {
    if (type == out_type) {
      std::copy_n(source, row_bytes(type, n), out);
      return true;
    }
    dequantize(type, source, n, wide);
    if (is_quantized(out_type)) return quantize(wide, n, out_type, out);
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
      store_element(out_type, out, i, wide[i]);
      finite = finite && std::isfinite(load_element(out_type, out, i));
    }
    return finite;
  }

  // Of a row [n] of the checkpoint that the type of the job cannot hold.
  static Status not_finite(const Job& job, int64_t row, std::span<const float> weights) {
    float largest = 0;
    for (const float weight : weights) {
      if (!(std::fabs(weight) <= std::fabs(largest))) largest = weight;
      if (!std::isfinite(largest)) break;
    }
    const std::string where = "tensor " + job.name + ", row " + std::to_string(row);
    if (!std::isfinite(largest)) return Status(Code::kBadFile, where + ": a weight is not finite");
    return Status(Code::kUnsupported, where + ": a weight of " + json_excerpt(Json(largest)) + " is too large for " +
                                          gguf_type(job.type).name);
  }

  const QuantizeRequest& request_;
  std::unique_ptr<TensorFiles> files_;
  std::unique_ptr<OutputFile> out_;
  int64_t head_dim_ = 0;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

const char* quantization_recipes() {
  return "f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_1, q5_0, q4_k_m, q4_1, q4_0, iq4_nl, iq4_xs, q3_k_m, q2_k";
}

Status quantize_model(const QuantizeRequest& request) { return Quantizer(request).run(); }

}  // namespace quire
