-- The names that strings stand for in calls and results: those of the constants of quire.h without their group's prefix, in
-- lower case ("bf16" is QUIRE_TYPE_BF16).
local interface = require("quire.interface")

local names = {}

local function group(prefix)
  local numbers, words = {}, {}
  for name, value in pairs(interface.constants) do
    if name:sub(1, #prefix) == prefix and not interface.flags[name] then
      local word = name:sub(#prefix + 1):lower()
      numbers[word], words[value] = value, word
    end
  end
  return numbers, words
end

local PREFIXES = {
  type = "TYPE_", load = "LOAD_", overflow = "OVERFLOW_", log_level = "LOG_", device = "DEVICE_", tier = "TIER_",
  sampler = "SAMPLER_", event = "EVENT_", finish = "FINISH_", reuse = "EDIT_", reuse_miss = "REUSE_", kv = "KV_",
  warning = "WARNING_", notice = "NOTICE_",
}

local numbers, words = {}, {}
for name, prefix in pairs(PREFIXES) do
  numbers[name], words[name] = group(prefix)
end

-- The number of a name; nil for nil. A name that there is not is an error, which lists those that there are.
function names.number(kind, name, what)
  if name == nil then
    return nil
  end
  local number = numbers[kind][name]
  if not number then
    local known = {}
    for each in pairs(numbers[kind]) do
      known[#known + 1] = each
    end
    table.sort(known)
    error(("%s must be one of %s, not %s"):format(what or kind, table.concat(known, ", "), tostring(name)), 0)
  end
  return number
end

-- The name of a number; of one that this version does not know, the number as text.
function names.word(kind, number)
  return words[kind][number] or tostring(number)
end

return names
