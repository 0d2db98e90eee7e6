// What a store knows of an entry without opening its snapshot: whose keys and values it has, and of which text. It is
// kept in a small file beside the snapshot, which can always be made again from the snapshot (lib/kv/FORMAT.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/format/snapshot_file.h"
#include "lib/session/snapshot_index.h"
#include "lib/support/status.h"

namespace quire {

// Hashes over a text in links of kTokens tokens: each over the hash before it and the ids of its tokens, the first one
// over a fingerprint. So equal hashes mean equal texts up to there, of sessions with the same keys and values. What
// does not fill a link is kept as it is.
struct TokenChain {
  static constexpr int64_t kTokens = 64;
  using Link = std::array<std::byte, 16>;

  std::vector<Link> links;
  std::vector<int32_t> tail;  // the ids behind the last link

  TokenChain() = default;
  TokenChain(const std::string& fingerprint, std::span<const int32_t> tokens);
  int64_t n_tokens() const { return static_cast<int64_t>(links.size()) * kTokens + static_cast<int64_t>(tail.size()); }
  // 32 hexadecimal digits of all of it, and of the fingerprint that it was made with.
  std::string name(const std::string& fingerprint) const;
  // How many of the first tokens of a text are this one's, as far as the hashes tell: whole links, and all of this text
  // where it is a prefix of the other one. `other` is that text's chain, and `tokens` its tokens.
  int64_t common(const TokenChain& other, std::span<const int32_t> tokens) const;
  bool operator==(const TokenChain&) const = default;
};

struct StoredText {
  SnapshotOrigin origin;
  std::string title;  // empty: none
  TokenChain chain;   // of its plain tokens (read_plain_tokens)
  // The snapshot's file as it was when this was read from it. Otherwise this may be out of date.
  int64_t snapshot_bytes = 0;
  int64_t snapshot_modified_ns = 0;
};

// From an entry's snapshot; its file's size and time are the caller's to fill in. kBadFile.
Result<StoredText> describe_text(const SnapshotFile& snapshot);
// The small file. Its errors: those of files; kBadFile: it is damaged, or of a version that is not known.
Status write_stored_text(const std::string& path, const StoredText& text);
Result<StoredText> read_stored_text(const std::string& path);

}  // namespace quire
