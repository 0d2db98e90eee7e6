package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	quire "quire.dev/go"
)

type server struct {
	model                    *quire.Model
	name, strategy, template string
	maxTokens                int64
	started                  int64
	turns                    chan struct{}
}

type modelCard struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	card := modelCard{s.name, "model", s.started, "quire"}
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []modelCard{card}})
	})
	mux.HandleFunc("GET /v1/models/{name}", func(w http.ResponseWriter, r *http.Request) {
		if name := r.PathValue("name"); name != s.name {
			s.noModel(name).write(w)
			return
		}
		writeJSON(w, http.StatusOK, card)
	})
	mux.HandleFunc("POST /v1/chat/completions", s.complete)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		badRequest("", "there is no %s %s here", r.Method, r.URL.Path).with(http.StatusNotFound, "unknown_url").write(w)
	})
	return mux
}

func (s *server) noModel(name string) *failure {
	return badRequest("model", "there is no model %q; there is %q", name, s.name).with(http.StatusNotFound, "model_not_found")
}

// answer is what is said of one answer, whether it is streamed or not.
type answer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`

	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Message      *said   `json:"message,omitempty"`
	Delta        *said   `json:"delta,omitempty"`
	Logprobs     any     `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
}

type said struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
	Details          struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// complete answers POST /v1/chat/completions. A client that goes away, or that takes nothing of its answer any more, ends
// it: the request's context is then done.
func (s *server) complete(w http.ResponseWriter, r *http.Request) {
	body, failure := decode(w, r)
	if failure == nil && body.Model != s.name {
		failure = s.noModel(body.Model)
	}
	if failure == nil {
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
			failure = s.answer(r.Context(), w, body)
		case <-r.Context().Done():
			return
		}
	}
	if failure != nil {
		failure.write(w)
	}
}

// answer writes the answer, or returns why nothing was written.
func (s *server) answer(ctx context.Context, w http.ResponseWriter, body *request) *failure {
	options, failure := body.options(s.maxTokens)
	if failure != nil {
		return failure
	}
	messages, failure := body.messages()
	if failure != nil {
		return failure
	}
	session, err := s.model.NewSession(&quire.SessionOptions{Strategy: s.strategy})
	if err != nil {
		return failed(err)
	}
	defer session.Close()
	if err := session.FeedMessages(messages, &quire.ChatOptions{TemplateName: s.template}); err != nil {
		return failed(err)
	}
	u := &usage{}
	if _, u.PromptTokens, err = session.TokenCounts(); err != nil {
		return failed(err)
	}
	stream, err := session.Stream(ctx, options)
	if err != nil {
		return failed(err)
	}
	defer stream.Close()
	a := &answer{ID: "chatcmpl-" + rand.Text(), Created: time.Now().Unix(), Model: s.name}
	if body.Stream {
		return a.stream(w, stream, u, body.StreamOptions.IncludeUsage)
	}
	return a.whole(w, stream, u)
}

// count takes an event into account, and returns how the answer ended; nil if it has not.
func (u *usage) count(event quire.Event) *string {
	switch event.Kind {
	case quire.EventPrefill:
		u.Details.CachedTokens = event.Reused
	case quire.EventToken:
		u.CompletionTokens++
	case quire.EventEnd:
		u.TotalTokens = u.PromptTokens + u.CompletionTokens
		reason := "stop"
		if event.FinishReason == quire.FinishMaxTokens || event.FinishReason == quire.FinishReach {
			reason = "length"
		}
		return &reason
	}
	return nil
}

func (a *answer) whole(w http.ResponseWriter, stream *quire.Stream, u *usage) *failure {
	text := said{Role: "assistant"}
	var reason *string
	for event, err := range stream.Events() {
		if err != nil {
			return failed(err)
		}
		text.Content += event.Text
		reason = u.count(event)
	}
	a.Object, a.Usage = "chat.completion", u
	a.Choices = []choice{{Message: &text, FinishReason: reason}}
	writeJSON(w, http.StatusOK, a)
	return nil
}

// stream writes server-sent events. Nothing is written before the first of the library, so that an error has a status.
func (a *answer) stream(w http.ResponseWriter, stream *quire.Stream, u *usage, withUsage bool) *failure {
	a.Object = "chat.completion.chunk"
	control, started := http.NewResponseController(w), false
	send := func(value any) {
		data, _ := json.Marshal(value)
		fmt.Fprintf(w, "data: %s\n\n", data)
		_ = control.Flush()
	}
	for event, err := range stream.Events() {
		if err != nil && !started {
			return failed(err)
		}
		if err != nil {
			send(map[string]*failure{"error": failed(err)})
			return nil
		}
		if !started {
			w.Header().Set("Content-Type", "text/event-stream")
			a.Choices = []choice{{Delta: &said{Role: "assistant"}}}
			send(a)
			started = true
		}
		if reason := u.count(event); event.Text != "" || reason != nil {
			a.Choices = []choice{{Delta: &said{Content: event.Text}, FinishReason: reason}}
			send(a)
		}
	}
	if withUsage {
		a.Choices, a.Usage = []choice{}, u
		send(a)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
	return nil
}
