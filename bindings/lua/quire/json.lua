-- The JSON that some calls return, as tables.
local dkjson = require("dkjson")

return function(text)
  local value, _, problem = dkjson.decode(text, 1, nil, nil, nil)
  return problem and error(problem) or value
end
