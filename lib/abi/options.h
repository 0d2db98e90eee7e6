// The options structs of quire.h, checked.
#pragma once

#include "include/quire/quire.h"
#include "lib/session/sampler.h"
#include "lib/session/session.h"

namespace quire::abi {

Status read_model_options(const quire_model_options* in, ModelLoadOptions* out);
// Chain, bias and number of log-probabilities; in sampling_options.cc.
Status read_sampling(const quire_stream_options& in, SamplingOptions* out);
Status read_session_options(const quire_session_options* in, SessionOptions* out);

}  // namespace quire::abi
Status read_adapter_options(const quire_adapter_options* in, AdapterLoadOptions* out);
