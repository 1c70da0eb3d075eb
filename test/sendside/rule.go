package sendside

import "ibverbx/test/internal/lab"

// The promises of the send side, besides those of package lab.
const (
	ruleOnce       lab.Rule = "what was accepted ends exactly once"
	ruleOrder      lab.Rule = "completions come in the order of the calls"
	ruleMessages   lab.Rule = "messages arrive once and in order"
	ruleNoEffect   lab.Rule = "what is refused has no effect"
	ruleResource   lab.Rule = "ErrNoResource is returned when, and only when, a resource is missing"
	ruleOvertaking lab.Rule = "nothing overtakes the queue"
	ruleBusy       lab.Rule = "a request is queued when the endpoint is out of resources, and only then"
	rulePlace      lab.Rule = "callbacks run inside progress, one at a time, pending ones first"
	ruleQueue      lab.Rule = "the queue is served in order"
	rulePurge      lab.Rule = "a purge hands every request back once, in order"
	ruleFair       lab.Rule = "no endpoint starves"
	ruleFlush      lab.Rule = "a flush ends after all operations before it"
	ruleFence      lab.Rule = "operations after a fence land after those before it"
	ruleAtomic     lab.Rule = "atomics are atomic"
	ruleCredits    lab.Rule = "credits are neither exceeded nor lost"
	ruleBalance    lab.Rule = "counts and buffers balance"
	ruleNoticed    lab.Rule = "a failure is reported once"
	ruleHostile    lab.Rule = "what no peer sends fails that endpoint, and is not handled"
)
