package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// A control message is a SEND of no bytes on a data rail, whose immediate is the message. Numbered
// messages are writes, so a receive that the rail keeps posted tells the two apart. The immediate:
//
//	31    28 27    24 23     16 15       0
//	| kind  |   0    |   rail  | arrived |
//
// It is said on every data rail that lives, so it needs no repetition: one of these must live for
// the connection to go on. To hear it twice changes nothing.
const (
	controlDown       = 1 // the rail is lost at the end that says so; arrived is final
	controlKindShift  = 28
	controlZero       = 0xf << 24
	controlRailShift  = 16
	controlRailMask   = 0xff
	controlCountMask  = 0xffff
	controlBytes      = 1<<32 - 1 // marks a control message in an inbox: no message is so long
	controlSlots      = 2         // control messages that a rail carries at a time
	controlRecvs      = 4         // receives that a data rail of Spray keeps posted for them
	maxFailoverWindow = 1 << 14   // messages outstanding on a rail: a count of 16 bits tells them apart
)

// railDownWord says that a rail is lost, and how many messages have arrived there.
func railDownWord(rail int, arrived uint16) uint32 {
	return controlDown<<controlKindShift | uint32(rail)<<controlRailShift | uint32(arrived)
}

// tellAll has a control message sent over every live data rail.
func (q *VirtualQP) tellAll(word uint32) {
	for _, rl := range q.send.rails.data {
		if !rl.down {
			rl.recovery.tell = append(rl.recovery.tell, word)
		}
	}
}

// untold reports whether a control message waits.
func (q *VirtualQP) untold() bool {
	for _, rl := range q.send.rails.data {
		if len(rl.recovery.tell) != 0 {
			return true
		}
	}
	return false
}

// sendControls posts the control messages that wait, as the rails have room.
func (q *VirtualQP) sendControls() {
	for _, rl := range q.send.rails.data {
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
		id := wrid(kindControl, rl.idBits, 0, rl.log.tail)
		wr := [1]verbs.SendWR{{ID: id, Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: word}}
		if _, err := rl.qp.PostSend(wr[:]); err != nil {
			rl.stats.refused++
			if !verbs.IsTransient(err) {
				q.refused(rl, err)
			}
			return
		}
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

// controlCompleted handles the completion of a control message on a live rail. It reports false
// when there is none.
func (q *VirtualQP) controlCompleted(rl *rail, wc *verbs.WC) (known bool) {
	if q.over == nil || rl.recovery.controls == 0 || !rl.log.complete(wc.ID) {
		return false
	}
	rl.recovery.controls--
	if wc.Status != verbs.StatusSuccess && !q.line.flushAsked(wc.Status) {
		f := noRequest(fmt.Errorf("control message: %w", wc.Status))
		f.VendorErr = wc.VendorErr
		q.recvFailed(rl, f)
	}
	return true
}

// controlArrived handles a control message of the peer.
func (q *VirtualQP) controlArrived(on *rail, word uint32) {
	rails, i := q.send.rails.all, int(word>>controlRailShift&controlRailMask)
	if word>>controlKindShift != controlDown || word&controlZero != 0 || i >= len(rails) || rails[i] == on {
		q.violation(on, fmt.Errorf("0x%08x is no control message", word))
		return
	}
	q.peerLost(rails[i], uint16(word&controlCountMask))
}
