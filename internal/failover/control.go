package failover

import (
	"errors"
	"slices"
)

// A control message is a SEND of no bytes with this immediate:
//
//	31    28 27    24 23     16 15       0
//	| kind  | epoch |   rail  |  count  |
//
// GO travels on the rail that it concerns. Any other travels on every live data rail, and again on
// one that comes back, if the peer may not have received it (Protocol.repeatControls): one of these
// rails must live for the connection to continue. A second copy changes nothing.
const (
	controlDown   = 1 + iota // the sender has lost the rail; count messages have arrived there
	controlUp                // the leader asks to bring the rail back in this epoch; count is its PSN
	controlReady             // the follower's queue pair waits in this epoch; count is its PSN
	controlGo                // travels on the rail itself: it is live
	controlServe             // rail count serves in place of the rail, lost in this epoch
	controlServed            // the follower has posted its receives there
)

const (
	epochMask = 0xf
	// ControlSlots is how many control messages a rail carries at a time.
	ControlSlots = 2
	// MaxOutstanding is how many messages may be outstanding on a rail beside them, and how many
	// receives: so a count of 16 bits is unambiguous.
	MaxOutstanding = 1 << 14
)

// errNoControl is the error of a control message that makes no sense.
var errNoControl = errors.New("no control message")

// control is a control message.
type control struct {
	kind, rail int
	epoch      uint8
	count      uint16
}

func (c control) bits() uint32 {
	return uint32(c.kind)<<28 | uint32(c.epoch&epochMask)<<24 | uint32(c.rail)<<16 | uint32(c.count)
}

func controlOf(bits uint32) control {
	return control{int(bits >> 28), int(bits >> 16 & 0xff), uint8(bits >> 24 & epochMask), uint16(bits)}
}

// broadcast queues a control message on every live data rail.
func (p *Protocol) broadcast(c control) {
	for _, r := range p.rails {
		if r.role == Data && r.stage == StageLive {
			r.enqueue(c)
		}
	}
}

// enqueue queues a control message on the rail. It does not add one that waits there already: a
// peer that asks without end, and takes no answer, must not fill the memory.
func (r *Rail) enqueue(c control) {
	if bits := c.bits(); !slices.Contains(r.queue, bits) {
		r.queue = append(r.queue, bits)
	}
}

// NextControl returns the next control message to post on the rail, if there is one and the rail
// has a slot for it.
func (r *Rail) NextControl() (bits uint32, ok bool) {
	if len(r.queue) == 0 || r.controls == ControlSlots {
		return 0, false
	}
	return r.queue[0], true
}

// ControlPosted records that the control message of NextControl was posted. place is its place
// among the messages of the rail, from 0 on.
func (r *Rail) ControlPosted(place uint64) {
	r.notePlace(place)
	r.controls++
	r.queue = r.queue[:copy(r.queue, r.queue[1:])]
}

// notePlace records the place of a control message, for covered, and drops old ones.
func (r *Rail) notePlace(place uint64) {
	const kept = 64
	if len(r.places) == kept {
		r.places = append(r.places[:0], r.places[1:]...)
	}
	r.places = append(r.places, place)
}

// HasControls reports whether the NIC holds control messages of the rail.
func (r *Rail) HasControls() bool { return r.controls != 0 }

// ControlCompleted handles the completion of a control message on a rail that works and has some.
func (p *Protocol) ControlCompleted(r *Rail, success bool) []Action {
	r.controls--
	if success && r.stage == StageProbing {
		return []Action{{Kind: DoGoLive, Rail: r.index}}
	}
	return nil
}

// ControlsQueued reports whether a control message waits to be posted, or an answer for the rails
// that are dying.
func (p *Protocol) ControlsQueued() bool {
	if len(p.heldAnswers) != 0 {
		return true
	}
	for _, r := range p.rails {
		if len(r.queue) != 0 {
			return true
		}
	}
	return false
}

// controlsOutstanding reports whether a control message waits or is on its way.
func (p *Protocol) controlsOutstanding() bool {
	for _, r := range p.rails {
		if len(r.queue) != 0 || r.controls != 0 {
			return true
		}
	}
	return false
}

// HandleControl handles a control message that has arrived on a rail. ending says that the
// connection has failed, or has stopped sending on purpose: then no rail is settled or brought
// back. An error is a violation of the protocol by the peer.
func (p *Protocol) HandleControl(on *Rail, bits uint32, ending bool) ([]Action, error) {
	c := controlOf(bits)
	if c.rail >= len(p.rails) || (p.rails[c.rail] == on) != (c.kind == controlGo) {
		return nil, errNoControl
	}
	r := p.rails[c.rail]
	switch {
	case c.kind < controlDown || c.kind > controlServed:
		return nil, errNoControl
	case c.kind == controlServe:
		return p.handleServe(r, c, ending)
	case c.kind == controlServed:
		p.handleServed(r, c)
	case c.kind == controlGo:
		if r.stage == StageReady {
			return []Action{{Kind: DoGoLive, Rail: r.index}}, nil
		}
	case ending:
	case c.kind == controlDown:
		return p.handleDown(r, c), nil
	case c.kind == controlUp:
		return p.handleUp(r, c), nil
	default:
		return p.handleReady(r, c), nil
	}
	return nil, nil
}
