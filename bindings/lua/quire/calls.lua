-- Calls that take functions of the user: what these raise goes on to the caller of the call. C never sees it.
local raw = require("quire.raw")
local handles = require("quire.handles")
local options = require("quire.options")

local calls = {}

-- Remembers what the functions raised. A `progress` that fails cancels the call.
local function guard(state, callback, failed)
  local function returned(ok, ...)
    if ok then
      return ...
    end
    state.failed, state.reason = true, ...
    if failed then
      failed()
    end
    return nil, tostring(state.reason)
  end
  return function(...)
    return returned(pcall(callback, ...))
  end
end
calls.guard = guard

-- call(...), whose error gives way to what a guarded function raised.
function calls.run(state, call, ...)
  local function returned(ok, ...)
    if state.failed then
      error(state.reason, 0)
    elseif not ok then
      error((...), 0)
    end
    return ...
  end
  return returned(pcall(call, ...))
end

-- call(options) for options with `progress` and `cancel`, as one of options.lua made them.
function calls.watched(fields, call)
  local state, own = {}, nil
  if fields.progress then
    own = not fields.cancel and raw.cancel_create() or nil
    local cancel = fields.cancel or own
    fields.cancel = cancel
    fields.progress = guard(state, fields.progress, function()
      raw.cancel_trigger(cancel)
    end)
  end
  return calls.run(state, call, fields)
end

-- The same for options as the user gives them.
function calls.snapshot(given, call)
  return calls.watched(options.watched(options.copy(given)), call)
end

local Cancel = handles.class("Cancel")

-- Asks the calls that were given it to stop. Also from inside a progress function.
function Cancel:trigger()
  raw.cancel_trigger(handles.of(self))
end

-- For the option `cancel` of long calls.
function calls.cancel()
  return handles.new(Cancel, raw.cancel_create())
end

return calls
