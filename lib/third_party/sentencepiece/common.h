// Copyright 2016 Google Inc.
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.!
//
// Changed for Quire: see README.md in this folder.

#ifndef COMMON_H_
#define COMMON_H_

#include <stdint.h>
#include <string.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>

typedef uint32_t char32;
typedef uint32_t uint32;

static constexpr uint32 kUnicodeError = 0xFFFD;

// What the sources use of Abseil, by the standard library's means.
namespace quire::absl {

using std::make_unique;
using std::string_view;

template <typename K, typename V>
using flat_hash_map = std::unordered_map<K, V>;

inline bool EndsWith(absl::string_view text, absl::string_view suffix) {
  return text.ends_with(suffix);
}

inline bool ConsumePrefix(absl::string_view *str, absl::string_view expected) {
  if (!str->starts_with(expected)) return false;
  str->remove_prefix(expected.size());
  return true;
}

}  // namespace quire::absl

namespace quire::sentencepiece {

// Called now and then while a text is worked on; what it throws ends that.
using Poll = std::function<void()>;

class Poller {
 public:
  explicit Poller(const Poll &poll) : poll_(poll) {}
  void Step() {
    if (++n_ % kSteps == 0) poll_();
  }

 private:
  static constexpr uint32_t kSteps = 1 << 16;
  const Poll &poll_;
  uint32_t n_ = 0;
};

}  // namespace quire::sentencepiece

// A failed check is an exception: it neither ends the process nor writes.
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) throw std::logic_error("failed: " #condition); \
  } while (0)
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_GE(a, b) CHECK((a) >= (b))
#define CHECK_LT(a, b) CHECK((a) < (b))

#define RETURN_IF_ERROR(expr)          \
  do {                                 \
    const auto _status = expr;         \
    if (!_status.ok()) return _status; \
  } while (0)

#endif  // COMMON_H_
