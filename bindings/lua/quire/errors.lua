-- What a failed call raises: a table with `status` ("BAD_FILE", ...), `code`, `message`, `offset` (byte, column or token
-- index; -1: none) and `os_error` (errno or 0). tostring() of it is "BAD_FILE: message".
local raw = require("quire.raw")

local Error = {}
Error.__index = Error
Error.__name = "quire.Error"

function Error:__tostring()
  return self.status .. ": " .. self.message
end

local errors = { Error = Error }

function errors.raise(code, message, offset, os_error)
  local status = raw.get_status_name(code)
  error(setmetatable({ status = status, code = code, message = message, offset = offset, os_error = os_error }, Error), 0)
end

-- Whether a caught value is an error of this module; with a status, whether it is that one.
function errors.is_error(value, status)
  return getmetatable(value) == Error and (status == nil or value.status == status)
end

raw.on_error(errors.raise)

return errors
