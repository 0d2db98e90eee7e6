-- Quire for Lua 5.4 and LuaJIT: a runtime for language models that read long documents. README.md begins with an example.
local raw = require("quire.raw")
local errors = require("quire.errors")
local model = require("quire.model")
local runtime = require("quire.runtime")
local snapshots = require("quire.snapshots")
local strategies = require("quire.strategies")
local tokenizer = require("quire.tokenizer")

local quire = {
  runtime = runtime.new,
  cancel = runtime.cancel,
  store = snapshots.store,
  describe_snapshot = snapshots.describe,
  verify_snapshot = snapshots.verify,
  describe_files = model.describe_files,
  quantizations = model.quantizations,
  quantize = model.quantize,
  chat_templates = tokenizer.chat_templates,
  describe_strategy = strategies.describe,
  strategies = strategies.list,
  strategy_positions = strategies.positions,
  is_error = errors.is_error,
}

-- The loaded library's version, "0.1.0".
function quire.version()
  return raw.get_version_string()
end

-- Calls use(object), closes the object whatever happens, and returns what use did: `local x <close>` for LuaJIT.
function quire.with(object, use)
  local function returned(ok, ...)
    object:close()
    if not ok then
      error((...), 0)
    end
    return ...
  end
  return returned(pcall(use, object))
end

return quire
