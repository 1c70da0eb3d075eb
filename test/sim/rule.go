package sim

import "ibverbx/test/internal/lab"

// The promises of a virtual queue pair, besides those of package lab.
const (
	ruleOneForOne    lab.Rule = "one completion for each request, and none for a refused one"
	ruleOrder        lab.Rule = "completions come in posting order"
	ruleNotification lab.Rule = "when a notification is reported, all earlier writes are in memory"
	ruleFirstError   lab.Rule = "the first error is kept, and no later request posts anything"
	ruleRouting      lab.Rule = "a completion belongs to the request that its work-request id names"
	ruleBackpressure lab.Rule = "a physical queue is never overrun"
	ruleWire         lab.Rule = "the wire format"
	ruleFence        lab.Rule = "a fence waits for earlier data"
	ruleCounters     lab.Rule = "counters add up"
	ruleRepeat       lab.Rule = "what goes out again is lost for certain, and was not reported"
	ruleNoticed      lab.Rule = "what is broken is noticed"
)
