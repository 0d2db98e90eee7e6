rockspec_format = "3.0"
package = "quire"
version = "0.1.0-1"
source = { url = "file://." } -- luarocks make, in this folder
description = {
  summary = "Binding of Quire, a runtime for language models that read long documents",
  detailed = "Sessions that read documents much longer than the model's window, stream answers, fork, and go on after a restart.",
  license = "MIT",
}
dependencies = { "lua >= 5.4, < 5.5", "dkjson >= 2.5" }
external_dependencies = { QUIRE = { header = "quire/quire.h", library = "quire" } }
build = {
  type = "builtin",
  modules = {
    ["quire"] = "quire/init.lua",
    ["quire.calls"] = "quire/calls.lua",
    ["quire.errors"] = "quire/errors.lua",
    ["quire.handles"] = "quire/handles.lua",
    ["quire.interface"] = "quire/interface.lua",
    ["quire.json"] = "quire/json.lua",
    ["quire.model"] = "quire/model.lua",
    ["quire.names"] = "quire/names.lua",
    ["quire.options"] = "quire/options.lua",
    ["quire.raw"] = "quire/raw.lua",
    ["quire.runtime"] = "quire/runtime.lua",
    ["quire.session"] = "quire/session.lua",
    ["quire.session_results"] = "quire/session_results.lua",
    ["quire.snapshot_files"] = "quire/snapshot_files.lua",
    ["quire.snapshots"] = "quire/snapshots.lua",
    ["quire.strategies"] = "quire/strategies.lua",
    ["quire.stream"] = "quire/stream.lua",
    ["quire.tokenizer"] = "quire/tokenizer.lua",
    ["quire.native"] = {
      sources = { "src/callbacks.c", "src/interface.c", "src/native.c", "src/records.c", "src/snapshot_bytes.c" },
      incdirs = { "$(QUIRE_INCDIR)" },
      libdirs = { "$(QUIRE_LIBDIR)" },
      libraries = { "quire", "pthread" },
    },
  },
}
