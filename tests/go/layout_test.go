package tests

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	quire "quire.dev/go"
	"quire.dev/go/internal/layout"
)

// described is bindings/interface.json, as far as it matters here.
var described = func() (found struct {
	Version int
	Structs []struct {
		Name   string
		Size   uintptr
		Fields []struct {
			Name         string
			Offset, Size uintptr
		}
	}
	Functions []struct{ Name string }
}) {
	must(json.Unmarshal(readFile(filepath.Join(source, "bindings/interface.json")), &found))
	return
}()

// TestLayout compares the structs that cgo reads from quire.h with those that the interface describes.
func TestLayout(t *testing.T) {
	check(t, "the number of structs", len(layout.Structs), len(described.Structs))
	for i, wanted := range described.Structs {
		found := layout.Structs[i]
		check(t, "a struct", found.Name, wanted.Name)
		check(t, "the size of "+found.Name, found.Size, wanted.Size)
		check(t, "the number of fields of "+found.Name, len(found.Fields), len(wanted.Fields))
		for j, field := range wanted.Fields {
			check(t, found.Name+"."+field.Name, found.Fields[j], layout.Field(field))
		}
	}
	check(t, "the number of functions", len(layout.Functions), len(described.Functions))
	for i, function := range described.Functions {
		check(t, "a function", layout.Functions[i], function.Name)
	}
}

// TestPlainStructs compares Go's structs that are passed to C as they are with C's.
func TestPlainStructs(t *testing.T) {
	for _, value := range []any{quire.Label{}, quire.Sampler{}, quire.LogitBias{}, quire.TokenLogprob{}, quire.LabelAttention{},
		quire.Passage{}} {
		kind := reflect.TypeOf(value)
		for _, s := range layout.Structs {
			if strings.ReplaceAll(strings.TrimPrefix(s.Name, "quire_"), "_", "") != strings.ToLower(kind.Name()) {
				continue
			}
			check(t, "the size of "+s.Name, kind.Size(), s.Size)
			for i, field := range s.Fields {
				check(t, s.Name+"."+field.Name, kind.Field(i).Offset, field.Offset)
				check(t, "the size of "+s.Name+"."+field.Name, kind.Field(i).Type.Size(), field.Size)
				check(t, "a name of "+s.Name, kind.Field(i).Tag.Get("json"), field.Name)
			}
			value = nil
		}
		if value != nil {
			t.Errorf("there is no struct for %s", kind)
		}
	}
	check(t, "the size of a pointer", unsafe.Sizeof(uintptr(0)), 8)
}

func TestVersion(t *testing.T) {
	check(t, "the library's version", quire.VersionNumber(), quire.HeaderVersion)
	check(t, "the interface's version", described.Version, quire.HeaderVersion)
	check(t, "the version's text", quire.Version(), "0.1.0")
}

func TestNames(t *testing.T) {
	check(t, "a type", quire.TypeQ4K.String(), "q4_k")
	check(t, "an unknown type", quire.Type(99).String(), "99")
	check(t, "flags", (quire.StreamIgnoreEOS | quire.StreamCite | 1<<20).String(), "ignore_eos|cite|0x100000")
	check(t, "a status", quire.ErrOutOfMemory.Error(), "OUT_OF_MEMORY")
	check(t, "an unknown status", quire.Status(-99).String(), "UNKNOWN")
	var finish quire.Finish
	must(finish.UnmarshalText([]byte("stop_string")))
	check(t, "a finish", finish, quire.FinishStopString)
	check(t, "its text", string(try(finish.MarshalText())), "stop_string")
	if err := finish.UnmarshalText([]byte("sunset")); err == nil || !strings.Contains(err.Error(), "max_tokens") {
		t.Errorf("the error is %v", err)
	}
}
