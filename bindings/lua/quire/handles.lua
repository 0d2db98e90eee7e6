-- Objects that own a reference to a handle of C. The collector drops it, or close(), or on Lua 5.4 the end of the block
-- of a `local x <close>`. Handles keep their parents alive, so objects may go in any order.
local raw = require("quire.raw")
local errors = require("quire.errors")
local constants = require("quire.interface").constants

local handles = {}

-- A class whose objects have `handle` until they are closed.
function handles.class(name)
  local class = { __name = "quire." .. name, name = name }
  class.__index = class

  function class:__tostring()
    return ("quire.%s (%s)"):format(name, rawget(self, "handle") and "open" or "closed")
  end

  -- Drops the reference now. A second close does nothing.
  function class:close()
    local handle = self.handle
    if handle then
      self.handle = nil
      raw.release(handle)
    end
  end

  function class:__close()
    self:close()
  end

  return class
end

function handles.new(class, handle, fields)
  fields = fields or {}
  fields.handle = handle
  return setmetatable(fields, class)
end

-- The handle of an object that was not closed.
function handles.of(object)
  return object.handle or errors.raise(constants.ERROR_CLOSED, ("this %s was closed"):format(object.name), -1, 0)
end

return handles
