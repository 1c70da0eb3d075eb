package sim

import (
	"fmt"

	"ibverbx/test/internal/lab"
)

type event = lab.Event[eventKind]

// eventKind says what an event is about.
type eventKind uint8

const (
	doStep     eventKind = iota // the fabric moves
	doPostSend                  // a batch of sends, perhaps with one that must be refused
	doPostRecv                  // a batch of receives
	doBurst                     // more sends than any queue or ring holds
	doPoll                      // take completions, in one of the ways there are
	doLook                      // ask for state, counters, cards
	doSlow                      // a fault that must not fail anything: delay, stall, refused for now
	doStrike                    // a fault that may
	doHeal                      // end a fault
	doReset
	doConnect // both ends, when both are in RESET
	doRenew   // both ends reset, and connected again; what was closed is made anew
	doDrain
	doClose
	doBreakRules // a peer breaks the rules
	doReplay     // completions of an earlier connection, and invented ones
	kinds
)

var kindNames = [kinds]string{"step", "post send", "post recv", "burst", "poll", "look", "slow", "strike",
	"heal", "reset", "connect", "renew", "drain", "close", "break rules", "replay"}

// String names the kind.
func (k eventKind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// weights are how often each kind happens in each mood.
var weights = [...][kinds]int{
	lab.Calm: {doStep: 400, doPostSend: 160, doPostRecv: 130, doBurst: 3, doPoll: 180, doLook: 8,
		doSlow: 12, doHeal: 12, doReset: 5, doConnect: 40, doRenew: 3, doDrain: 3, doClose: 1, doReplay: 3},
	lab.Faulty: {doStep: 400, doPostSend: 160, doPostRecv: 130, doBurst: 3, doPoll: 180, doLook: 8,
		doSlow: 8, doStrike: 14, doHeal: 14, doReset: 10, doConnect: 40, doRenew: 8, doDrain: 5, doClose: 3,
		doReplay: 4},
	lab.Hostile: {doStep: 400, doPostSend: 160, doPostRecv: 130, doBurst: 3, doPoll: 180, doLook: 8,
		doSlow: 5, doStrike: 4, doHeal: 10, doReset: 10, doConnect: 40, doRenew: 8, doDrain: 3, doClose: 2,
		doBreakRules: 14, doReplay: 10},
}
