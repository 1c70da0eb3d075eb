package sendside

import (
	"ibverbx"
	"ibverbx/transport"
)

// mistakes are calls with wrong arguments. The tests by hand show how each is refused; here they
// show that a refusal has no effect, whatever is under way.
var mistakes = []func(e *end) error{
	func(e *end) error { return e.ep.AMShort(0, nil, make([]byte, e.ep.Limits().AMShort+1)) },
	func(e *end) error { return e.ep.AMShort(amIDs, nil, nil) },
	func(e *end) error { return errorOf(e.ep.AMBcopy(0, nil, func(dst []byte) int { return len(dst) + 1 })) },
	func(e *end) error { return e.ep.AMZcopy(nil, 0, nil, ibverbx.Segment{Addr: 4096, Length: 8}) },
	func(e *end) error { return e.ep.PutShort(make([]byte, 8), e.remoteAt(arenaSize-7, 7)) },
	func(e *end) error {
		return errorOf(e.ep.PutBcopy(func([]byte) int { return -1 }, e.remoteAt(library, 8)))
	},
	func(e *end) error {
		return errorOf(e.ep.PutBcopy(func([]byte) int { return 9 }, e.remoteAt(library, 8)))
	},
	func(e *end) error {
		return errorOf(e.ep.PutZcopy(nil, e.remoteAt(library, 64), e.site.MR.Slice(arenaSize-8, 9)))
	},
	func(e *end) error { return errorOf(e.ep.GetBcopy(nil, make([]byte, 9), e.remoteAt(arenaSize-8, 8))) },
	func(e *end) error {
		return errorOf(e.ep.GetZcopy(nil, e.remoteAt(0, 64), ibverbx.Segment{Addr: 4096, Length: 8}))
	},
	func(e *end) error { return e.ep.FetchAdd(nil, nil, e.remoteAt(4, 8), 1) },
	func(e *end) error { return e.ep.CompareSwap(nil, nil, e.remoteAt(0, 4), 0, 1) },
	func(e *end) error { return e.ep.Connect(e.card) },
	func(e *end) error { return e.ep.Pending(&transport.Pending{}) },
	func(e *end) error { return e.site.worker.Handle(0, e.site.handle) },
}

// misuse makes one of the mistakes.
func (e *end) misuse() {
	w := e.w
	if !e.connected || e.ends() {
		return
	}
	i := w.Rng.IntN(len(mistakes))
	before := e.gauge()
	w.calling++
	err := mistakes[i](e)
	w.calling--
	w.Logf("  mistake %d: %v", i, err)
	if after := e.gauge(); err == nil || after != before {
		w.Broken(ruleNoEffect, "%v: mistake %d: %v; %+v before, %+v after", e, i, err, before, after)
	}
}
