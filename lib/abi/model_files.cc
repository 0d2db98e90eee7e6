// Models as files: what they hold, and writing them quantised.
#include <optional>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/model/describe_files.h"
#include "lib/model/quantize_model.h"

using namespace quire;
using namespace quire::abi;

namespace {

constexpr char kDefaultRecipe[] = "q4_k_m";

}  // namespace

extern "C" {

quire_status quire_model_describe_files(const char* path, size_t path_len, char* buf, size_t cap, size_t* needed,
                                        quire_error* err) {
  return guard(err, [&]() -> Status {
    std::string model;
    QUIRE_TRY(read_path(path, path_len, "path", &model));
    QUIRE_ASSIGN(const std::string description, describe_files(model));
    return write_text(description, buf, cap, needed);
  });
}

void quire_quantize_options_init(quire_quantize_options* options, size_t size) { init_struct(options, size); }

const char* quire_get_quantizations(void) { return quantization_recipes(); }

quire_status quire_model_quantize(const char* path, size_t path_len, const char* out_path, size_t out_path_len,
                                  const quire_quantize_options* options, quire_error* err) {
  return guard(err, [&]() -> Status {
    QuantizeRequest request;
    QUIRE_TRY(read_path(path, path_len, "path", &request.path));
    QUIRE_TRY(read_path(out_path, out_path_len, "out_path", &request.out));
    quire_quantize_options o;
    QUIRE_TRY(read_options(options, 0, "quire_quantize_options", &o));
    QUIRE_TRY(check_range("n_threads", o.n_threads, 0, 1024));
    QUIRE_TRY(check_range("reserved", o.reserved, 0, 0));
    std::string_view recipe;
    QUIRE_TRY(read_text(o.recipe, o.recipe_len, "recipe", &recipe));
    request.recipe = recipe.empty() ? kDefaultRecipe : std::string(recipe);
    const std::shared_ptr<const CancelToken> cancel = object_of(o.cancel);
    request.cancel = cancel.get();
    if (o.progress) {
      request.progress = [&o](int64_t done, int64_t total) { o.progress(o.progress_user_data, done, total); };
    }
    std::optional<ThreadPool> pool;
    QUIRE_TRY(start_threads([&] { pool.emplace(thread_count(o.n_threads)); }));
    request.pool = &*pool;
    return quantize_model(request);
  });
}
}
