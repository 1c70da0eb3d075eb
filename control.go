package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// A control message is a SEND of no bytes, whose immediate is the message, a word. Numbered
// messages are writes, so a receive that the rail keeps posted tells the two apart:
//
//	31    28 27    24 23     16 15       0
//	| kind  | epoch |   rail  |  count  |
//
// Words are said on every data rail that lives, and those that may not have been heard again on one
// that comes back (VirtualQP.tellAgain): one of these must live for the connection to go on. To
// hear a word twice changes nothing.
const (
	controlDown   = 1 + iota // the rail is lost at the end that says so; count messages have arrived
	controlUp                // the leader would bring the rail back in this epoch; count is its PSN
	controlReady             // the follower's queue pair waits in this epoch; count is its PSN
	controlGo                // said over the rail itself: it is live
	controlServe             // the rail, of this epoch, is no longer in service, but rail count is
	controlServed            // the receives are posted there
)

const (
	epochMask         = 0xf
	controlBytes      = 1<<32 - 1 // marks a control message in an inbox: no message is so long
	controlSlots      = 2         // control messages that a rail carries at a time
	controlRecvs      = 32        // receives that a data rail of Spray keeps posted for them
	maxFailoverWindow = 1 << 14   // messages outstanding on a rail: a count of 16 bits tells them apart
)

// errNoControl is what a peer says that makes no sense.
var errNoControl = errors.New("no control message")

// word is a control message.
type word struct {
	kind, rail int
	epoch      uint8
	count      uint16
}

func (w word) bits() uint32 {
	return uint32(w.kind)<<28 | uint32(w.epoch&epochMask)<<24 | uint32(w.rail)<<16 | uint32(w.count)
}

func wordOf(bits uint32) word {
	return word{int(bits >> 28), int(bits >> 16 & 0xff), uint8(bits >> 24 & epochMask), uint16(bits)}
}

// tellAll has a control message sent over every live data rail.
func (q *VirtualQP) tellAll(w word) {
	for _, rl := range q.send.rails.data {
		if !rl.down {
			rl.recovery.say(w)
		}
	}
}

// say has a control message sent over the rail. One that waits is not added again: a peer that asks
// without end and takes no answer must not fill the memory.
func (v *recovery) say(w word) {
	if bits := w.bits(); !slices.Contains(v.tell, bits) {
		v.tell = append(v.tell, bits)
	}
}

// unheard reports whether a control message waits, or is on its way.
func (q *VirtualQP) unheard() bool {
	for _, rl := range q.send.rails.all {
		if v := rl.recovery; len(v.tell) != 0 || v.controls != 0 {
			return true
		}
	}
	return false
}

// untold reports whether a control message waits.
func (q *VirtualQP) untold() bool {
	for _, rl := range q.send.rails.all {
		if len(rl.recovery.tell) != 0 {
			return true
		}
	}
	return false
}

// sendControls posts the control messages that wait, as the rails have room.
func (q *VirtualQP) sendControls() {
	for _, rl := range q.send.rails.all {
		if len(rl.recovery.tell) != 0 && !q.ending() {
			q.sendControlsOn(rl)
		}
	}
}

// sendControlsOn posts a rail's control messages. They are not staged: they go past the rail's
// limit. What is staged has been logged ahead of them, so it must be out first.
func (q *VirtualQP) sendControlsOn(rl *rail) {
	v := rl.recovery
	for len(v.tell) != 0 && rl.staged() == 0 && v.controls < controlSlots {
		word := v.tell[0]
		id := wrid.New(wrid.Control, rl.idBits, 0, rl.log.tail)
		wr := [1]verbs.SendWR{{ID: id, Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: word}}
		if _, err := rl.qp.PostSend(wr[:]); err != nil {
			rl.stats.refused++
			if !verbs.IsTransient(err) {
				q.refused(rl, err)
			}
			return
		}
		v.noteWord(rl.log.messages)
		rl.log.pushMessage(id)
		v.controls++
		v.tell = v.tell[:copy(v.tell, v.tell[1:])]
	}
}

// refused handles a queue pair's permanent refusal of a control message.
func (q *VirtualQP) refused(rl *rail, err error) {
	if refusalLosesRail(err) && q.survives(rl) {
		q.loseRail(rl, err)
		return
	}
	q.recvFailed(rl, noRequest(fmt.Errorf("control message: %w", err)))
}

// controlCompleted handles the completion of a control message on a rail that works. It reports
// false when there is none.
func (q *VirtualQP) controlCompleted(rl *rail, wc *verbs.WC) (known bool) {
	if q.failover == nil || rl.recovery.controls == 0 || !rl.log.complete(wc.ID) {
		return false
	}
	rl.recovery.controls--
	switch {
	case wc.Status == verbs.StatusSuccess:
		if rl.recovery.stage == railProbing {
			q.goLive(rl)
		}
	case !q.line.flushAsked(wc.Status):
		f := noRequest(fmt.Errorf("control message: %w", wc.Status))
		f.VendorErr = wc.VendorErr
		q.recvFailed(rl, f)
	}
	return true
}

// controlArrived handles a control message of the peer.
func (q *VirtualQP) controlArrived(on *rail, bits uint32) {
	w, rails, err := wordOf(bits), q.send.rails.all, errNoControl
	if w.rail < len(rails) && (rails[w.rail] == on) == (w.kind == controlGo) {
		err = q.obey(rails[w.rail], w)
	}
	if err != nil {
		q.violation(on, fmt.Errorf("0x%08x: %w", bits, err))
	}
}

// obey does what a control message says of a rail.
func (q *VirtualQP) obey(rl *rail, w word) error {
	switch w.kind {
	case controlDown:
		q.peerLost(rl, w)
	case controlUp:
		q.askedUp(rl, w)
	case controlReady:
		q.peerReady(rl, w)
	case controlGo:
		if rl.recovery.stage == railReady {
			q.goLive(rl)
		}
	case controlServe:
		return q.serve(rl, w)
	case controlServed:
		q.served(rl, w)
	default:
		return errNoControl
	}
	return nil
}
