// Attention of one sequence: from the step's lists, or from lists of this call, where these depend on the chunks that
// were chosen or on the window.
#include <algorithm>
#include <limits>

#include "lib/backend/cuda/cuda_operations.h"
#include "lib/backend/cuda/cuda_weights.h"

namespace quire::cuda {
namespace {

class Call {
 public:
  Call(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const AttentionArgs& args)
      : queue_(queue),
        cancel_(cancel),
        step_(step),
        args_(args),
        sequence_(step.at(args.sequence)),
        selects_(args.selection != nullptr && !sequence_.scored.empty()),
        windowed_(!args.window.first || !args.window.last) {}

  Status run() {
    kernel_.queries = device_rows(args_.queries);
    kernel_.out = device_rows(args_.out);
    kernel_.shape = shape_of(sequence_.geometry);
    kernel_.n_query_heads = step_.n_query_heads;
    kernel_.scale = sequence_.scale;
    kernel_.query_scale = step_.query_scale(args_.sequence);
    kernel_.turns = turns_of(sequence_.rope);
    for (size_t kind = 0; kind < kRecordKinds; ++kind) {
      if (kind == kNarrowRecord && !sequence_.old.narrows()) continue;
      QUIRE_ASSIGN(kernel_.records[kind], queue_.records(args_.records[kind]));
      kernel_.stored_div[kind] = args_.records[kind].stored_div;
    }
    kernel_.stored_div[kNarrowRecord] = kernel_.stored_div[kTextRecord];
    kernel_.narrow_type = sequence_.old.type;
    const ChunkSelection& selection = sequence_.plan->selection;
    kernel_.ranks = {selection.chunk, selection.count, selection.one_in};
    if (windowed_) {
      kernel_.state = reinterpret_cast<float*>(address(*args_.state));
      kernel_.resumes = !args_.window.first;
      kernel_.pauses = !args_.window.last;
    }
    kernel_.wide = sequence_.wide();
    kernel_.few = sequence_.few && !windowed_;
    int32_t n_parts = 0;
    if (selects_ && !windowed_ && sequence_.chosen.n_tiles > 0) {
      QUIRE_ASSIGN(n_parts, list_chosen());
    } else if (selects_ || windowed_) {
      QUIRE_ASSIGN(n_parts, make_lists());
    } else {
      n_parts = step_.set_lists(args_.sequence, kernel_);
      kernel_.plain = sequence_.plain;
    }
    if (n_parts > 0) {
      const auto floats = n_parts * attention_part_floats(sequence_.geometry.head_dim);
      QUIRE_ASSIGN(std::byte* const parts, queue_.workspace(Work::kParts, static_cast<size_t>(floats) * sizeof(float)));
      kernel_.parts = reinterpret_cast<float*>(parts);
    }
    const AttentionCells cells = asked_cells();
    if (cells.shares) {
      const auto rows = static_cast<size_t>(sequence_.n * step_.n_query_heads);
      QUIRE_ASSIGN(std::byte* const stats, queue_.workspace(Work::kStats, rows * sizeof(AttentionStats)));
      kernel_.stats = reinterpret_cast<AttentionStats*>(stats);
    }
    QUIRE_TRY(queue_.launch<&DeviceApi::attention>("attention", cancel_, kernel_));
    if (!cells.shares) return {};
    return queue_.launch<&DeviceApi::attention_shares>("shares of attention", cancel_, kernel_, cells);
  }

 private:
  // Has the device make the lists.
  Result<int32_t> list_chosen() {
    ListChosen of;
    step_.set_chosen(args_.sequence, kernel_, of);
    of.chosen = reinterpret_cast<const int32_t*>(address(*args_.selection)) + args_.selection_offset;
    const auto n_pieces = static_cast<size_t>(of.n_tiles * of.most_pieces);
    const auto n_picks = static_cast<size_t>(of.n_tiles * of.most_picks);
    const auto n_works = static_cast<size_t>(of.n_tiles * of.n_parts);
    const size_t bytes = n_pieces * sizeof(AttentionPiece) + n_picks * sizeof(AttentionPick);
    QUIRE_ASSIGN(std::byte* const memory, queue_.workspace(Work::kLists, bytes + n_works * sizeof(AttentionWork)));
    kernel_.pieces = of.pieces = reinterpret_cast<AttentionPiece*>(memory);
    kernel_.picks = of.picks = reinterpret_cast<AttentionPick*>(of.pieces + n_pieces);
    kernel_.works = of.works = reinterpret_cast<AttentionWork*>(of.picks + n_picks);
    QUIRE_TRY(queue_.launch<&DeviceApi::list_chosen>("listing chosen chunks", cancel_, of));
    return of.n_parts > 1 ? static_cast<int32_t>(n_works) : 0;
  }

  // Lists of this call alone; how many parts they have.
  Result<int32_t> make_lists() {
    const Plan& plan = *sequence_.plan;
    ListOptions options = CudaStep::list_options(sequence_);
    options.window = args_.window;
    if (windowed_) options.part_keys = 0;  // a row's result goes from window to window as one
    AttentionLists lists;
    append_lists(plan, sequence_.pieces, options, lists);
    tiling::Pieces chosen;
    if (selects_) {
      const int64_t picks = sequence_.n * step_.n_query_heads * plan.most_selected();
      std::vector<int32_t> selection(static_cast<size_t>(picks));
      QUIRE_TRY(queue_.read(address(*args_.selection) + args_.selection_offset * sizeof(int32_t), selection.data(),
                            selection.size() * sizeof(int32_t)));
      const KvGeometry& g = sequence_.geometry;
      tiling::CutMemory memory;
      tiling::cut_selected({plan, step_.n_query_heads, g.n_kv_heads, g.chunk, sequence_.old}, selection.data(), nullptr,
                           memory, chosen);
      append_lists(plan, chosen, options, lists);
    }
    QUIRE_TRY(check_counts(lists));
    ListLayout layout;
    const ListsOnDevice places(lists, layout);
    QUIRE_ASSIGN(std::byte* const memory, queue_.workspace(Work::kLists, layout.bytes()));
    QUIRE_TRY(queue_.upload_written(layout.bytes(), memory, [&](std::byte* to) { layout.write(to); }));
    places.set(memory, kernel_);
    return lists.n_parts;
  }

  // The device's lists count pieces and picks in 32 bits.
  static Status check_counts(const AttentionLists& lists) {
    constexpr size_t kMost = std::numeric_limits<int32_t>::max();
    if (lists.pieces.size() <= kMost && lists.picks.size() <= kMost) return {};
    return Status(Code::kUnsupported,
                  "so many chunks are chosen in one step that the device cannot list them: take a smaller "
                  "prefill_block");
  }

  AttentionCells asked_cells() const {
    const AttentionShares& asked = args_.shares;
    AttentionCells cells;
    if (asked.out == nullptr || asked.first_row >= sequence_.n || asked.n_cells() == 0) return cells;
    cells.shares = reinterpret_cast<float*>(address(*asked.out));
    cells.n_rows = sequence_.n;
    cells.first_row = asked.first_row;
    cells.first_key = asked.first_key;
    cells.end_key = asked.end_key;
    cells.n_entries = asked.n_entries;
    return cells;
  }

  CudaQueue& queue_;
  const CancelToken* const cancel_;
  const CudaStep& step_;
  const AttentionArgs& args_;
  const CudaStep::Sequence& sequence_;
  const bool selects_, windowed_;
  Attention kernel_;
};

}  // namespace

static_assert(kCellKeys == AttentionShares::kCell);
static_assert(kRecordKinds == kKvKinds && kTextRecord == static_cast<int>(KvKind::kText) &&
              kCondensedRecord == static_cast<int>(KvKind::kCondensed) &&
              kNarrowRecord == static_cast<int>(KvKind::kNarrow));

Status run_attention(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const AttentionArgs& args) {
  return Call(queue, cancel, step, args).run();
}

}  // namespace quire::cuda
