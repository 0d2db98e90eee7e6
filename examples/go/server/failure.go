package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	quire "quire.dev/go"
)

// failure is an error as OpenAI's interface writes it.
type failure struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func badRequest(param, format string, arguments ...any) *failure {
	f := &failure{status: http.StatusBadRequest, Message: fmt.Sprintf(format, arguments...), Type: "invalid_request_error"}
	if param != "" {
		f.Param = &param
	}
	return f
}

func (f *failure) with(status int, code string) *failure {
	f.status, f.Code = status, &code
	return f
}

// failed is an error of the library.
func failed(err error) *failure {
	f := badRequest("messages", "%v", err)
	switch {
	case errors.Is(err, quire.ErrOverflow):
		return f.with(http.StatusBadRequest, "context_length_exceeded")
	case errors.Is(err, quire.ErrInvalidArgument), errors.Is(err, quire.ErrInvalidText), errors.Is(err, quire.ErrInvalidToken):
		f.Param = nil
		return f
	case errors.Is(err, quire.ErrOutOfMemory), errors.Is(err, quire.ErrBudget), errors.Is(err, quire.ErrClosed),
		errors.Is(err, quire.ErrCancelled):
		f.status = http.StatusServiceUnavailable
	default:
		f.status = http.StatusInternalServerError
	}
	f.Type, f.Param = "server_error", nil
	return f
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // who has gone reads no answer
}

func (f *failure) write(w http.ResponseWriter) {
	writeJSON(w, f.status, map[string]*failure{"error": f})
}
