-- The raw layer of this Lua: LuaJIT's FFI, or the C module.
local interface = require("quire.interface")
local raw = require(jit and "quire.raw_ffi" or "quire.native")

-- Until 1.0 a minor version may break the ABI, then a major one.
local function has_abi_of(wanted, found)
  local unit = wanted < 10000 and 100 or 10000
  return found >= wanted and math.floor(found / unit) == math.floor(wanted / unit)
end

local function text(version)
  return ("%d.%d.%d"):format(math.floor(version / 10000), math.floor(version / 100) % 100, version % 100)
end

local wanted, found = interface.constants.VERSION, raw.get_version()
if not has_abi_of(wanted, found) then
  error(("libquire.so.0 is of version %s; this package needs %s, or a later one with its ABI"):format(text(found), text(wanted)), 0)
end

return raw
