package quire

// #include <quire/quire.h>
import "C"

import "unsafe"

// What a model and a session would take and do, asked before anything is loaded, or before a session is made. Options may
// be nil.

// CheckSession returns the error that a session with these options would fail with, for the model in path, of which the
// configuration alone is read; nil if it would work.
func (r *Runtime) CheckSession(path string, model *ModelOptions, session *SessionOptions) error {
	var pins pins
	defer pins.free()
	m, s := model.inC(&pins), session.inC(&pins)
	return r.ref.do(func(p *C.quire_runtime, e *cError) cStatus {
		return C.quire_runtime_check_session(p, chars(path), length(path), m, s, e)
	})
}

// DescribeStrategy is the canonical strategy that such a session would have.
func (r *Runtime) DescribeStrategy(path string, model *ModelOptions, session *SessionOptions) (string, error) {
	var pins pins
	defer pins.free()
	m, s := model.inC(&pins), session.inC(&pins)
	return text(r.ref, func(p *C.quire_runtime, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_runtime_describe_strategy(p, chars(path), length(path), m, s, buf, cap, needed, e)
	})
}

// PlanMemory says what the model in path and a session of so many tokens would take, from the headers of its files.
func (r *Runtime) PlanMemory(path string, model *ModelOptions, session *SessionOptions, tokens int64) (MemoryPlan, error) {
	var pins pins
	defer pins.free()
	m, s := model.inC(&pins), session.inC(&pins)
	var c C.quire_memory_plan
	var plan MemoryPlan
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := r.ref.do(func(p *C.quire_runtime, e *cError) cStatus {
		return C.quire_runtime_plan_memory(p, chars(path), length(path), m, s, C.int64_t(tokens), &c, e)
	})
	plan.fill(&c)
	return plan, err
}

// CheckSession returns the error that NewSession with these options would, and makes nothing.
func (m *Model) CheckSession(options *SessionOptions) error {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	return m.ref.do(func(p *C.quire_model, e *cError) cStatus { return C.quire_model_check_session(p, c, e) })
}

// DescribeStrategy is the canonical strategy that a session with these options would have.
func (m *Model) DescribeStrategy(options *SessionOptions) (string, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	return text(m.ref, func(p *C.quire_model, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_model_describe_strategy(p, c, buf, cap, needed, e)
	})
}

// EstimateRates measures for a moment, and says how long such a session would take to read so many tokens and to answer.
func (m *Model) EstimateRates(options *SessionOptions, tokens int64) (RateEstimate, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	var found C.quire_rate_estimate
	var estimate RateEstimate
	found.struct_size = C.uint32_t(unsafe.Sizeof(found))
	err := m.ref.do(func(p *C.quire_model, e *cError) cStatus {
		return C.quire_model_estimate_rates(p, c, C.int64_t(tokens), &found, e)
	})
	estimate.fill(&found)
	return estimate, err
}
