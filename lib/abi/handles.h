// The opaque handles: a reference count and a shared_ptr to what they stand for.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "include/quire/quire.h"
#include "lib/session/document_store.h"
#include "lib/session/session.h"
#include "lib/session/stream.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire::abi {

template <typename Impl>
struct Handle : Disposable {
  explicit Handle(std::shared_ptr<Impl> i) : impl(std::move(i)) {}
  std::atomic<int32_t> references{1};
  std::shared_ptr<Impl> impl;
};

template <typename H>
void retain(H* handle) {
  if (handle) handle->references.fetch_add(1, std::memory_order_relaxed);
}

// True if that was the last reference.
template <typename H>
bool drop_reference(H* handle) {
  return handle && handle->references.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

// Lets go of a handle and its object on the runtime's engine thread, so that no caller waits for a teardown. `runtime`
// is the caller's own reference: the handle's may be gone before this returns.
template <typename H>
void release(H* handle, const std::shared_ptr<Runtime>& runtime) noexcept {
  runtime->scheduler().dispose(std::unique_ptr<Disposable>(handle));
}

// What a tokenizer handle stands for: a tokenizer and the runtime that it was loaded with.
struct OpenTokenizer {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<const ModelTokenizer> of_model;
};

}  // namespace quire::abi

struct quire_runtime : quire::abi::Handle<quire::Runtime> {
  using Handle::Handle;
};
struct quire_model : quire::abi::Handle<quire::Model> {
  using Handle::Handle;
};
struct quire_tokenizer : quire::abi::Handle<quire::abi::OpenTokenizer> {
  using Handle::Handle;
};
struct quire_adapter : quire::abi::Handle<quire::LoadedAdapter> {
  using Handle::Handle;
};
struct quire_session : quire::abi::Handle<quire::Session> {
  using Handle::Handle;
};
struct quire_store : quire::abi::Handle<quire::DocumentStore> {
  using Handle::Handle;
};
struct quire_stream : quire::abi::Handle<quire::GenerationStream> {
  using Handle::Handle;
};
struct quire_cancel : quire::abi::Handle<quire::CancelToken> {
  using Handle::Handle;
};
