-- What can be asked of a session.
local raw = require("quire.raw")
local handles = require("quire.handles")
local names = require("quire.names")
local options = require("quire.options")

local results = {}

-- How many tokens it has read, and how many fed ones wait.
function results:counts()
  return raw.session_get_token_counts(handles.of(self))
end

function results:n_tokens()
  return (self:counts())
end

function results:n_pending()
  return (select(2, self:counts()))
end

-- The ids of all tokens, pending ones last.
function results:tokens()
  return raw.session_get_tokens(handles.of(self))
end

-- A flat list as rows.
local function rows(values, n_rows)
  local width, found = #values / n_rows, {}
  for row = 1, n_rows do
    found[row] = {}
    for column = 1, width do
      found[row][column] = values[(row - 1) * width + column]
    end
  end
  return found
end

-- Raw logits: n_rows (1) lists of vocab_size numbers, the first one computed after token first_token, counted from 0 (-1:
-- the last one). The logit of token t is at t + 1.
function results:logits(first_token, n_rows)
  return rows(raw.session_get_logits(handles.of(self), first_token or -1, n_rows or 1), n_rows or 1)
end

-- Embeddings: last hidden states, n_rows (1) lists of hidden_size numbers, of a stream with keep_hidden = true.
function results:hidden_states(first_token, n_rows)
  return rows(raw.session_get_hidden_states(handles.of(self), first_token, n_rows or 1), n_rows or 1)
end

-- log p of n tokens from first_token on (from 0), of a stream with score = true; NaN where it is not known.
function results:scores(first_token, n)
  return raw.session_get_scores(handles.of(self), first_token, n)
end

-- Where the last answer looked: a table for each label (id, first_token, n_tokens, share).
function results:label_attention()
  return raw.session_get_label_attention(handles.of(self))
end

-- What the last answer, or some of its tokens, looked at most, of a stream with cite = true: a table for each passage
-- (first_token, n_tokens, feed, begin, end, label, label_id, share; all counted from 0). Options: first_token, n_tokens,
-- most (5).
function results:passages(given)
  given = given or {}
  options.refuse_others(given, { "first_token", "n_tokens", "most" })
  return raw.session_get_passages(handles.of(self), given.first_token or -1, given.n_tokens or 0, given.most or 5)
end

-- The same by label.
function results:label_shares(given)
  given = given or {}
  options.refuse_others(given, { "first_token", "n_tokens" })
  return raw.session_get_label_shares(handles.of(self), given.first_token or -1, given.n_tokens or 0)
end

local function without_header(struct)
  struct.flags, struct.tier = nil, nil
  return struct
end

-- quire_session_stats as a table.
function results:stats()
  return without_header(raw.session_get_stats(handles.of(self)))
end

-- quire_tier_stats of "device", "host", "compressed", "file" or "snapshot", as a table.
function results:tier(name)
  return without_header(raw.session_get_tier_stats(handles.of(self), names.number("tier", name, "tier")))
end

-- quire_session_probes as a table: what tests of cancelling look at.
function results:probes()
  return without_header(raw.session_get_probes(handles.of(self)))
end

-- The strategy in canonical form.
function results:strategy()
  return raw.session_get_strategy(handles.of(self))
end

-- Names all that keys and values depend on beside the tokens.
function results:fingerprint()
  return raw.session_get_fingerprint(handles.of(self))
end

return results
