-- Options of calls, as the tables that the raw layer takes: names become numbers, and true becomes a flag.
local constants = require("quire.interface").constants
local handles = require("quire.handles")
local names = require("quire.names")

local options = {}

-- A copy of a table of options; nil is an empty one.
local function copy(given)
  if given ~= nil and type(given) ~= "table" then
    error("expected a table, not " .. type(given), 0)
  end
  local copied = {}
  for name, value in pairs(given or {}) do
    copied[name] = value
  end
  return copied
end
options.copy = copy

-- Adds `bit` to fields.flags where the option is `when`, and removes the option. What is not given is not `when`.
local function flag(fields, option, when, bit)
  local value = fields[option]
  fields[option] = nil
  if value ~= nil and type(value) ~= "boolean" then
    error(("%s: expected true or false, not %s"):format(option, tostring(value)), 0)
  end
  fields.flags = (fields.flags or 0) + (value == when and bit or 0)
end
options.flag = flag

-- The option becomes the field of quire.h that it is short for, where it is given.
local function rename(fields, option, name)
  if fields[option] ~= nil then
    fields[name], fields[option] = fields[option], nil
  end
end
options.rename = rename

-- Refuses options that a call does not know: those of `fields` which are not in the list `known`.
function options.refuse_others(fields, known)
  local others = copy(fields)
  for _, name in ipairs(known) do
    others[name] = nil
  end
  local name = next(others)
  if name ~= nil then
    error("there is no option " .. tostring(name), 0)
  end
end

local function number(fields, option, kind)
  fields[option] = names.number(kind, fields[option], option)
end
options.number = number

local function strings(value)
  return type(value) == "string" and { value } or value
end

-- Adapters or their paths, each alone or as {item, scale}.
local function scaled(items, name, value)
  local found = {}
  for i, item in ipairs(items) do
    local alone = type(item) == "string" or getmetatable(item) ~= nil
    found[i] = { [name] = value(alone and item or item[1]), scale = not alone and item[2] or 1 }
  end
  return found
end

local function same(value)
  return value
end

function options.of_runtime(given)
  local fields = copy(given)
  rename(fields, "threads", "n_threads")
  rename(fields, "io_threads", "n_io_threads")
  rename(fields, "kept_log_lines", "n_kept_log_lines")
  number(fields, "log_level", "log_level")
  return fields
end

-- The common ones of long calls: `progress` (a function of done and total bytes) and `cancel` (a quire.cancel()).
local function watched(fields)
  fields.cancel = fields.cancel and handles.of(fields.cancel)
  return fields
end
options.watched = watched

function options.of_model(given)
  local fields = watched(copy(given))
  number(fields, "load", "load")
  number(fields, "weight_type", "type")
  rename(fields, "activations", "activation_type")
  number(fields, "activation_type", "type")
  rename(fields, "beacon", "beacon_path")
  fields.merge = fields.merge and scaled(fields.merge, "path", same)
  return fields
end

-- A string instead of a table is the strategy.
function options.of_session(given)
  local fields = copy(type(given) == "string" and { strategy = given } or given)
  flag(fields, "prefix_reuse", false, constants.SESSION_NO_PREFIX_REUSE)
  flag(fields, "keep_behind_windows", true, constants.SESSION_KEEP_BEHIND_WINDOWS)
  number(fields, "kv_type", "type")
  number(fields, "kv_old_type", "type")
  number(fields, "overflow", "overflow")
  if fields.old_after == 0 then
    fields.old_after = constants.OLD_AT_ONCE
  end
  fields.adapters = fields.adapters and scaled(fields.adapters, "adapter", handles.of)
  return fields
end

local STREAM_FLAGS = {
  score = constants.STREAM_SCORE, keep_logits = constants.STREAM_KEEP_LOGITS, ignore_eos = constants.STREAM_IGNORE_EOS,
  constrain = constants.STREAM_CONSTRAIN, keep_hidden = constants.STREAM_KEEP_HIDDEN, cite = constants.STREAM_CITE,
}

-- samplers: a list such as { { "penalties", a = 1.1, n = 64 } }.
local function chain(samplers)
  local found = {}
  for i, sampler in ipairs(samplers) do
    local fields = copy(sampler)
    fields.kind, fields[1] = names.number("sampler", fields[1] or fields.kind, "sampler"), nil
    found[i] = fields
  end
  return found
end

-- logit_bias: {[token] = bias}.
local function biases(given)
  local found = {}
  for token, bias in pairs(given) do
    found[#found + 1] = { token = token, bias = bias }
  end
  return found
end

function options.of_stream(given)
  local fields = copy(type(given) == "number" and { max_tokens = given } or given)
  for option, bit in pairs(STREAM_FLAGS) do
    flag(fields, option, true, bit)
  end
  rename(fields, "stop", "stop_strings")
  fields.stop_strings = strings(fields.stop_strings)
  fields.dry_breakers = strings(fields.dry_breakers)
  fields.samplers = fields.samplers and chain(fields.samplers)
  fields.logit_bias = fields.logit_bias and biases(fields.logit_bias)
  rename(fields, "top_logprobs", "n_top_logprobs")
  if fields.deadline then
    fields.deadline_ms, fields.deadline = math.ceil(fields.deadline * 1000), nil
  end
  return fields
end

-- A table whose fields are given in this order, by their names, or both ways.
local function named(given, order)
  local fields = copy(given)
  for i, name in ipairs(order) do
    rename(fields, i, name)
  end
  return fields
end

-- { begin, end, id } each, in this order or by these names, in bytes of the text from 0 on.
function options.labels(given)
  local found = {}
  for i, label in ipairs(given) do
    found[i] = named(label, { "begin", "end", "id" })
  end
  return found
end

-- Flags of text.
function options.text_flags(given)
  local fields = copy(given)
  flag(fields, "parse_special", true, constants.TEXT_PARSE_SPECIAL)
  flag(fields, "bos", false, constants.TEXT_NO_BOS)
  return fields
end

-- A message given as { role, text }, in this order or by these names; the text may be named `content`.
local function message(given)
  local fields = named(given, { "role", "text" })
  rename(fields, "content", "text")
  for _, name in ipairs({ "role", "text" }) do
    if fields[name] == nil then
      error("messages: expected a " .. name, 0)
    end
  end
  return fields
end

-- Messages, and options: template, date, answer, thinking.
function options.chat(messages, given)
  local found, fields = {}, copy(given)
  for i, each in ipairs(messages) do
    found[i] = message(each)
  end
  rename(fields, "template", "template_name")
  flag(fields, "answer", false, constants.CHAT_NO_ANSWER)
  flag(fields, "thinking", false, constants.CHAT_NO_THINKING)
  return found, fields
end

-- The strategy of a call that needs no model: train_len, n_heads, expected_tokens.
function options.of_strategy(expression, given)
  local fields = copy(given)
  fields.strategy = expression
  return fields
end

return options
