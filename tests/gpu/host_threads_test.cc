// A host with CUDA code of its own: what calls of quire.h leave on its threads. Through libquire.so and a plugin file,
// over the emulated runtime.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/gpu/emulation/cuda/cuda_runtime_api.h"

namespace quire::test {
namespace {

template <typename Function>
Function* of_plugin(const char* name) {
  static void* const plugin = dlopen(QUIRE_EMULATED_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(plugin, name));
}
void* context() { return of_plugin<void*()>("emulated_context")(); }
int capture_mode() { return of_plugin<int()>("emulated_capture_mode")(); }

// What an application does with a document on a GPU, call by call.
void use_quire(const std::function<void(const char*)>& look) {
  const auto ok = [&](const char* call, quire_status status) {
    EXPECT_EQ(status, QUIRE_OK) << call;
    look(call);
  };
  auto runtime = make_runtime(2);
  look("quire_runtime_create");
  quire_model_options options{};
  options.struct_size = sizeof options;
  options.device = "cuda:0";
  options.device_len = 6;
  const std::string path = model_directory("short_128");
  quire_model* loaded = nullptr;
  ok("quire_model_load", quire_model_load(runtime.get(), path.data(), path.size(), &options, &loaded, nullptr));
  Owned<quire_model> model(loaded);
  auto session = make_session(model.get(), "full(kv_chunk=16)");
  look("quire_session_create");
  feed(session.get(), some_tokens(90, 64));
  look("quire_session_feed_tokens");
  EXPECT_EQ(generate(session.get(), 4).outcome.status, QUIRE_OK);
  look("quire_stream_next");
  EXPECT_EQ(last_logits(session.get(), 64).size(), 64u);
  look("quire_session_get_logits");
  quire_rate_estimate rates{};
  rates.struct_size = sizeof rates;
  ok("quire_model_estimate_rates", quire_model_estimate_rates(model.get(), nullptr, 90, &rates, nullptr));
  quire_session* forked = nullptr;
  ok("quire_session_fork", quire_session_fork(session.get(), &forked, nullptr));
  Owned<quire_session> fork(forked);
  ok("quire_session_truncate", quire_session_truncate(fork.get(), 40, nullptr));
  const std::string file = (std::filesystem::path(testing::TempDir()) / "host_threads.quire").string();
  ok("quire_session_save", quire_session_save(session.get(), file.data(), file.size(), nullptr, nullptr));
  std::filesystem::remove(file);
  ok("quire_session_reset", quire_session_reset(fork.get(), nullptr));
  ok("quire_session_fill_random", quire_session_fill_random(fork.get(), 50, 1, nullptr));
  ok("quire_session_close", quire_session_close(session.get(), nullptr));
  session.reset();
  look("quire_session_release");
  ok("quire_runtime_close", quire_runtime_close(runtime.get(), nullptr));
  fork.reset();
  model.reset();
  runtime.reset();
  look("quire_runtime_release");
}

// device: what the host has chosen; -1: none.
void expect_untouched(int device) {
  SCOPED_TRACE(device);
  std::thread([device] {
    if (device >= 0) {
      EXPECT_EQ(of_plugin<int(int)>("emulated_choose")(device), 0);
    }
    void* const own = context();
    EXPECT_EQ(own == nullptr, device < 0);
    use_quire([own](const char* call) {
      EXPECT_EQ(context(), own) << call;
      EXPECT_EQ(capture_mode(), cudaStreamCaptureModeGlobal) << call;
    });
  }).join();
}

TEST(HostThreads, KeepTheDeviceThatTheHostHasChosen) {
  setenv("QUIRE_CUDA_PLUGIN", QUIRE_EMULATED_PLUGIN, 1);
  setenv("QUIRE_CUBLASLT", "/nowhere/libcublasLt.so", 1);  // a real one cannot work here
  for (const int device : {-1, 0, 1}) expect_untouched(device);
}

}  // namespace
}  // namespace quire::test
