package quire

// #include <quire/quire.h>
import "C"

// Message is one of a conversation. Role is "system", "user" or "assistant".
type Message struct {
	Role string `json:"role"`
	Text string `json:"text"`
}

// ChatTemplate is a known template.
type ChatTemplate struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// ChatTemplates are the known ones.
func ChatTemplates() ([]ChatTemplate, error) {
	list, err := decoded[struct{ Templates []ChatTemplate }](text(none,
		func(_ nothing, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_chat_get_list(buf, cap, needed, e)
		}))
	return list.Templates, err
}

// ChatTemplate is the name of the checkpoint's own template. Errors: ErrNotFound (it has none), ErrUnsupported (one that is
// not known).
func (t *Tokenizer) ChatTemplate() (string, error) {
	return text(t.ref, func(p *C.quire_tokenizer, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_tokenizer_get_chat_template(p, buf, cap, needed, e)
	})
}

// renderedLength is enough for the messages in most templates.
func renderedLength(messages []Message) int {
	n := 256
	for _, m := range messages {
		n += len(m.Role) + len(m.Text) + 64
	}
	return n
}

// RenderChat is a conversation as one text, for looking at. options may be nil.
func (t *Tokenizer) RenderChat(messages []Message, options *ChatOptions) (string, error) {
	var pins pins
	defer pins.free()
	data, n := pins.messages(messages)
	c := options.inC(&pins)
	bytes, err := guessed[byte](t.ref, renderedLength(messages),
		func(p *C.quire_tokenizer, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_tokenizer_render_chat(p, data, n, c, buf, cap, needed, e)
		})
	return string(bytes), err
}

// EncodeChat is a conversation as ids. options may be nil.
func (t *Tokenizer) EncodeChat(messages []Message, options *ChatOptions) ([]int32, error) {
	var pins pins
	defer pins.free()
	data, n := pins.messages(messages)
	c := options.inC(&pins)
	return guessed[int32](t.ref, renderedLength(messages)/2,
		func(p *C.quire_tokenizer, buf *C.int32_t, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_tokenizer_encode_chat(p, data, n, c, buf, cap, needed, e)
		})
}

// FeedMessages queues messages: the first ones of an empty session, or more behind messages or behind the answer to them.
// options may be nil: the checkpoint's own template, in a session that holds messages theirs.
func (s *Session) FeedMessages(messages []Message, options *ChatOptions) error {
	var pins pins
	defer pins.free()
	data, n := pins.messages(messages)
	c := options.inC(&pins)
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		return C.quire_session_feed_messages(p, data, n, c, e)
	})
}
