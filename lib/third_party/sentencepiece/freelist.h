// Copyright 2018 Google Inc.
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

#ifndef FREELIST_H_
#define FREELIST_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace quire::sentencepiece {
namespace model {

// Simple FreeList that allocates a chunk of T at once.
template <class T>
class FreeList {
 public:
  FreeList() = delete;
  explicit FreeList(size_t chunk_size) : chunk_size_(chunk_size) {}

  // Allocates new element.
  T* Allocate() {
    if (element_index_ >= chunk_size_) {
      ++chunk_index_;
      element_index_ = 0;
    }

    if (chunk_index_ == freelist_.size()) {
      auto chunk = std::make_unique<T[]>(chunk_size_);
      freelist_.push_back(std::move(chunk));
    }

    T* result = freelist_[chunk_index_].get() + element_index_;
    ++element_index_;

    return result;
  }

 private:
  std::vector<std::unique_ptr<T[]>> freelist_;

  // The last element is stored at freelist_[chunk_index_][element_index_]
  size_t element_index_ = 0;
  size_t chunk_index_ = 0;
  size_t chunk_size_ = 0;
};
}  // namespace model
}  // namespace quire::sentencepiece
#endif  // FREELIST_H_
