// What a session's snapshot says beside its blocks: the JSON index (lib/kv/FORMAT.md), and options for saving and
// loading.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/format/snapshot_file.h"
#include "lib/kv/store_snapshot.h"
#include "lib/session/session_options.h"
#include "lib/session/sticky_chunks.h"
#include "lib/session/text_state.h"
#include "lib/support/cancel.h"
#include "lib/tokenizer/model_tokenizer.h"

namespace quire {

struct SaveControl {
  const CancelToken* cancel = nullptr;                             // polled before each block
  std::function<void(int64_t done, int64_t total)> progress = {};  // bytes, after each block
  bool whole = false;                                              // saving: never appends to a file
  bool owner_only = false;                                         // saving: nobody else may read a new file
  std::string title = {};  // saving: what the snapshot is called; empty: nothing
};

// Which of the options the caller gave; the others are the saved session's.
struct LoadOptions {
  SessionOptions session;
  bool strategy_given = false;
  bool kv_type_given = false;
  bool old_text_given = false;
  bool overflow_given = false;
};

// What keys and values depend on beside the tokens: see Session::fingerprint.
struct SnapshotOrigin {
  struct Adapter {
    std::string identity;
    double scale = 1;
  };
  std::string model;  // LlamaModel::identity
  std::vector<Adapter> adapters;
  std::string strategy;  // canonical
  std::string kv_type;
  std::string kv_old_type;  // empty: old text has no narrower type
  int64_t old_after = 0;    // then 0
};
// 32 hexadecimal digits of all that; see Session::fingerprint.
std::string fingerprint(const SnapshotOrigin& origin);
// kInvalidArgument that names the first field in which they differ.
Status check_same(const SnapshotOrigin& saved, const SnapshotOrigin& own);

struct SnapshotIndex {
  SnapshotOrigin origin;
  int64_t expected_tokens = 0;
  OverflowPolicy overflow = OverflowPolicy::kError;
  std::string title;  // empty: none
  bool exact = true;  // TextState::n_exact is kNoLimit
  StoreSnapshot kv;
};

struct SavedText {
  TextState text;
  std::vector<float> last_logits;           // [vocab_size], after the last computed token; empty: not known
  std::vector<StickyChunks::Entry> sticky;  // not checked
};

// Appends the blocks of the text, its last logits and its sticky chunks to the writer, and returns the whole index.
Result<Json> write_index(SnapshotWriter& writer, const SnapshotIndex& index, const TextState& text,
                         std::span<const float> last_logits, const StickyChunks& sticky);
// kBadFile that names what is wrong.
Result<SnapshotIndex> read_index(const SnapshotFile& file);
// What quire_snapshot_describe says. kBadFile.
Result<Json> describe(const SnapshotFile& file);
Json origin_json(const SnapshotOrigin& origin);
Result<SnapshotOrigin> read_origin(const JsonReader& reader);
// The tokens of a snapshot that depend on nothing but their ids: as long as they were neither generated nor given a
// position of their own. Pending ones are left out. kBadFile.
Result<std::vector<int32_t>> read_plain_tokens(const SnapshotFile& file);
// tokenizer: the model's, which must outlive the text; vocab_size: of its embedding. kBadFile; kUnsupported: messages
// of a chat template that this version does not know, or this tokenizer cannot write.
Result<SavedText> read_text(const SnapshotFile& file, const ModelTokenizer& tokenizer, int64_t vocab_size);

}  // namespace quire
