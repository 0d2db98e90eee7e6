// The opaque handles: a reference count and a shared_ptr to what they stand for.
//
// A call works on the object of a handle through Held or with_handle alone. They count as a reference for the length of
// the call, so that a call that has begun keeps what it works on: its callbacks, and other threads meanwhile, may
// release the handle.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "include/quire/quire.h"
#include "lib/abi/boundary.h"
#include "lib/session/document_store.h"
#include "lib/session/session.h"
#include "lib/session/stream.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire::abi {

template <typename Impl>
class Handle : public Disposable {
 public:
  using Object = Impl;

  explicit Handle(std::shared_ptr<Impl> object) : object_(std::move(object)) {}
  // Of a handle that was made without one, before anybody has it.
  void set_object(std::shared_ptr<Impl> object) noexcept { object_ = std::move(object); }

  void retain() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    const HostCall call;
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy();
  }

 protected:
  // The last reference is gone.
  virtual void destroy() noexcept { delete this; }
  // Destroys the handle on the runtime's engine thread, so that no caller waits for the teardown of its object.
  // `runtime` is a reference of the call's own: the object's may be gone before this returns.
  void dispose(std::shared_ptr<Runtime> runtime) noexcept {
    runtime->scheduler().dispose(std::unique_ptr<Disposable>(this));
  }
  Impl& object() const { return *object_; }

 private:
  template <typename H>
  friend class Held;

  mutable std::atomic<int32_t> references_{1};
  std::shared_ptr<Impl> object_;
};

// A reference to a handle, not null, while a call works on its object.
template <typename H>
class Held {
 public:
  using Object = typename H::Object;

  explicit Held(const H* handle) noexcept : handle_(const_cast<H*>(handle)) { handle_->retain(); }
  ~Held() { handle_->release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const std::shared_ptr<Object>& object() const { return handle_->object_; }
  Object& operator*() const { return *object(); }
  Object* operator->() const { return object().get(); }

 private:
  H* const handle_;
};

// Runs body(object) behind the boundary: the object of a handle, as a shared_ptr, while the call holds it.
template <typename H, typename Body>
int32_t with_handle(const H* handle, quire_error* err, const Body& body) {
  return guard(err, [&]() -> Status {
    if (!handle) return invalid(std::string(H::kName) + " is NULL");
    const Held<H> held(handle);
    return body(held.object());
  });
}

// The object of a handle that an options struct names, or null. The copy keeps the object alone.
template <typename H>
std::shared_ptr<typename H::Object> object_of(const H* handle) {
  return handle ? Held(handle).object() : nullptr;
}

template <typename H>
void retain(H* handle) noexcept {
  if (handle) handle->retain();
}

template <typename H>
void release(H* handle) noexcept {
  if (handle) handle->release();
}

inline Status check_open(const Runtime& runtime) {
  return runtime.closed() ? Status(Code::kClosed, "the runtime was closed") : Status();
}

// What a tokenizer handle stands for: a tokenizer and the runtime that it was loaded with.
struct OpenTokenizer {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<const ModelTokenizer> of_model;
};

}  // namespace quire::abi

// Models and sessions hold the runtime too. If its handle is its last owner, nothing runs and the threads stop at once.
struct quire_runtime final : quire::abi::Handle<quire::Runtime> {
  static constexpr char kName[] = "runtime";
  using Handle::Handle;
};
struct quire_model final : quire::abi::Handle<quire::Model> {
  static constexpr char kName[] = "model";
  using Handle::Handle;
  void destroy() noexcept override { dispose(object().runtime); }
};
struct quire_tokenizer final : quire::abi::Handle<quire::abi::OpenTokenizer> {
  static constexpr char kName[] = "tokenizer";
  using Handle::Handle;
  void destroy() noexcept override { dispose(object().runtime); }
};
struct quire_adapter final : quire::abi::Handle<quire::LoadedAdapter> {
  static constexpr char kName[] = "adapter";
  using Handle::Handle;
  void destroy() noexcept override { dispose(object().model->runtime); }
};
struct quire_session final : quire::abi::Handle<quire::Session> {
  static constexpr char kName[] = "session";
  using Handle::Handle;
  void destroy() noexcept override { dispose(object().model().runtime); }
};
struct quire_store final : quire::abi::Handle<quire::DocumentStore> {
  static constexpr char kName[] = "store";
  using Handle::Handle;
};
struct quire_stream final : quire::abi::Handle<quire::GenerationStream> {
  static constexpr char kName[] = "stream";
  using Handle::Handle;
  void destroy() noexcept override {
    object().abandon();
    dispose(object().runtime());
  }
};
struct quire_cancel final : quire::abi::Handle<quire::CancelToken> {
  static constexpr char kName[] = "cancel";
  using Handle::Handle;
};

namespace quire::abi {

// Runs body(tokenizer, closing) behind the boundary, unless the runtime was closed. `closing` is what a close of that
// cancels; a body that ends with kCancelled for it is kClosed.
template <typename Body>
int32_t with_tokenizer(const quire_tokenizer* tokenizer, quire_error* err, const Body& body) {
  return with_handle(tokenizer, err, [&](const std::shared_ptr<OpenTokenizer>& t) -> Status {
    QUIRE_TRY(check_open(*t->runtime));
    Status status = body(*t->of_model, t->runtime->closing());
    return status.code() == Code::kCancelled ? check_open(*t->runtime) : status;
  });
}

}  // namespace quire::abi
