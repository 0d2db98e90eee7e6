package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"

	quire "quire.dev/go"
)

// request is the body of POST /v1/chat/completions, as far as it is done here.
type request struct {
	Model               string             `json:"model"`
	Messages            []message          `json:"messages"`
	Stream              bool               `json:"stream"`
	StreamOptions       streamOptions      `json:"stream_options"`
	MaxTokens           *int64             `json:"max_tokens"`
	MaxCompletionTokens *int64             `json:"max_completion_tokens"`
	Temperature         *float32           `json:"temperature"`
	TopP                *float32           `json:"top_p"`
	FrequencyPenalty    float32            `json:"frequency_penalty"`
	PresencePenalty     float32            `json:"presence_penalty"`
	Seed                *int64             `json:"seed"`
	Stop                texts              `json:"stop"`
	LogitBias           map[string]float32 `json:"logit_bias"`

	// What is not done here is refused, rather than silently left out.
	N              *int64          `json:"n"`
	Logprobs       bool            `json:"logprobs"`
	Tools          []any           `json:"tools"`
	Functions      []any           `json:"functions"`
	ResponseFormat *responseFormat `json:"response_format"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type responseFormat struct {
	Type string `json:"type"`
}

type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// texts is one text, or a list of them.
type texts []string

func (t *texts) UnmarshalJSON(data []byte) error {
	var one *string
	if json.Unmarshal(data, &one) == nil {
		if one != nil {
			*t = texts{*one}
		}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(t))
}

// content is a text, or a list of parts that are texts.
type content string

func (c *content) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(c)) == nil {
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(data, &parts); err != nil {
		return fmt.Errorf("content must be a text or a list of parts")
	}
	for _, part := range parts {
		if part.Type != "text" {
			return fmt.Errorf("content of type %q is not supported", part.Type)
		}
		*c += content(part.Text)
	}
	return nil
}

// messages are those of the conversation as the library takes them.
func (r *request) messages() ([]quire.Message, *failure) {
	if len(r.Messages) == 0 {
		return nil, badRequest("messages", "there must be at least one message")
	}
	var all []quire.Message
	for i, m := range r.Messages {
		if m.Role == "developer" {
			m.Role = "system"
		}
		if m.Role != "system" && m.Role != "user" && m.Role != "assistant" {
			return nil, badRequest("messages", "messages[%d] has the role %q; known are system, developer, user and assistant", i, m.Role)
		}
		all = append(all, quire.Message{Role: m.Role, Text: string(m.Content)})
	}
	return all, nil
}

// options are those of the answer's stream.
func (r *request) options(maxTokens int64) (*quire.StreamOptions, *failure) {
	for param, given := range map[string]bool{"logprobs": r.Logprobs, "tools": len(r.Tools) > 0, "functions": len(r.Functions) > 0,
		"n":               r.N != nil && *r.N != 1,
		"response_format": r.ResponseFormat != nil && r.ResponseFormat.Type != "text"} {
		if given {
			return nil, badRequest(param, "%s is not supported", param)
		}
	}
	options := &quire.StreamOptions{MaxTokens: maxTokens, StopStrings: r.Stop, Seed: rand.Uint64(), MaxUndelivered: 4}
	if failure := setMaxTokens(options, "max_tokens", r.MaxTokens); failure != nil {
		return nil, failure
	}
	if failure := setMaxTokens(options, "max_completion_tokens", r.MaxCompletionTokens); failure != nil {
		return nil, failure
	}
	if r.Seed != nil {
		options.Seed = uint64(*r.Seed)
	}
	temperature, topP := float32(1), float32(1)
	if r.Temperature != nil {
		temperature = *r.Temperature
	}
	if r.TopP != nil {
		topP = *r.TopP
	}
	if temperature < 0 || temperature > 2 {
		return nil, badRequest("temperature", "temperature must be from 0 to 2")
	}
	if topP <= 0 || topP > 1 {
		return nil, badRequest("top_p", "top_p must be more than 0 and at most 1")
	}
	if r.FrequencyPenalty != 0 || r.PresencePenalty != 0 {
		options.Samplers = []quire.Sampler{{Kind: quire.SamplerPenalties, A: 1, B: r.FrequencyPenalty, C: r.PresencePenalty}}
	}
	if temperature == 0 {
		options.Samplers = append(options.Samplers, quire.Sampler{Kind: quire.SamplerTopK, N: 1})
	} else {
		options.Samplers = append(options.Samplers, quire.Sampler{Kind: quire.SamplerTemperature, A: temperature},
			quire.Sampler{Kind: quire.SamplerTopP, A: topP})
	}
	for id, bias := range r.LogitBias {
		token, err := strconv.ParseInt(id, 10, 32)
		if err != nil {
			return nil, badRequest("logit_bias", "%q is no token id", id)
		}
		options.LogitBias = append(options.LogitBias, quire.LogitBias{Token: int32(token), Bias: bias})
	}
	return options, nil
}

func setMaxTokens(options *quire.StreamOptions, param string, n *int64) *failure {
	if n == nil {
		return nil
	}
	if *n < 1 {
		return badRequest(param, "%s must be greater than 0", param)
	}
	options.MaxTokens = *n
	return nil
}

// decode reads a request's body.
func decode(w http.ResponseWriter, r *http.Request) (*request, *failure) {
	var body request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 256<<20)).Decode(&body); err != nil {
		return nil, badRequest("", "the body is not what was expected: %v", err)
	}
	return &body, nil
}
