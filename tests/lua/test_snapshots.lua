-- Sessions in files, file objects and stores.
local harness = require("harness")
local quire = require("quire")
local equal, raises, refuses, test = harness.equal, harness.raises, harness.refuses, harness.test

local runtime = quire.runtime({ threads = 2 })
local model = runtime:load(harness.model_path)
local OPTIONS = { strategy = "dca(kv_chunk=16)", kv_type = "f32", prefix_reuse = false }

local function read(n)
  local session = model:session(OPTIONS)
  session:feed_tokens(harness.ids(n))
  session:prefill()
  return session
end

local function contents(path)
  local file = assert(io.open(path, "rb"))
  local data = file:read("*a")
  file:close()
  return data
end

-- A file object in memory, whose calls fail after `good` of them.
local function memory(data, good)
  local file = { data = data or "", at = 0, good = good or math.huge }
  local function count()
    file.good = file.good - 1
    if file.good < 0 then
      return nil, "the shelf is full", 28
    end
    return true
  end
  function file:seek(whence, offset)
    self.at = whence == "end" and #self.data or offset
    return self.at
  end
  function file:read(n)
    local ok, message, number = count()
    if not ok then
      return nil, message, number
    end
    return self.data:sub(self.at + 1, n == "*a" and -1 or self.at + n)
  end
  function file:write(bytes)
    local ok, message, number = count()
    if not ok then
      return nil, message, number
    end
    self.data = self.data .. bytes
    return self
  end
  return file
end

test("a result that grows between the question for its length and itself", function()
  local texts = {}
  for n = 9, 10 do -- the number of tokens has a digit more
    local file = memory()
    read(n):save(file)
    texts[#texts + 1] = file.data
  end
  local file = memory(texts[1])
  local seek, n_begun = file.seek, 0
  function file:seek(whence, offset)
    if whence == "set" and offset == 0 then
      n_begun = n_begun + 1
      self.data = texts[math.min(n_begun, 2)]
    end
    return seek(self, whence, offset)
  end
  equal(quire.describe_snapshot(file).n_tokens, 10)
  assert(n_begun > 2)
end)

test("files", function()
  local path, session, seen = harness.folder .. "/saved.quire", read(300), {}
  session:save(path, { whole = true, progress = function(done, total)
    seen = { done, total }
  end })
  equal(seen[1], seen[2])
  local described = quire.describe_snapshot(path)
  equal({ described.n_tokens, described.bytes, described.origin.model }, { 300, #contents(path), model:metadata("identity") })
  quire.verify_snapshot(path)
  local loaded = model:load_session(path, { prefix_reuse = false })
  equal(loaded:tokens(), session:tokens())
  equal(loaded:generate({ max_tokens = 12 }), (session:generate({ max_tokens = 12 })))
  assert(loaded:tier("snapshot").bytes_read > 0)
  raises("INVALID_ARGUMENT", "its strategy is dca(", model.load_session, model, path, "full")
  raises("NOT_FOUND", "", model.load_session, model, harness.folder .. "/none")
  local damaged = io.open(path, "r+b")
  damaged:seek("set", math.floor(described.bytes / 2))
  damaged:write("\255\0\255\0")
  damaged:close()
  raises("BAD_FILE", "is damaged", quire.verify_snapshot, path)
end)

test("file objects", function()
  local path, session, file = harness.folder .. "/saved.quire", read(200), memory()
  session:save(path)
  session:save(file)
  equal(file.data == contents(path), true)
  equal(quire.describe_snapshot(file), quire.describe_snapshot(path))
  quire.verify_snapshot(file)
  local opened = io.open(path, "rb")
  local loaded = model:load_session(opened, { prefix_reuse = false })
  opened:close()
  os.remove(path)
  local fork = loaded:fork()
  loaded:close()
  collectgarbage()
  equal(fork:generate({ max_tokens = 12 }), (session:generate({ max_tokens = 12 })))
end)

test("file objects that fail", function()
  local session = read(100)
  local whole = memory()
  session:save(whole)
  for _, good in ipairs({ 0, 1, 2 }) do
    local problem = raises("IO", "the shelf is full", session.save, session, memory("", good))
    equal(problem.os_error, 28)
    raises("IO", "the shelf is full", quire.verify_snapshot, memory(whole.data, good))
  end
  refuses("the shelf is full", model.load_session, model, memory(whole.data, 0))
  local broken = memory(whole.data)
  broken.read = function()
    error("my own")
  end
  refuses("my own", quire.describe_snapshot, broken)
  broken.read = function(_, n)
    return ("x"):rep(n + 1)
  end
  refuses("bytes", quire.describe_snapshot, broken)
  raises("BAD_FILE", "", model.load_session, model, memory(whole.data:sub(1, 100)))
end)

test("stores", function()
  local path, ids = harness.folder .. "/store", harness.ids(400)
  raises("NOT_FOUND", "", quire.store, path, { must_exist = true })
  local store, session = quire.store(path, { budget_bytes = 10000000 }), read(300)
  equal(store:find(model, ids, OPTIONS).reason, "the store is empty")
  raises("NOT_FOUND", "the store is empty", store.load, store, model, ids, OPTIONS)
  local seen
  local put = store:put(session, { title = "Größe", progress = function(done, total)
    seen = { done, total }
  end })
  equal({ put.n_tokens, seen[1] }, { 300, seen[2] })
  equal(store:find(model, ids, OPTIONS).n_computed, 300)
  assert(store:find(model, ids, "dca(kv_chunk=16)").reason:find("its kv_type is f32; here it is f16", 1, true))
  local entry = store:describe().entries[1]
  equal({ entry.name, entry.title, entry.n_tokens }, { put.name, "Größe", 300 })
  local loaded = store:load(model, ids, OPTIONS)
  equal(loaded:n_tokens(), 300)
  store:verify(put.name)
  local cancel = quire.cancel()
  cancel:trigger()
  raises("CANCELLED", "", store.verify, store, put.name, { cancel = cancel })
  store:remove(put.name)
  equal(#store:describe().entries, 0)
  raises("INVALID_ARGUMENT", "", store.remove, store, "../store.lock")
  store:close()
  raises("CLOSED", "this Store was closed", store.describe, store)
end)

runtime:close()
