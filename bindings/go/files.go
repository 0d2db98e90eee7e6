package quire

// #include <quire/quire.h>
import "C"

import (
	"context"
	"encoding/json"
	"strings"
)

// decoded is a text of JSON as a value.
func decoded[T any](text string, err error) (T, error) {
	var value T
	if err == nil {
		err = json.Unmarshal([]byte(text), &value)
	}
	return value, err
}

// ModelFiles says what the files of a model hold, of either format.
type ModelFiles struct {
	// Format is "gguf" or "safetensors".
	Format string   `json:"format"`
	Files  []string `json:"files"`
	// Metadata is that of a GGUF file; of a long array its length: {"length": n}.
	Metadata map[string]any `json:"metadata"`
	Tensors  []ModelTensor  `json:"tensors"`
}

// ModelTensor has a tensor's name and type as in its file, which is an index of ModelFiles.Files.
type ModelTensor struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"`
	Shape []int64 `json:"shape"`
	Bytes int64   `json:"bytes"`
	File  int     `json:"file"`
}

// DescribeModelFiles reads the headers of a model's files, and no weights.
func DescribeModelFiles(path string) (ModelFiles, error) {
	return decoded[ModelFiles](text(none, func(_ nothing, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_model_describe_files(chars(path), length(path), buf, cap, needed, e)
	}))
}

// Quantizations are the names of the recipes that Quantize knows.
func Quantizations() []string { return strings.Split(C.GoString(C.quire_get_quantizations()), ", ") }

// Quantize writes a model to the GGUF file out, which appears when it is complete. options may be nil.
func Quantize(ctx context.Context, path, out string, options *QuantizeOptions) error {
	if options == nil {
		options = &QuantizeOptions{}
	}
	var pins pins
	defer pins.free()
	return long(ctx, options.Progress, func(l *longCall) error {
		c := options.inC(&pins)
		c.cancel, c.progress, c.progress_user_data = l.cancel, l.progress, l.data
		return call(func(e *cError) cStatus {
			return C.quire_model_quantize(chars(path), length(path), chars(out), length(out), c, e)
		})
	})
}
