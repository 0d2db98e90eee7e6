#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"

using namespace quire;
using namespace quire::abi;

namespace {

// Runs body(adapter) behind the boundary, unless its runtime was closed.
template <typename Body>
int32_t with_adapter(const quire_adapter* adapter, quire_error* err, const Body& body) {
  return with_handle(adapter, err, [&](const std::shared_ptr<LoadedAdapter>& a) -> Status {
    QUIRE_TRY(check_open(*a->model->runtime));
    return body(*a->adapter);
  });
}

}  // namespace

extern "C" {

quire_status quire_adapter_load(quire_model* model, const char* path, size_t path_len,
                                const quire_adapter_options* options, quire_adapter** out, quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    if (!out) return invalid("out is NULL");
    std::string_view directory;
    QUIRE_TRY(read_text(path, path_len, "path", &directory));
    if (directory.empty()) return invalid("path is empty");
    AdapterLoadOptions o;
    QUIRE_TRY(read_adapter_options(options, &o));
    QUIRE_ASSIGN(auto adapter, load_adapter(m, std::string(directory), o));
    *out = new quire_adapter(std::move(adapter));
    return {};
  });
}

void quire_adapter_retain(quire_adapter* adapter) { retain(adapter); }

void quire_adapter_release(quire_adapter* adapter) { release(adapter); }

quire_status quire_adapter_get_info(const quire_adapter* adapter, quire_adapter_info* info, quire_error* err) {
  return with_adapter(adapter, err, [&](const Adapter& a) -> Status {
    quire_adapter_info full{};
    if (a.embedding) full.flags |= QUIRE_ADAPTER_REPLACES_EMBEDDING;
    if (a.lm_head) full.flags |= QUIRE_ADAPTER_REPLACES_LM_HEAD;
    if (a.replaces_norms) full.flags |= QUIRE_ADAPTER_REPLACES_NORMS;
    if (a.changes_queries_or_keys) full.flags |= QUIRE_ADAPTER_CHANGES_QUERIES_OR_KEYS;
    full.rank = static_cast<int32_t>(a.max_rank);
    full.n_tensors = static_cast<int32_t>(a.n_tensors);
    full.n_parameters = a.n_parameters;
    full.bytes = a.bytes;
    return write_output(full, "info", info);
  });
}

quire_status quire_adapter_get_metadata(const quire_adapter* adapter, const char* key, size_t key_len, char* buf,
                                        size_t cap, size_t* needed, quire_error* err) {
  return with_adapter(adapter, err, [&](const Adapter& a) -> Status {
    std::string_view name;
    QUIRE_TRY(read_text(key, key_len, "key", &name));
    if (name == "identity") return write_text(a.identity, buf, cap, needed);
    if (name == "base_model") return write_text(a.base_model, buf, cap, needed);
    return Status(Code::kNotFound, "no metadata \"" + std::string(name) + "\"; known: identity, base_model");
  });
}
}
