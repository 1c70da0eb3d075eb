package transport

import (
	"fmt"

	"ibverbx/internal/flow"
)

// receiving is the receive direction of an endpoint: its receive buffers. What the peer may send is
// counted by peerState.credits.
//
// Invariant: each buffer is posted, in toRepost, with a handler, or kept by the program. While the
// endpoint serves, the credits that the peer has, those that can be given back, and the active
// messages whose buffer is not posted again add up to Config.AMBuffers.
type receiving struct {
	messages []Message // by the slot of their receive buffer
	toRepost []uint32  // slots of the buffers to post again
	bytes    uint64    // of the active messages that have arrived, without the transport's headers
	// attempt counts the attempts to connect that failed with receives posted. Those were flushed;
	// their completions have another number in their ids and are dropped.
	attempt uint16
	// ready reports that every buffer is posted or in toRepost.
	ready bool
	// repostListed reports that the endpoint is in chores.reposts.
	repostListed bool
	// aliveSinceProbe reports that a completion has come since keepAlive last looked for silent
	// peers.
	aliveSinceProbe bool
}

// inUse reports whether a handler or the program has a message, and so its buffer.
func (r *receiving) inUse() bool {
	for i := range r.messages {
		if r.messages[i].state != messagePosted {
			return true
		}
	}
	return false
}

// check returns how the invariant is broken; nil while it holds.
func (r *receiving) check(credits *flow.Ledger, buffers int) error {
	taken := 0
	for i := range r.messages {
		if m := &r.messages[i]; m.state != messagePosted || m.returnsCredit {
			taken++
		}
	}
	for _, slot := range r.toRepost {
		if r.messages[slot].state != messagePosted {
			return fmt.Errorf("receive buffer %d is to be posted again, and its message is in use", slot)
		}
	}
	if open := credits.Open(); open+credits.Due()+taken != buffers {
		return fmt.Errorf("the peer has %d credits, %d can be given back, %d messages hold one: %d in all",
			open, credits.Due(), taken, buffers)
	}
	return nil
}
