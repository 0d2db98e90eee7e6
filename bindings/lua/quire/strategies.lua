-- What strategy expressions mean; no model is needed. Options: train_len (there is no default), n_heads, expected_tokens.
local raw = require("quire.raw")
local json = require("quire.json")
local names = require("quire.names")
local options = require("quire.options")

local strategies = {}

-- The expression in canonical form, every default written out.
function strategies.describe(expression, given)
  return raw.strategy_describe(options.of_strategy(expression, given))
end

-- What expressions may be made of, for settings dialogs: a list of terms (quire_strategy_get_list).
function strategies.list(given)
  return json(raw.strategy_get_list(options.of_strategy(nil, given))).terms
end

-- The relative-position matrix, a list of rows; NaN: invisible. More options: n_keys, first_query (0), n_queries (all
-- behind that), head (0), queries and keys ("text", "condensed").
function strategies.positions(expression, given)
  local fields = options.copy(given)
  local first_query = fields.first_query or 0
  local view = {
    head = fields.head, first_query = first_query, n_queries = fields.n_queries or fields.n_keys - first_query,
    n_keys = fields.n_keys, query_kind = names.number("kv", fields.queries, "queries"),
    key_kind = names.number("kv", fields.keys, "keys"),
  }
  for _, name in ipairs({ "head", "first_query", "n_queries", "n_keys", "queries", "keys" }) do
    fields[name] = nil
  end
  local values = raw.strategy_get_positions(options.of_strategy(expression, fields), view)
  local rows = {}
  for row = 1, view.n_queries do
    rows[row] = {}
    for column = 1, view.n_keys do
      rows[row][column] = values[(row - 1) * view.n_keys + column]
    end
  end
  return rows
end

return strategies
