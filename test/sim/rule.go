package sim

import (
	"fmt"

	"ibverbx/test/internal/hunt"
)

// rule is a promise of a virtual queue pair, as the design words it, or something else that must
// hold.
type rule string

const (
	ruleOneForOne    rule = "one completion for each request, and none for a refused one"
	ruleOrder        rule = "completions come in posting order"
	ruleBuffer       rule = "a buffer is the caller's again when, and only when, its completion is reported"
	ruleNotification rule = "a notification means that it is all there"
	ruleFirstError   rule = "the first error wins and stops the line"
	ruleRouting      rule = "a completion belongs to the request that its work-request id names"
	ruleIsolation    rule = "nothing fails without a cause, on any virtual queue pair"
	ruleBackpressure rule = "a physical queue is never overrun"
	ruleContent      rule = "what was sent is what arrives"
	ruleLiveness     rule = "nothing is lost or stuck"
	ruleWire         rule = "the wire format"
	ruleFence        rule = "a fence waits for earlier data"
	ruleCounters     rule = "counters add up"
	ruleNoticed      rule = "what is broken is noticed"
	ruleRefusal      rule = "bad input is refused with the right error"
	ruleLeak         rule = "everything can be closed, and nothing is left"
	rulePanic        rule = "no panic"
)

// Violation is a broken promise.
type Violation = hunt.Violation

// broken ends the run.
func (w *world) broken(r rule, format string, args ...any) {
	panic(&Violation{Seed: w.plan.seed, Event: w.at, Rule: string(r), Detail: fmt.Sprintf(format, args...)})
}

// must ends the run when something fails that must not.
func (w *world) must(what string, err error) {
	if err != nil {
		w.broken(ruleLeak, "%s: %v", what, err)
	}
}
