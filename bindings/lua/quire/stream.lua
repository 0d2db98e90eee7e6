-- Streams of events.
local raw = require("quire.raw")
local handles = require("quire.handles")
local names = require("quire.names")
local options = require("quire.options")

local Stream = handles.class("Stream")
local stream = {}
local stream_next = raw.stream_next
local MOST_MS = 2 ^ 31 - 1

local MESSAGES = { warning = "warning", notice = "notice" }

-- Events but for plain tokens have all fields of quire_event; here they get those that mean something for their kind.
local function event_of(fields)
  local kind = names.word("event", fields.kind)
  local event = { kind = kind, text = fields.text, n_tokens = fields.n_tokens }
  if kind == "token" then
    event.token, event.logprob, event.top_logprobs = fields.token, fields.logprob, fields.top_logprobs
  elseif kind == "prefill" then
    event.total, event.done, event.reused, event.moved = fields.total, fields.done, fields.reused, fields.moved
    event.n_per_second, event.reuse_miss = fields.n_per_second, names.word("reuse_miss", fields.reuse_miss)
  elseif kind == "end" then
    event.token, event.stop_index = fields.token, fields.stop_index
    event.finish_reason = names.word("finish", fields.finish_reason)
  elseif MESSAGES[kind] then
    event.message, event.code = fields.message, names.word(MESSAGES[kind], fields.code)
  end
  return event
end

local function take(self, timeout_ms)
  local event = stream_next(self.handle or handles.of(self), timeout_ms)
  if event and event.kind ~= "token" then
    return event_of(event)
  end
  return event
end

-- The next event, nil at the end, or false where none came within `timeout` seconds (nil: wait as long as it takes).
function Stream:next(timeout)
  return take(self, timeout and math.ceil(math.min(math.max(timeout, 0) * 1000, MOST_MS)) or -1)
end

-- What a `for` loop calls. With the option `wait`, that function is called with the stream while no event waits: in a
-- coroutine it may yield to a loop that polls Stream:wait_handle().
function Stream:__call()
  local wait = self.wait
  if not wait then
    return take(self, -1)
  end
  while true do
    local event = take(self, 0)
    if event ~= false then
      return event
    end
    wait(self)
  end
end

-- Starts to process what was fed to a session and then to generate.
function stream.open(session, given)
  local fields = options.of_stream(given)
  local wait = fields.wait
  fields.wait = nil
  return handles.new(Stream, raw.stream_open(session, fields), { wait = wait or false })
end

-- Asks it to stop: the next event is the end event.
function Stream:cancel()
  raw.stream_cancel(handles.of(self))
end

-- Stops it, waits until nothing works for it, and leaves the session at the last delivered token.
function Stream:close()
  if self.handle then
    raw.stream_close(self.handle)
    raw.release(self.handle)
    self.handle = nil
  end
end

-- More strings and ids that end the answer, for all tokens not delivered yet.
function Stream:add_stop(strings, ids)
  raw.stream_add_stop_strings(handles.of(self), type(strings) == "string" and { strings } or strings or {})
  raw.stream_add_stop_ids(handles.of(self), ids or {})
end

-- With constrain = true: the ids that may come next, of a vocabulary of vocab_size; nil: any. Before the first token and
-- after each one.
function Stream:allow(ids, vocab_size)
  if not ids then
    return raw.stream_allow(handles.of(self), {})
  end
  local words, seen = {}, {}
  for word = 1, math.ceil(vocab_size / 32) do
    words[word] = 0
  end
  for _, id in ipairs(ids) do
    local word = math.floor(id / 32) + 1
    if not words[word] then
      error(("%d is outside the vocabulary"):format(id), 2)
    elseif not seen[id] then
      words[word] = words[word] + 2 ^ (id % 32)
      seen[id] = true
    end
  end
  raw.stream_allow(handles.of(self), words)
end

-- A file descriptor that is readable when an event waits, and sometimes when there is none yet: take events with a timeout of
-- 0. Only poll it; it belongs to the stream.
function Stream:wait_handle()
  return (raw.stream_get_wait_handle(handles.of(self)))
end

return stream
