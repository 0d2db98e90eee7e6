-- A process that may not have more memory: out_of_memory.lua MODEL_DIR prints the status of what then fails.
local quire = require("quire")

local session = quire.runtime({ threads = 1 }):load(arg[1]):session({ overflow = "extrapolate", kv_type = "f32" })
local pages = io.open("/proc/self/statm"):read("*n")
local pid = io.open("/proc/self/stat"):read("*n")
assert(os.execute(("prlimit --pid %d --as=%d"):format(pid, pages * 4096 + 64 * 2 ^ 20)))
local _, problem = pcall(session.fill_random, session, 1000000)
print(quire.is_error(problem) and problem.status or problem)
