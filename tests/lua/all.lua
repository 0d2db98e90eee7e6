-- All tests of the Lua binding, on the Lua that runs this; then whether every function of quire.h was called.
local harness = require("harness")
local interface = require("quire.interface")

for _, name in ipairs({ "conformance", "test_models", "test_sessions", "test_streams", "test_snapshots", "test_callbacks",
  "test_errors", "test_lifetime" }) do
  require(name)
end

-- What is not offered. README.md of the binding says why.
local missing = jit and { quire_session_load_from = true } or {}

harness.test("every function is called", function()
  local names = { quire_stream_next = true }
  for name in pairs(interface.functions) do
    names["quire_" .. name] = true
  end
  local uncalled = {}
  for name in pairs(names) do
    if not harness.called[name] and not missing[name] then
      table.insert(uncalled, name)
    end
  end
  table.sort(uncalled)
  harness.equal(uncalled, {})
end)

harness.finish()
