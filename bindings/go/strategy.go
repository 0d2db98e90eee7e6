package quire

// #include <quire/quire.h>
import "C"

// Strategies need no model: an expression goes in, positions and descriptions come out.

// StrategyTerm is what an expression may be made of.
type StrategyTerm struct {
	Name string `json:"name"`
	// Kind is "visibility", "rope_scaling" or "base".
	Kind        string `json:"kind"`
	Description string `json:"description"`
	// Obstacle says why the term cannot be used with such a train_len or n_heads; empty where it can.
	Obstacle  string             `json:"obstacle"`
	Arguments []StrategyArgument `json:"arguments"`
}

// StrategyArgument is an argument of a term, for a settings dialog.
type StrategyArgument struct {
	Name string `json:"name"`
	// Type is "integer", "number", "choice" or "word".
	Type        string   `json:"type"`
	Required    bool     `json:"required"`
	Description string   `json:"description"`
	Min         *float64 `json:"min"`
	Max         *float64 `json:"max"`
	// Step: the value must be a multiple of it; 0: of nothing.
	Step    float64  `json:"step"`
	Choices []string `json:"choices"`
	// Default is a text or a number; nil where there is none, or where it follows from the session.
	Default any `json:"default"`
	// With is another argument that it goes with, such as "preset=vllm".
	With string `json:"with"`
}

// ListStrategies are all terms with their arguments, ranges and defaults, for models with this TrainLen and so on.
func ListStrategies(options *StrategyOptions) ([]StrategyTerm, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	list, err := decoded[struct{ Terms []StrategyTerm }](text(none,
		func(_ nothing, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_strategy_get_list(c, buf, cap, needed, e)
		}))
	return list.Terms, err
}

// expression is the options for a strategy, which is there where it is empty, too.
func (p *pins) expression(strategy string, options *StrategyOptions) *C.quire_strategy_options {
	c := options.inC(p)
	if c != nil {
		c.strategy, c.strategy_len = chars(strategy), length(strategy)
		p.pinner.Pin(c.strategy)
	}
	return c
}

// DescribeStrategy is the expression in canonical form with every default written out. options.TrainLen must be set.
// Errors: ErrBadStrategy (Offset: a byte column), ErrInvalidArgument, ErrUnsupported.
func DescribeStrategy(strategy string, options *StrategyOptions) (string, error) {
	var pins pins
	defer pins.free()
	c := pins.expression(strategy, options)
	return text(none, func(_ nothing, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_strategy_describe(c, buf, cap, needed, e)
	})
}

// StrategyPositions is a part of the matrix of distances that a strategy makes: view.Queries rows of view.Keys numbers, one
// after the other, NaN where a key is not visible. Experimental.
func StrategyPositions(strategy string, options *StrategyOptions, view *PositionView) ([]float64, error) {
	var pins pins
	defer pins.free()
	c, v := pins.expression(strategy, options), view.inC(&pins)
	return results[float64](none, func(_ nothing, buf *C.double, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_strategy_get_positions(c, v, buf, cap, needed, e)
	})
}
