-- Runtimes: threads, memory, devices and the log.
local raw = require("quire.raw")
local constants = require("quire.interface").constants
local calls = require("quire.calls")
local handles = require("quire.handles")
local model = require("quire.model")
local names = require("quire.names")
local options = require("quire.options")

local Runtime = handles.class("Runtime")

-- A runtime. Options: threads (0: one for each usable core), io_threads, kv_device_budget_bytes, kv_host_budget_bytes,
-- kv_compressed_budget_bytes, kv_file_budget_bytes, prefix_cache_bytes; log_level ("error" to "debug") and kept_log_lines,
-- which is how many lines are kept for Runtime:log_lines() (0).
local function runtime(given)
  return handles.new(Runtime, raw.runtime_create(options.of_runtime(given)))
end

-- Loads a model: a Hugging Face directory, or a GGUF file. Options: weight_type, load ("mmap", "read"), activations ("f32",
-- "bf16", "int8"), merge (a list of adapter directories, each a path or {path, scale}), beacon (a directory), device (a name of
-- devices()), packed_directory (where weights are kept as the CPU multiplies with them, for later loads to map), progress (a function of done and total bytes) and cancel (a quire.cancel()).
function Runtime:load(path, given)
  return model.load(self, path, given)
end

-- The tokenizer of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file, without weights.
function Runtime:tokenizer(path)
  return model.load_tokenizer(self, path)
end

-- What models can run on: a list of tables with name, kind, description, usable, obstacle, memory_bytes, free_bytes.
function Runtime:devices()
  local found = {}
  for index = 0, raw.runtime_get_device_count(handles.of(self)) - 1 do
    local info = raw.runtime_get_device_info(handles.of(self), index)
    info.usable, info.flags = info.flags % 2 == constants.DEVICE_USABLE, nil
    info.kind = names.word("device", info.kind)
    found[index + 1] = info
  end
  return found
end

-- quire_runtime_stats as a table.
function Runtime:stats()
  local stats = raw.runtime_get_stats(handles.of(self))
  stats.flags = nil
  return stats
end

-- An iterator over the lines that were kept (kept_log_lines) and not taken yet: their level, their text, and how many lines were
-- lost before it for want of room. It ends where there is none.
function Runtime:log_lines()
  return function()
    local level, n_lost, text = raw.runtime_take_log_line(handles.of(self))
    if level ~= 0 then
      return names.word("log_level", level), text, n_lost
    end
  end
end

-- What the model in `path` and a session of n_tokens would take: quire_memory_plan as a table. Nothing is loaded.
function Runtime:plan_memory(path, n_tokens, session, given)
  local plan = raw.runtime_plan_memory(handles.of(self), path, options.of_model(given), options.of_session(session), n_tokens)
  plan.flags = nil
  return plan
end

-- Raises what a session with these options would raise for the model in `path`; loads nothing.
function Runtime:check(path, session, given)
  raw.runtime_check_session(handles.of(self), path, options.of_model(given), options.of_session(session))
end

-- The canonical strategy that such a session would have ("auto" where the options name none); loads nothing.
function Runtime:describe_strategy(path, session, given)
  local fields = options.of_session(session)
  fields.strategy = fields.strategy or "auto"
  return raw.runtime_describe_strategy(handles.of(self), path, options.of_model(given), fields)
end

-- Stops everything that runs on this runtime and waits for it; calls on what hangs off it then raise CLOSED.
function Runtime:close()
  if self.handle then
    raw.runtime_close(self.handle)
    raw.release(self.handle)
    self.handle = nil
  end
end

return { new = runtime, cancel = calls.cancel }
