// From a plan, cut into tiles and pieces, to what the attention kernel is given.
#pragma once

#include <vector>

#include "kernels/cuda/attention.h"
#include "lib/backend/attention_pieces.h"

namespace quire::cuda {

// On the host, to be copied to the device as they are. Their order is that of the plan.
struct AttentionLists {
  std::vector<AttentionTile> tiles;
  std::vector<AttentionPiece> pieces;
  std::vector<AttentionSpan> spans;
  std::vector<AttentionPick> picks;
  std::vector<AttentionWork> works;
  std::vector<AttentionMerge> merges;
  int32_t n_parts = 0;
};

struct ListOptions {
  int64_t chunk = 0;                             // of the stored records
  int64_t stored_div[kRecordKinds] = {1, 1, 1};  // where their keys are: stored_position
  // Text keys of a part, a multiple of the chunk: a tile whose pieces reach over several parts is work for as many
  // blocks, whose results are merged. Parts begin at multiples of this, whatever the tile. 0: no parts.
  int64_t part_keys = 0;
  AttentionArgs::Window window{};  // the pieces in it alone
  int64_t tile_rows = kTileRows;   // of a tile at most
};

// Appends the tiles of `cut`, whose pieces point into `plan`.
void append_lists(const Plan& plan, const tiling::Pieces& cut, const ListOptions& options, AttentionLists& lists);

}  // namespace quire::cuda
