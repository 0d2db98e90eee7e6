package tests

import (
	"encoding/json"
	"path/filepath"
	"testing"

	quire "quire.dev/go"
)

// conformanceCase is what the steps of one case work on.
type conformanceCase struct {
	model    *quire.Model
	sessions map[string]*quire.Session
	folder   string
}

// conformanceStep has the keys of all steps.
type conformanceStep struct {
	Do, As, Session, Text, From, To, Template string
	Strategy                                  string
	Reuse                                     quire.EditReuse
	Options                                   json.RawMessage
	AddBOS                                    *bool `json:"add_bos"`
	ParseSpecial                              bool  `json:"parse_special"`
	First                                     any
	N                                         int64
	IDs                                       []int32
	Labels                                    [][3]int64
	Messages                                  [][2]string
	Answer                                    *bool
	Take                                      int
	Tokens                                    int64 `json:"n_tokens"`
	Token                                     int64
	Most                                      int32
	TrainLen                                  int64 `json:"train_len"`
	Expect                                    map[string]any
	Error                                     *struct {
		Status, Message string
		Offset          *int64
	}
}

func (s *conformanceStep) flags() quire.TextFlags {
	var flags quire.TextFlags
	if s.ParseSpecial {
		flags |= quire.TextParseSpecial
	}
	if s.AddBOS != nil && !*s.AddBOS {
		flags |= quire.TextNoBOS
	}
	return flags
}

func (s *conformanceStep) first() int64 { return try(s.First.(json.Number).Int64()) }

type result map[string]any

func counts(s *quire.Session, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	read, pending, err := s.TokenCounts()
	return result{"n_tokens": read, "n_pending": pending}, err
}

func as(key string, value any, err error) (any, error) { return result{key: value}, err }

type doStep func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error)

// on is a step that works on a session.
func on(f func(s *quire.Session, step *conformanceStep) (any, error)) doStep {
	return func(c *conformanceCase, t *testing.T, step *conformanceStep) (any, error) {
		s := c.sessions[step.Session]
		if s == nil {
			t.Fatalf("there is no session %q", step.Session)
		}
		return f(s, step)
	}
}

var conformanceSteps = map[string]doStep{
	"encode": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		flags := s.flags()
		if s.First == false {
			flags |= quire.TextContinue
		}
		ids, err := try(c.model.Tokenizer()).Encode(s.Text, flags)
		return as("ids", ids, err)
	},
	"decode": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		text, err := try(c.model.Tokenizer()).Decode(s.IDs, 0)
		return as("text", text, err)
	},
	"describe_strategy": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		text, err := quire.DescribeStrategy(s.Strategy, &quire.StrategyOptions{TrainLen: s.TrainLen})
		return as("canonical", text, err)
	},
	"session": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		options := quire.SessionOptions{Strategy: s.Strategy}
		if s.Options != nil {
			strictly(t, s.Options, &options)
		}
		made, err := c.model.NewSession(&options)
		if err == nil {
			c.sessions[s.As] = made
		}
		return nil, err
	},
	"load": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		loaded, err := c.model.LoadSession(filepath.Join(c.folder, s.From), nil)
		if err == nil {
			c.sessions[s.As] = loaded
		}
		return counts(loaded, err)
	},
	"fork": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		fork, err := c.sessions[s.Session].Fork()
		c.sessions[s.As] = fork
		return nil, err
	},
	"save": func(c *conformanceCase, t *testing.T, s *conformanceStep) (any, error) {
		return nil, c.sessions[s.Session].Save(t.Context(), filepath.Join(c.folder, s.To), nil)
	},
	"stream": streamStep,
	"feed": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		return counts(s, s.FeedText(step.Text, step.flags()))
	}),
	"feed_tokens": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		return counts(s, s.FeedTokens(step.IDs))
	}),
	"feed_labelled": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		var labels []quire.Label
		for _, l := range step.Labels {
			labels = append(labels, quire.Label{Begin: l[0], End: l[1], ID: l[2]})
		}
		return counts(s, s.FeedLabelled(step.Text, 0, labels))
	}),
	"feed_messages": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		options := quire.ChatOptions{TemplateName: step.Template}
		if step.Answer != nil && !*step.Answer {
			options.Flags |= quire.ChatNoAnswer
		}
		var messages []quire.Message
		for _, m := range step.Messages {
			messages = append(messages, quire.Message{Role: m[0], Text: m[1]})
		}
		return counts(s, s.FeedMessages(messages, &options))
	}),
	"counts": on(func(s *quire.Session, step *conformanceStep) (any, error) { return counts(s, nil) }),
	"tokens": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		ids, err := s.Tokens()
		first := min(int(step.first()), len(ids))
		return as("ids", ids[first:min(first+int(step.N), len(ids))], err)
	}),
	"truncate": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		return counts(s, s.Truncate(step.Tokens))
	}),
	"discard_pending": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		return counts(s, s.DiscardPending())
	}),
	"reset": on(func(s *quire.Session, step *conformanceStep) (any, error) { return counts(s, s.Reset()) }),
	"edit": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		return s.EditText(step.Text, &quire.EditOptions{Reuse: step.Reuse})
	}),
	"scores": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		values, err := s.Scores(step.first(), step.N)
		return as("values", values, err)
	}),
	"argmax": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		logits, err := s.Logits(step.Token, 1)
		best := 0
		for i, value := range logits {
			if value > logits[best] {
				best = i
			}
		}
		return as("id", best, err)
	}),
	"stats": on(func(s *quire.Session, step *conformanceStep) (any, error) { return s.Stats() }),
	"strategy": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		text, err := s.Strategy()
		return as("canonical", text, err)
	}),
	"label_attention": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		labels, err := s.LabelAttention()
		return as("shares", shares(labels), err)
	}),
	"label_shares": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		labels, err := s.LabelShares(-1, 0)
		return as("shares", shares(labels), err)
	}),
	"passages": on(func(s *quire.Session, step *conformanceStep) (any, error) {
		passages, err := s.Passages(-1, 0, step.Most)
		found := []any{}
		for _, p := range passages {
			found = append(found, []int64{p.Feed, p.Begin, p.End, p.LabelID})
		}
		return as("passages", found, err)
	}),
	"close": on(func(s *quire.Session, step *conformanceStep) (any, error) { return nil, s.Close() }),
}

func shares(labels []quire.LabelAttention) []any {
	found := []any{}
	for _, label := range labels {
		found = append(found, []any{label.ID, label.Share})
	}
	return found
}

func streamStep(c *conformanceCase, t *testing.T, step *conformanceStep) (any, error) {
	var options struct {
		quire.StreamOptions
		Stop        []string
		IgnoreEOS   bool `json:"ignore_eos"`
		Score, Cite bool
		KeepLogits  bool `json:"keep_logits"`
	}
	strictly(t, step.Options, &options)
	options.StopStrings = options.Stop
	for flag, set := range map[quire.StreamFlags]bool{quire.StreamIgnoreEOS: options.IgnoreEOS, quire.StreamScore: options.Score,
		quire.StreamKeepLogits: options.KeepLogits, quire.StreamCite: options.Cite} {
		if set {
			options.Flags |= flag
		}
	}
	tokens, logprobs, text, kinds := []int32{}, []float32{}, "", []quire.EventKind{}
	var end quire.Event
	for event, err := range c.sessions[step.Session].Generate(t.Context(), &options.StreamOptions) {
		if err != nil {
			return nil, err
		}
		text += event.Text
		if len(kinds) == 0 || last(kinds) != event.Kind {
			kinds = append(kinds, event.Kind)
		}
		end = event
		if event.Kind == quire.EventToken {
			tokens, logprobs = append(tokens, event.Token), append(logprobs, event.Logprob)
			if len(tokens) == step.Take {
				break
			}
		}
	}
	return result{"tokens": tokens, "logprobs": logprobs, "text": text, "finish": end.FinishReason, "kinds": kinds,
		"stop_index": end.StopIndex, "end_token": end.Token, "n_tokens": end.SessionTokens}, nil
}
