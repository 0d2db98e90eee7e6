// A Llama-family decoder: what is known of it and its weights. Nothing here changes after loading; what runs it is a
// ForwardPass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/format/model_config.h"
#include "lib/model/llama_weights.h"
#include "lib/strategy/strategy.h"

namespace quire {

// What the queries and keys of a session are rotated by; shared with sessions of equal frequencies and chunk.
struct Ropes {
  std::shared_ptr<const Rope> strategy;  // by the strategy's frequencies
  std::shared_ptr<const Rope> window;    // those of layers that alone have a window; null: there are none
  std::shared_ptr<const Rope> nope;      // not at all: of the model's layers without RoPE; null: it has none

  // Of a layer: whether it rotates at all, and has a window that not all layers have.
  const Rope* of(bool rotates, bool windowed) const {
    return (!rotates ? nope : windowed && window ? window : strategy).get();
  }
  int64_t bytes() const;
};

// Shared by all sessions: any thread.
class LlamaModel {
 public:
  LlamaModel(Backend& backend, ModelConfig config, LlamaWeights weights)
      : backend_(backend), config_(std::move(config)), weights_(std::move(weights)) {}

  Backend& backend() const { return backend_; }
  const ModelConfig& config() const { return config_; }
  const LlamaWeights& weights() const { return weights_; }
  // 128 bits over configuration and weights, merged adapters included, as 32 hexadecimal digits.
  std::string identity() const;
  // Error: kOutOfMemory.
  Result<Ropes> create_ropes(const Strategy& strategy) const;
  KvGeometry kv_geometry(const Strategy& strategy, ElementType type) const;
  // Of the logits of attention, all constant factors included.
  float logit_scale(double attention_factor) const;

 private:
  Backend& backend_;
  const ModelConfig config_;
  const LlamaWeights weights_;
};

}  // namespace quire
