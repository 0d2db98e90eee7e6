// quire run --stats: where the KV cache lies, and what moved.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine.h"

namespace cli {

// The fields of quire_tier_stats, by the names of the tiers that hold something or that something went through.
nlohmann::ordered_json tier_json(const quire_session* session);
// The same as a table on stderr.
void print_tiers(const quire_session* session);

}  // namespace cli
