// The options structs of quire.h, checked.
#pragma once

#include "lib/session/session.h"
#include "include/quire/quire.h"

namespace quire::abi {

Status read_model_options(const quire_model_options* in, ModelLoadOptions* out);
Status read_session_options(const quire_session_options* in, SessionOptions* out);

}  // namespace quire::abi
