// Prefill and decode of a model on a device, as fractions of what the device can do, measured in the same process.
//
//   quire_bench_device MODEL [--device NAME] [--weights load|q8|q4] [--strategy EXPRESSION]... [--depth N]...
//                      [--prefill N]... [--offload SHARE] [--json FILE]
//
// Ceilings: of bytes, a copy from device memory to device memory, both directions counted; of operations, a product of
// random bf16 matrices of 8,192 (by cuBLASLt, or by the plugin's own kernel where there is none). A device without
// these (the CPU) has rates only. Decode reads the weights and all keys and values once a token: the median token of
// 48, at the events of a stream. Texts of a depth have random keys and values. Prefill is timed to the end of the
// prompt. With --offload sessions may hold a share of their keys and values in device memory; the others are on the
// host. What a token waits for and finds is the mean of 16 tokens.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "lib/backend/cuda/cuda_plugin.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string model;
  std::string device = "auto";
  std::string weights = "load";
  std::vector<std::string> strategies;
  std::vector<int64_t> depths, prefills;
  double offload = 0;  // the share of keys and values that device memory may hold; 0: all
  std::string json;
};

[[noreturn]] void usage(const char* problem) {
  std::fprintf(stderr,
               "%s\nusage: quire_bench_device MODEL [--device NAME] [--weights load|q8|q4] [--strategy EXPRESSION]... "
               "[--depth N]... [--prefill N]... [--offload SHARE] [--json FILE]\n",
               problem);
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      arguments.model = name;
      continue;
    }
    if (++i == argc) usage((name + " wants a value").c_str());
    const std::string value = argv[i];
    if (name == "--device") {
      arguments.device = value;
    } else if (name == "--weights") {
      arguments.weights = value;
    } else if (name == "--strategy") {
      arguments.strategies.push_back(value);
    } else if (name == "--depth") {
      arguments.depths.push_back(std::atoll(value.c_str()));
    } else if (name == "--prefill") {
      arguments.prefills.push_back(std::atoll(value.c_str()));
    } else if (name == "--offload") {
      arguments.offload = std::atof(value.c_str());
    } else if (name == "--json") {
      arguments.json = value;
    } else {
      usage((name + " is unknown").c_str());
    }
  }
  if (arguments.model.empty()) usage("MODEL is missing");
  if (arguments.strategies.empty()) arguments.strategies = {"full"};
  return arguments;
}

// ---- ceilings

struct Ceilings {
  double bytes_per_s = 0, flops_per_s = 0, upload_bytes_per_s = 0;
  bool blas = false;
};

// Fastest of some runs of `queue`, which queues work on the stream.
template <typename Queue>
double best_seconds(const cuda::DeviceApi& api, cuda::Stream stream, const Queue& queue) {
  double best = 1e30;
  for (int run = 0; run < 8; ++run) {
    best = std::min(best, seconds([&] {
                      if (queue() != 0 || api.finish_stream(stream) != 0)
                        usage("the device failed while its ceilings were measured");
                    }));
  }
  return best;
}

Ceilings measure_ceilings(const cuda::DeviceApi& api, int device) {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr int64_t kSize = 8192;
  const auto must = [&](int error) {
    if (error != 0) usage(api.error_text(error));
  };
  must(api.use_device(device));
  cuda::Stream stream = nullptr;
  must(api.create_stream(&stream));
  // Random numbers of bf16, of both signs and from 1/2 to 1: a device takes less power for zeros, and is faster.
  constexpr size_t kHostBytes = kBytes / 4;
  void* host = nullptr;
  must(api.allocate_host(kHostBytes, &host));
  std::mt19937_64 random(1);
  std::generate_n(static_cast<uint64_t*>(host), kHostBytes / sizeof(uint64_t),
                  [&] { return (random() & 0x807f807f807f807f) | 0x3f003f003f003f00; });
  std::array<void*, 2> buffers{};
  for (void*& buffer : buffers) {
    must(api.allocate(kBytes, &buffer));
    for (size_t at = 0; at < kBytes; at += kHostBytes) {
      must(api.upload(stream, static_cast<char*>(buffer) + at, host, kHostBytes));
    }
  }
  Ceilings ceilings;
  ceilings.bytes_per_s =
      2.0 * kBytes / best_seconds(api, stream, [&] { return api.copy(stream, buffers[0], buffers[1], kBytes); });
  ceilings.upload_bytes_per_s =
      kHostBytes / best_seconds(api, stream, [&] { return api.upload(stream, buffers[0], host, kHostBytes); });
  must(api.release_host(host));
  // Three matrices of 128 MiB and the workspace fit into the two buffers.
  constexpr size_t kMatrix = size_t{2} * kSize * kSize;
  auto* const first = static_cast<char*>(buffers[0]);
  const cuda::DeviceRows x{first, kSize, ElementType::kBF16}, y{first + kMatrix, kSize, ElementType::kBF16};
  const cuda::DeviceMatrix w{buffers[1], kSize, kSize, 2 * kSize, ElementType::kBF16};
  ceilings.blas = api.open_blas && api.open_blas(nullptr, 0);
  const double product = best_seconds(api, stream, [&] {
    return ceilings.blas ? api.blas_matmul(stream, x, kSize, w, nullptr, false, y, first + 2 * kMatrix)
                         : api.matmul(stream, x, kSize, w, nullptr, false, y);
  });
  ceilings.flops_per_s = 2.0 * kSize * kSize * kSize / product;
  for (void* const buffer : buffers) must(api.release(buffer));
  must(api.destroy_stream(stream));
  return ceilings;
}

// ---- the work of a token, from the shapes

struct Work {
  double weight_bytes = 0, layer_products = 0, kv_bytes = 0, attention_flops = 0;  // kv, attention: for each key

  Work(const LlamaModel& model, ElementType kv_type) {
    const ModelConfig& c = model.config();
    for (const LayerWeights& layer : model.weights().layers) {
      for (const Matrix* m : {layer.qkv.get(), layer.o.get(), layer.gate_up.get(), layer.down.get()}) {
        weight_bytes += static_cast<double>(m->bytes);
        layer_products += static_cast<double>(m->n) * static_cast<double>(m->k);
      }
    }
    weight_bytes += static_cast<double>(model.weights().lm_head->bytes);
    kv_bytes = 2.0 * c.n_layers * c.n_kv_heads * c.head_dim * static_cast<double>(element_bytes(kv_type));
    attention_flops = 4.0 * c.n_layers * c.n_query_heads * c.head_dim;
  }
  double prefill_flops(double n) const { return n * (2 * layer_products + attention_flops * n / 2); }
};

// ---- measurements

// device_budget: 0, or bytes of device memory that its keys and values may take.
std::shared_ptr<Session> open(const std::shared_ptr<Model>& model, const std::string& strategy,
                              int64_t device_budget = 0) {
  SessionOptions options;
  options.device_budget_bytes = device_budget;
  options.strategy = strategy;
  options.kv_type = ElementType::kBF16;
  options.overflow = OverflowPolicy::kExtrapolate;
  options.prefill_block = 2048;
  return take(Session::create(model, options));
}

class Bench {
 public:
  Bench(const Arguments& arguments, std::shared_ptr<Model> model, const Ceilings& ceilings)
      : arguments_(arguments),
        model_(std::move(model)),
        ceilings_(ceilings),
        work_(*model_->llama, ElementType::kBF16) {}

  Json run() {
    for (const std::string& strategy : arguments_.strategies) {
      for (const int64_t depth : arguments_.depths) {
        arguments_.offload > 0 ? offload(strategy, depth) : decode(strategy, depth);
      }
      for (const int64_t n : arguments_.prefills) prefill(strategy, n);
    }
    return std::move(rows_);
  }

 private:
  void decode(const std::string& strategy, int64_t depth) {
    const auto session = open(model_, strategy);
    check(session->fill_random(depth, 1));
    generate(session, 4);  // what is made once is made
    const double time = token_seconds(session, 48);
    const double bytes = work_.weight_bytes + work_.kv_bytes * static_cast<double>(depth);
    add({{"what", "decode"},
         {"strategy", strategy},
         {"n_tokens", depth},
         {"ms", 1e3 * time},
         {"tokens_per_s", 1 / time},
         {"of_bytes_ceiling_if_all_is_read", of(bytes / time, ceilings_.bytes_per_s)}});
  }
  void offload(const std::string& strategy, int64_t depth) {
    constexpr int64_t kTokens = 16;
    const double kv_bytes = work_.kv_bytes * static_cast<double>(depth);
    const auto session = open(model_, strategy, static_cast<int64_t>(arguments_.offload * kv_bytes));
    check(session->fill_random(depth, 1));
    generate(session, 4);
    const SessionStats before = stats_of(*session);
    const double time = seconds([&] { generate(session, kTokens); });
    const SessionStats after = stats_of(*session);
    const auto hits = static_cast<double>(after.kv_hits - before.kv_hits);
    const auto misses = static_cast<double>(after.kv_misses - before.kv_misses);
    const double bytes = misses * static_cast<double>(after.kv_record_bytes);
    add({{"what", "decode with keys and values on the host"},
         {"strategy", strategy},
         {"n_tokens", depth},
         {"share_in_device_memory", arguments_.offload},
         {"ms", 1e3 * time / kTokens},
         {"hit_rate", hits + misses > 0 ? hits / (hits + misses) : 1},
         {"uploaded_bytes_per_token", bytes / kTokens},
         {"of_upload_ceiling", of(bytes / time, ceilings_.upload_bytes_per_s)},
         {"stall_share", 1e-9 * static_cast<double>(after.kv_stall_ns - before.kv_stall_ns) / time}});
  }
  static constexpr int64_t kWarmUp = 4096;
  void prefill(const std::string& strategy, int64_t n) {
    const auto session = open(model_, strategy);
    // Likewise: cuBLASLt chooses and loads a kernel for every shape that it has not met.
    feed(*session, std::min<int64_t>(n, kWarmUp));
    tokens_of(*take(GenerationStream::open(session, {})));
    check(session->reset());
    feed(*session, n);
    const double time = seconds([&] { tokens_of(*take(GenerationStream::open(session, {}))); });
    const double flops = work_.prefill_flops(static_cast<double>(n));
    add({{"what", "prefill"},
         {"strategy", strategy},
         {"n_tokens", n},
         {"ms", 1e3 * time},
         {"tokens_per_s", static_cast<double>(n) / time},
         {"of_flops_ceiling_if_all_is_seen", of(flops / time, ceilings_.flops_per_s)}});
  }
  static Json of(double rate, double ceiling) { return ceiling > 0 ? Json(rate / ceiling) : Json(nullptr); }
  void add(Json row) {
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  const Arguments& arguments_;
  const std::shared_ptr<Model> model_;
  const Ceilings ceilings_;
  const Work work_;
  Json rows_ = Json::array();
};

int run(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  ModelLoadOptions options;
  options.device = arguments.device;
  if (arguments.weights == "q8") options.weight_type = static_cast<int32_t>(ElementType::kQ8_0);
  if (arguments.weights == "q4") options.weight_type = static_cast<int32_t>(ElementType::kQ4_0);
  std::shared_ptr<Model> model;
  const double load =
      seconds([&] { model = take(load_model(std::make_shared<Runtime>(RuntimeOptions()), arguments.model, options)); });
  Ceilings ceilings;
  if (model->device.starts_with("cuda:")) {
    ceilings = measure_ceilings(*cuda::plugin().api, std::atoi(model->device.c_str() + std::strlen("cuda:")));
  }
  Json report = {{"model", arguments.model},
                 {"weights", arguments.weights},
                 {"device", model->device},
                 {"load_s", load},
                 {"copy_bytes_per_s", ceilings.bytes_per_s},
                 {"upload_bytes_per_s", ceilings.upload_bytes_per_s},
                 {"bf16_flops_per_s", ceilings.flops_per_s},
                 {"cublaslt", ceilings.blas}};
  std::printf("%s\n", report.dump().c_str());
  report["rows"] = Bench(arguments, model, ceilings).run();
  if (!arguments.json.empty()) std::ofstream(arguments.json) << report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
