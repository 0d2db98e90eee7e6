-- The raw layer of this Lua: LuaJIT's FFI, or the C module.
return require(jit and "quire.raw_ffi" or "quire.native")
