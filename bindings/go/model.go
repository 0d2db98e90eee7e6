package quire

// #include <quire/quire.h>
import "C"

import (
	"context"
	"unsafe"
)

// Model has immutable weights, which any number of sessions share. All methods may be called from several goroutines at
// once.
type Model struct {
	ref       *reference[*C.quire_model]
	vocabSize int32
}

// Close gives the model back. Its sessions, adapters and tokenizers stay as they are, and keep the weights.
func (m *Model) Close() error { m.ref.drop(); return nil }

// Info has the model's dimensions.
func (m *Model) Info() (ModelInfo, error) {
	var c C.quire_model_info
	var info ModelInfo
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := m.ref.do(func(p *C.quire_model, e *cError) cStatus { return C.quire_model_get_info(p, &c, e) })
	info.fill(&c)
	return info, err
}

// Metadata is what the model says of itself, by key: "architecture", "rope_type", "rope_scaling", "tokenizer",
// "bos_token_id", "eos_token_ids", "sliding_window_layers", "sliding_window_tokens", "device", "device_reason", "identity" and
// "config.json".
func (m *Model) Metadata(key string) (string, error) {
	return text(m.ref, func(p *C.quire_model, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_model_get_metadata(p, chars(key), length(key), buf, cap, needed, e)
	})
}

// Tokenizer is the model's own.
func (m *Model) Tokenizer() (*Tokenizer, error) {
	var pointer *C.quire_tokenizer
	err := m.ref.do(func(p *C.quire_model, e *cError) cStatus { return C.quire_model_get_tokenizer(p, &pointer, e) })
	return newTokenizer(pointer, err)
}

// NewSession makes an empty session. options may be nil.
func (m *Model) NewSession(options *SessionOptions) (*Session, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	var pointer *C.quire_session
	err := m.ref.do(func(p *C.quire_model, e *cError) cStatus { return C.quire_session_create(p, c, &pointer, e) })
	return newSession(m, nil, pointer, err)
}

// AdapterSource is an adapter directory to be merged into the weights, with Scale times the adapter's own scale.
type AdapterSource struct {
	Path  string  `json:"path"`
	Scale float64 `json:"scale"`
}

// SessionAdapter is an adapter that a session uses, with Scale times the adapter's own scale: 1 as it was trained.
type SessionAdapter struct {
	Adapter *Adapter
	Scale   float64
}

// Adapter is a LoRA adapter of one model. All methods may be called from several goroutines at once.
type Adapter struct {
	ref *reference[*C.quire_adapter]
}

// LoadAdapter loads a PEFT directory for sessions of this model. options may be nil.
func (m *Model) LoadAdapter(ctx context.Context, path string, options *AdapterOptions) (*Adapter, error) {
	if options == nil {
		options = &AdapterOptions{}
	}
	var pins pins
	defer pins.free()
	a := &Adapter{}
	err := long(ctx, options.Progress, func(l *longCall) error {
		c := options.inC(&pins)
		c.cancel, c.progress, c.progress_user_data = l.cancel, l.progress, l.data
		var pointer *C.quire_adapter
		err := m.ref.do(func(p *C.quire_model, e *cError) cStatus {
			return C.quire_adapter_load(p, chars(path), length(path), c, &pointer, e)
		})
		if err != nil {
			return err
		}
		a.ref = own(pointer, func(p *C.quire_adapter) { C.quire_adapter_release(p) })
		l.undo = a.ref.drop
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Close gives the adapter back; sessions keep those that they use.
func (a *Adapter) Close() error { a.ref.drop(); return nil }

// Info has the adapter's sizes.
func (a *Adapter) Info() (AdapterInfo, error) {
	var c C.quire_adapter_info
	var info AdapterInfo
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := a.ref.do(func(p *C.quire_adapter, e *cError) cStatus { return C.quire_adapter_get_info(p, &c, e) })
	info.fill(&c)
	return info, err
}

// Metadata is "identity" or "base_model".
func (a *Adapter) Metadata(key string) (string, error) {
	return text(a.ref, func(p *C.quire_adapter, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_adapter_get_metadata(p, chars(key), length(key), buf, cap, needed, e)
	})
}
