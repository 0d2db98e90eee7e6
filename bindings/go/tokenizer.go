package quire

// #include <quire/quire.h>
import "C"

// Tokenizer turns text into token ids and back. All methods may be called from several goroutines at once.
type Tokenizer struct {
	ref *reference[*C.quire_tokenizer]
}

func newTokenizer(pointer *C.quire_tokenizer, err error) (*Tokenizer, error) {
	if err != nil {
		return nil, err
	}
	return &Tokenizer{ref: own(pointer, func(p *C.quire_tokenizer) { C.quire_tokenizer_release(p) })}, nil
}

// Close gives the tokenizer back.
func (t *Tokenizer) Close() error { t.ref.drop(); return nil }

// Encode is the text as ids.
func (t *Tokenizer) Encode(text string, flags TextFlags) ([]int32, error) {
	return guessed[int32](t.ref, len(text)/2+8,
		func(p *C.quire_tokenizer, buf *C.int32_t, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_tokenizer_encode(p, chars(text), length(text), C.uint32_t(flags), buf, cap, needed, e)
		})
}

// Decode is the text of ids; bytes that are not UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, flags DecodeFlags) (string, error) {
	return text(t.ref, func(p *C.quire_tokenizer, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		data, n := items[C.int32_t](ids)
		return C.quire_tokenizer_decode(p, data, n, C.uint32_t(flags), buf, cap, needed, e)
	})
}

// TokenBytes are the bytes that one id stands for, which need not be UTF-8.
func (t *Tokenizer) TokenBytes(id int32) ([]byte, error) {
	return results[byte](t.ref, func(p *C.quire_tokenizer, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_tokenizer_get_token_bytes(p, C.int32_t(id), buf, cap, needed, e)
	})
}

// VocabSize is the number of ids; 0 of a closed tokenizer.
func (t *Tokenizer) VocabSize() int {
	p, err := t.ref.enter()
	if err != nil {
		return 0
	}
	defer t.ref.leave()
	return int(C.quire_tokenizer_get_vocab_size(p))
}

// BOS is the beginning-of-sequence id; false where there is none.
func (t *Tokenizer) BOS() (int32, bool) {
	p, err := t.ref.enter()
	if err != nil {
		return -1, false
	}
	defer t.ref.leave()
	id := int32(C.quire_tokenizer_get_bos(p))
	return id, id >= 0
}

// IsEOS says whether the id ends a text.
func (t *Tokenizer) IsEOS(id int32) bool {
	p, err := t.ref.enter()
	if err != nil {
		return false
	}
	defer t.ref.leave()
	return C.quire_tokenizer_is_eos(p, C.int32_t(id)) != 0
}
