package sendside

import "ibverbx/test/internal/hunt"

// rule is a promise of the send side, or something else that must hold.
type rule string

const (
	ruleOnce       rule = "what was accepted ends exactly once"
	ruleOrder      rule = "completions come in the order of the calls"
	ruleMemory     rule = "memory belongs to an operation until it has ended, and to nobody's after"
	ruleContent    rule = "what was sent is what arrives"
	ruleMessages   rule = "messages arrive once and in order"
	ruleNoEffect   rule = "what is refused has no effect"
	ruleRefusal    rule = "what is refused is refused for the right reason"
	ruleResource   rule = "ErrNoResource is said when, and only when, something lacks"
	ruleOvertaking rule = "nothing overtakes the queue"
	ruleBusy       rule = "a request is queued when the endpoint is out of resources, and only then"
	rulePlace      rule = "callbacks run inside progress, one at a time, pending ones first"
	ruleQueue      rule = "the queue is served in order"
	rulePurge      rule = "a purge hands every request back once, in order"
	ruleFair       rule = "no endpoint starves"
	ruleFlush      rule = "a flush ends after all that was before it"
	ruleFence      rule = "a fence orders what comes after behind what came before"
	ruleAtomic     rule = "atomics are atomic"
	ruleCredits    rule = "credits are neither exceeded nor lost"
	ruleBalance    rule = "counts and buffers balance"
	ruleIsolation  rule = "nothing fails without a cause"
	ruleNoticed    rule = "a failure is told once"
	ruleHostile    rule = "what no peer sends fails that endpoint, and is not handled"
	ruleLiveness   rule = "nothing is lost or stuck"
	ruleLeak       rule = "everything can be closed, and nothing is left"
	rulePanic      rule = "no panic"
)

func (b *bed) violation(r rule, detail string) *hunt.Violation {
	return &hunt.Violation{Seed: b.plan.seed, Event: b.at, Rule: string(r), Detail: detail}
}

// broken ends the run.
func (b *bed) broken(r rule, format string, args ...any) {
	panic(b.violation(r, sprintf(format, args...)))
}

// must ends the run when something fails that must not.
func (b *bed) must(what string, err error) {
	if err != nil {
		b.broken(ruleLeak, "%s: %v", what, err)
	}
}
