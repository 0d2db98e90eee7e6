-- Sessions: texts that a model has read. session_results.lua has what can be asked of one.
local raw = require("quire.raw")
local calls = require("quire.calls")
local files = require("quire.snapshot_files")
local handles = require("quire.handles")
local names = require("quire.names")
local options = require("quire.options")
local results = require("quire.session_results")
local stream = require("quire.stream")

local Session = handles.class("Session")
local session = {}

for name, method in pairs(results) do
  Session[name] = method
end

function session.new(handle)
  return handles.new(Session, handle)
end

function session.load(model, file, fields)
  return session.new(files.load_session(model, file, fields))
end

-- Queues one segment of text. Options: parse_special (false), bos (true), labels ({begin, end, id} each, in bytes of it, or
-- by these names).
function Session:feed(text, given)
  local fields = options.text_flags(given)
  options.refuse_others(fields, { "flags", "labels" })
  if fields.labels then
    raw.session_feed_labelled(handles.of(self), text, fields.flags, options.labels(fields.labels))
  else
    raw.session_feed_text(handles.of(self), text, fields.flags)
  end
end

-- Queues token ids. positions: one for each id, strictly increasing; nil: each token follows the one before.
function Session:feed_tokens(ids, positions)
  if positions then
    raw.session_feed_positions(handles.of(self), ids, positions)
  else
    raw.session_feed_tokens(handles.of(self), ids)
  end
end

-- Queues messages, {role, text} or {role = role, content = text} each; behind an answer they end its turn first.
-- Options as of Tokenizer:render_chat.
function Session:feed_messages(messages, given)
  raw.session_feed_messages(handles.of(self), options.chat(messages, given))
end

-- The session's text becomes this one: a string, or a list of token ids. Options: reuse ("exact", "approximate"), reread
-- (tokens), parse_special, bos, labels. Returns a table of n_tokens, n_kept, n_moved.
function Session:edit(text, given)
  local fields = options.text_flags(given)
  fields.reuse = names.number("reuse", fields.reuse)
  options.rename(fields, "reread", "reread_tokens")
  fields.labels = fields.labels and options.labels(fields.labels)
  local edit = type(text) == "string" and raw.session_edit_text or raw.session_edit_tokens
  local result = edit(handles.of(self), text, fields)
  result.flags = nil
  return result
end

function Session:discard_pending()
  raw.session_discard_pending(handles.of(self))
end

function Session:reset()
  raw.session_reset(handles.of(self))
end

-- Forgets the tokens from the n_tokens-th on.
function Session:truncate(n_tokens)
  raw.session_truncate(handles.of(self), n_tokens)
end

-- Makes an empty session one of n_tokens random tokens, for benchmarks.
function Session:fill_random(n_tokens, seed)
  raw.session_fill_random(handles.of(self), n_tokens, seed or 0)
end

-- Starts to process what was fed and then to generate: `for event in session:stream{max_tokens = 200} do`. On Lua 5.4
-- leaving the loop early closes the stream (it is the loop's closing value too); on LuaJIT close it, or use generate().
-- Options: those of quire_stream_options; stop (a string or a list), samplers, logit_bias ({[token] = bias}), deadline
-- (seconds), top_logprobs, the flags score, keep_logits, ignore_eos, constrain, keep_hidden, cite; and wait (a function).
function Session:stream(given)
  local opened = stream.open(handles.of(self), given)
  return opened, nil, nil, opened
end

-- Calls take(text) for each piece of the answer, and returns the end event. If `take` returns false or raises, the stream
-- is closed. Without `take`: the whole answer, and the end event.
function Session:generate(given, take)
  local opened, pieces, last = self:stream(given), {}, nil
  local ok, problem = pcall(function()
    for event in opened do
      last = event
      if event.text ~= "" then
        if not take then
          pieces[#pieces + 1] = event.text
        elseif take(event.text) == false then
          return
        end
      end
    end
  end)
  opened:close()
  if not ok then
    error(problem, 0)
  end
  if take then
    return last
  end
  return table.concat(pieces), last
end

-- Processes what was fed and generates nothing. Options: score, keep_logits, keep_hidden.
function Session:prefill(given)
  local fields = options.copy(given)
  fields.max_tokens = 0
  self:generate(fields)
end

-- Another session that stands where this one does, and shares with it what both hold.
function Session:fork()
  return session.new(raw.session_fork(handles.of(self)))
end

-- Writes the session to a file: to a path, where it appears whole or not at all, or to an object with a write method (as
-- io.open returns), which a save that fails leaves with a part. Options: whole (true), progress, cancel.
function Session:save(file, given)
  local fields = options.copy(given)
  options.flag(fields, "whole", true, require("quire.interface").constants.SNAPSHOT_WHOLE)
  calls.snapshot(fields, function(watched)
    files.save(handles.of(self), file, watched)
  end)
end

-- Ends an open stream, waits, and frees the KV cache.
function Session:close()
  if self.handle then
    raw.session_close(self.handle)
    raw.release(self.handle)
    self.handle = nil
  end
end

return session
