-- Models, and what belongs to one: tokenizers, adapters, sessions.
local raw = require("quire.raw")
local calls = require("quire.calls")
local constants = require("quire.interface").constants
local handles = require("quire.handles")
local json = require("quire.json")
local names = require("quire.names")
local options = require("quire.options")
local session = require("quire.session")
local tokenizer = require("quire.tokenizer")

local Model = handles.class("Model")
local Adapter = handles.class("Adapter")
local model = {}

function model.load(runtime, path, given)
  local handle = calls.watched(options.of_model(given), function(fields)
    return raw.model_load(handles.of(runtime), path, fields)
  end)
  return handles.new(Model, handle)
end

function model.load_tokenizer(runtime, path)
  return tokenizer.new(raw.tokenizer_load(handles.of(runtime), path))
end

-- quire_model_info as a table; weight_type by name.
function Model:info()
  local info = raw.model_get_info(handles.of(self))
  info.weight_type, info.flags = names.word("type", info.weight_type), nil
  return info
end

-- Metadata by key: "architecture", "device", "identity", "config.json" and others (quire_model_get_metadata).
function Model:metadata(key)
  return raw.model_get_metadata(handles.of(self), key)
end

function Model:tokenizer()
  return tokenizer.new(raw.model_get_tokenizer(handles.of(self)))
end

-- An empty session. Options: a strategy, or a table of strategy, kv_type, kv_old_type, old_after (tokens), overflow,
-- expected_tokens, prefill_block, the budgets of quire_session_options, kv_file_directory, prefix_reuse (false: takes no
-- part), keep_behind_windows (true: layers with a window drop nothing) and adapters (a list of adapters, each alone or as
-- {adapter, scale}).
function Model:session(given)
  return session.new(raw.session_create(handles.of(self), options.of_session(given)))
end

-- A session that goes on where one was saved; options as of session(), the saved session's where not given. `file` is a
-- path, or an object with read and seek methods (as io.open returns), of which all is read now.
function Model:load_session(file, given)
  return session.load(handles.of(self), file, options.of_session(given))
end

-- Raises what session(given) would raise, and makes nothing.
function Model:check(given)
  raw.model_check_session(handles.of(self), options.of_session(given))
end

-- The canonical strategy that session(given) would have ("auto" where the options name none).
function Model:describe_strategy(given)
  local fields = options.of_session(given)
  fields.strategy = fields.strategy or "auto"
  return raw.model_describe_strategy(handles.of(self), fields)
end

-- How long a session would take to read n_tokens and to answer: quire_rate_estimate as a table.
function Model:estimate(n_tokens, given)
  local estimate = raw.model_estimate_rates(handles.of(self), options.of_session(given), n_tokens)
  estimate.flags = nil
  return estimate
end

-- A PEFT LoRA directory for sessions of this model. Options: progress and cancel, as of Runtime:load.
function Model:load_adapter(path, given)
  local handle = calls.snapshot(given, function(fields)
    return raw.adapter_load(handles.of(self), path, fields)
  end)
  return handles.new(Adapter, handle)
end

local ADAPTER_FLAGS = {
  replaces_embedding = constants.ADAPTER_REPLACES_EMBEDDING, replaces_lm_head = constants.ADAPTER_REPLACES_LM_HEAD,
  replaces_norms = constants.ADAPTER_REPLACES_NORMS, changes_queries_or_keys = constants.ADAPTER_CHANGES_QUERIES_OR_KEYS,
}

-- quire_adapter_info as a table; each flag as a boolean.
function Adapter:info()
  local info = raw.adapter_get_info(handles.of(self))
  for name, bit in pairs(ADAPTER_FLAGS) do
    info[name] = math.floor(info.flags / bit) % 2 == 1
  end
  info.flags = nil
  return info
end

-- "identity" or "base_model".
function Adapter:metadata(key)
  return raw.adapter_get_metadata(handles.of(self), key)
end

-- What the files of a model hold, without loading it (quire_model_describe_files).
function model.describe_files(path)
  return json(raw.model_describe_files(path))
end

-- The names of the recipes that quantize() knows.
function model.quantizations()
  local found = {}
  for name in raw.get_quantizations():gmatch("[^, ]+") do
    found[#found + 1] = name
  end
  return found
end

-- Writes a model as a GGUF file. Options: recipe, threads, progress, cancel.
function model.quantize(path, out, given)
  local fields = options.watched(options.copy(given))
  options.rename(fields, "threads", "n_threads")
  calls.watched(fields, function(watched)
    raw.model_quantize(path, out, watched)
  end)
end

return model
