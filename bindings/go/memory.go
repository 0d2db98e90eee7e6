package quire

// #include <quire/quire.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// noBytes is what an empty text points to: NULL would say that there is none.
var noBytes [1]byte

// chars and length are a text as C takes it: C reads it during the call and keeps no pointer to it.
func chars(s string) *C.char {
	if s == "" {
		return (*C.char)(unsafe.Pointer(&noBytes[0]))
	}
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s)))
}

func length(s string) C.size_t { return C.size_t(len(s)) }

func textOf(data *C.char, n C.size_t) string {
	if n == 0 {
		return ""
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(data)), n))
}

// copied is a Go slice with what C has; G and T have the same layout.
func copied[G, T any](data *T, n C.size_t) []G {
	if n == 0 {
		return nil
	}
	return append([]G(nil), unsafe.Slice((*G)(unsafe.Pointer(data)), n)...)
}

// items is a slice as C takes it during a call; G and T have the same layout.
func items[T, G any](s []G) (*T, C.size_t) {
	if len(s) == 0 {
		return nil, 0
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(s))), C.size_t(len(s))
}

// pins keeps what options point to in its place until free, after the call.
type pins struct {
	pinner   runtime.Pinner
	adapters []*reference[*C.quire_adapter]
}

func (p *pins) free() {
	p.pinner.Unpin()
	for _, adapter := range p.adapters {
		adapter.leave()
	}
}

// pinned is a slice as C takes it in a struct.
func pinned[T, G any](p *pins, s []G) (*T, C.size_t) {
	if len(s) == 0 {
		return nil, 0
	}
	p.pinner.Pin(unsafe.SliceData(s))
	return items[T](s)
}

// text is NULL for an empty one: options have their default then.
func (p *pins) text(s string) (*C.char, C.size_t) {
	if s == "" {
		return nil, 0
	}
	p.pinner.Pin(unsafe.StringData(s))
	return chars(s), length(s)
}

// texts is NULL for nil, and not NULL for an empty slice.
func (p *pins) texts(texts []string) (*C.quire_text, C.size_t) {
	if texts == nil {
		return nil, 0
	}
	array := make([]C.quire_text, len(texts), len(texts)+1)
	for i, s := range texts {
		array[i].data, array[i].len = p.text(s)
	}
	p.pinner.Pin(unsafe.SliceData(array))
	return unsafe.SliceData(array), C.size_t(len(array))
}

func (p *pins) adapterSources(sources []AdapterSource) (*C.quire_adapter_source, C.size_t) {
	array := make([]C.quire_adapter_source, len(sources))
	for i, source := range sources {
		array[i].path, array[i].path_len = p.text(source.Path)
		array[i].scale = C.double(source.Scale)
	}
	return pinned[C.quire_adapter_source](p, array)
}

// sessionAdapters has NULL for one that is closed or nil, which C refuses.
func (p *pins) sessionAdapters(adapters []SessionAdapter) (*C.quire_session_adapter, C.size_t) {
	array := make([]C.quire_session_adapter, len(adapters))
	for i, a := range adapters {
		array[i].scale = C.double(a.Scale)
		if a.Adapter == nil {
			continue
		}
		if pointer, err := a.Adapter.ref.enter(); err == nil {
			array[i].adapter = pointer
			p.adapters = append(p.adapters, a.Adapter.ref)
		}
	}
	return pinned[C.quire_session_adapter](p, array)
}

func (p *pins) messages(messages []Message) (*C.quire_message, C.size_t) {
	array := make([]C.quire_message, len(messages))
	for i, m := range messages {
		array[i].role, array[i].role_len = p.text(m.Role)
		array[i].text, array[i].text_len = p.text(m.Text)
	}
	return pinned[C.quire_message](p, array)
}
