-- Tokenizers: text to token ids, ids to text, and conversations.
local raw = require("quire.raw")
local constants = require("quire.interface").constants
local handles = require("quire.handles")
local json = require("quire.json")
local options = require("quire.options")

local Tokenizer = handles.class("Tokenizer")
local tokenizer = {}

function tokenizer.new(handle)
  return handles.new(Tokenizer, handle)
end

-- The ids of a text, as a list. Options: parse_special (false), bos (true), continued (false: a first segment).
function Tokenizer:encode(text, given)
  local fields = options.text_flags(given)
  options.flag(fields, "continued", true, constants.TEXT_CONTINUE)
  options.refuse_others(fields, { "flags" })
  return raw.tokenizer_encode(handles.of(self), text, fields.flags)
end

-- The text of ids. special: write control tokens as their pieces.
function Tokenizer:decode(ids, special)
  return raw.tokenizer_decode(handles.of(self), ids, special and constants.DECODE_SPECIAL or 0)
end

-- The bytes that one id stands for; they need not be UTF-8.
function Tokenizer:token_bytes(id)
  return raw.tokenizer_get_token_bytes(handles.of(self), id)
end

function Tokenizer:vocab_size()
  return raw.tokenizer_get_vocab_size(handles.of(self))
end

-- Beginning-of-sequence id, or nil.
function Tokenizer:bos()
  local bos = raw.tokenizer_get_bos(handles.of(self))
  return bos >= 0 and bos or nil
end

function Tokenizer:is_eos(id)
  return raw.tokenizer_is_eos(handles.of(self), id) == 1
end

-- The name of the checkpoint's own chat template.
function Tokenizer:chat_template()
  return raw.tokenizer_get_chat_template(handles.of(self))
end

-- A conversation, {role, text} or {role = role, content = text} each, as one text, for looking at.
-- Options: template (a name), date ("2025-06-30"),
-- answer = false (do not begin one), thinking = false.
function Tokenizer:render_chat(messages, given)
  return raw.tokenizer_render_chat(handles.of(self), options.chat(messages, given))
end

-- The same as ids.
function Tokenizer:encode_chat(messages, given)
  return raw.tokenizer_encode_chat(handles.of(self), options.chat(messages, given))
end

-- The known chat templates: a list of tables with name and description.
function tokenizer.chat_templates()
  return json(raw.chat_get_list()).templates
end

return tokenizer
