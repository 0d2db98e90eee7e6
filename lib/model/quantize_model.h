// Writes a model as a GGUF file of quantised weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lib/support/cancel.h"
#include "lib/support/status.h"
#include "lib/support/thread_pool.h"

namespace quire {

struct QuantizeRequest {
  std::string path;                     // a checkpoint of either format (checkpoint.h)
  std::string out;                      // the file to write
  std::string recipe;                   // one of quantization_recipes()
  ThreadPool* pool = nullptr;           // borrowed
  const CancelToken* cancel = nullptr;  // may be null; polled before each piece
  // Bytes of tensors that were read; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

// The names of the recipes, separated by ", ". A recipe gives each weight matrix a type. Its type is that of most; as
// in the files of these names that people exchange, the output matrix is q6_k in recipes of five bits and less; and
// half of the V and down projections are q6_k in q4_k_m and q5_k_m, q5_k in iq4_nl, iq4_xs and q3_k_m, q4_k in q2_k.
// Vectors stay f32.
const char* quantization_recipes();

// The file takes its name when it is complete (OutputFile). Tensors that the checkpoint has and Quire does not use are
// left out. Errors: those of Checkpoint::open and TensorFiles; kInvalidArgument (no such recipe); kUnsupported (what a
// GGUF file cannot say: named); kIo, kCancelled.
Status quantize_model(const QuantizeRequest& request);

}  // namespace quire
