# frozen_string_literal: true

require "json"
require_relative "handle"
require_relative "options"
require_relative "raw"

module Quire
  # Text to token ids, ids to text, and conversations. Any thread may use it.
  class Tokenizer < Handle
    # The ids of a text. continued: as a later segment.
    def encode(text, parse_special: false, bos: true, continued: false)
      flags = Options.text_flags(parse_special, bos) | (continued ? Interface::CONSTANTS[:TEXT_CONTINUE] : 0)
      Raw.tokenizer_encode(reference, text, flags)
    end

    # The text of ids. special: control tokens as their pieces.
    def decode(ids, special: false)
      Raw.tokenizer_decode(reference, ids, special ? Interface::CONSTANTS[:DECODE_SPECIAL] : 0).force_encoding(Encoding::UTF_8)
    end

    # The bytes that one id stands for; they need not be UTF-8.
    def token_bytes(id)
      Raw.tokenizer_get_token_bytes(reference, id)
    end

    def vocab_size
      Raw.tokenizer_get_vocab_size(reference)
    end

    # Beginning-of-sequence id, or nil.
    def bos
      bos = Raw.tokenizer_get_bos(reference)
      bos.negative? ? nil : bos
    end

    def eos?(id)
      Raw.tokenizer_is_eos(reference, id) == 1
    end

    # The name of the checkpoint's own chat template.
    def chat_template
      Raw.tokenizer_get_chat_template(reference).force_encoding(Encoding::UTF_8)
    end

    # A conversation, [role, text] each, as one text, for looking at. Options: template (a name), date ("2025-06-30"),
    # answer: false (do not begin one), thinking: false.
    def render_chat(messages, **options)
      Raw.tokenizer_render_chat(reference, *Options.chat(messages, **options)).force_encoding(Encoding::UTF_8)
    end

    # The same as ids.
    def encode_chat(messages, **options)
      Raw.tokenizer_encode_chat(reference, *Options.chat(messages, **options))
    end
  end

  # The known chat templates: hashes of :name and :description.
  def self.chat_templates
    JSON.parse(Raw.chat_get_list, symbolize_names: true)[:templates]
  end
end
