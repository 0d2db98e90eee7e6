package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	quire "quire.dev/go"
)

// TestConformance does the steps of tests/conformance/*.json. The README.md there says what they are.
func TestConformance(t *testing.T) {
	files := try(filepath.Glob(filepath.Join(source, "tests/conformance/*.json")))
	cases := 0
	for _, path := range files {
		var file struct {
			About, Model string
			Cases        []struct {
				Name  string
				Steps []json.RawMessage
			}
		}
		strictly(t, readFile(path), &file)
		runtime := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1}))
		model := try(runtime.LoadModel(t.Context(), filepath.Join(source, file.Model), nil))
		for _, described := range file.Cases {
			cases++
			t.Run(strings.TrimSuffix(filepath.Base(path), ".json")+"/"+described.Name, func(t *testing.T) {
				c := &conformanceCase{model: model, sessions: map[string]*quire.Session{}, folder: t.TempDir()}
				for _, text := range described.Steps {
					c.check(t, text)
				}
				for _, s := range c.sessions {
					must(s.Close())
				}
			})
		}
		must(runtime.Close())
	}
	if cases < 50 {
		t.Fatalf("only %d cases in %v", cases, files)
	}
}

// strictly decodes JSON of which every key is known, numbers as they are written.
func strictly(t *testing.T, text []byte, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func (c *conformanceCase) check(t *testing.T, text []byte) {
	t.Helper()
	var step conformanceStep
	strictly(t, text, &step)
	do := conformanceSteps[step.Do]
	if do == nil {
		t.Fatalf("%s: an unknown step", text)
	}
	result, err := do(c, t, &step)
	if step.Error != nil {
		failure := (*quire.Error)(nil)
		if !errors.As(err, &failure) || failure.Code.String() != step.Error.Status ||
			!strings.Contains(failure.Message, step.Error.Message) ||
			(step.Error.Offset != nil && failure.Offset != *step.Error.Offset) {
			t.Fatalf("%s: the error is %#v", text, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var found map[string]any
	strictly(t, try(json.Marshal(result)), &found)
	for key, wanted := range step.Expect {
		if value, there := found[key]; !there || !agree(value, wanted) {
			t.Fatalf("%s: %s is %v", text, key, value)
		}
	}
}

// agree compares two values of JSON; numbers that are written with a fraction need only be near.
func agree(found, wanted any) bool {
	if list, ok := wanted.([]any); ok {
		values, _ := found.([]any)
		for i := range list {
			if i >= len(values) || !agree(values[i], list[i]) {
				return false
			}
		}
		return len(values) == len(list)
	}
	number, ok := wanted.(json.Number)
	value, same := found.(json.Number)
	if !ok || !same || !strings.ContainsAny(number.String(), ".eE") {
		return reflect.DeepEqual(found, wanted)
	}
	a, b := try(value.Float64()), try(number.Float64())
	return math.Abs(a-b) <= 1e-4*max(1, math.Abs(a), math.Abs(b))
}
