package transport

import (
	"ibverbx"
	"ibverbx/verbs"
)

// templates are work requests that are filled as far as they always are the same, and the memory
// that posts use only while they run. Setting the other fields is cheaper than clearing 250 bytes.
// Worker.mu guards them.
//
// Invariant: between posts the fields Inline and SGL are nil, EveryRail is false, and Flags lacks
// SendFence, but for control, which only sendControl uses.
type templates struct {
	send, put, get, atomic, control [1]ibverbx.SendWR

	recv   []ibverbx.RecvWR  // as long as the longest batch of receives so far
	inline []byte            // a message that goes inline
	sgl    []ibverbx.Segment // pieces of a zcopy
}

func newTemplates(maxInline int) templates {
	t := templates{inline: make([]byte, max(maxInline, wireHeader))}
	t.send[0] = ibverbx.SendWR{Opcode: verbs.OpSend, Relaxed: true}
	t.put[0] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite}
	t.get[0] = ibverbx.SendWR{Opcode: verbs.OpRDMARead}
	t.control[0] = ibverbx.SendWR{Opcode: verbs.OpSend, Relaxed: true, Flags: verbs.SendSignaled |
		verbs.SendInline}
	return t
}
