package transport

// The work-request ids of a worker's virtual queue pairs say whose operation or buffer completes:
//
//	63      62      32 31             0
//	| recv | endpoint |      low       |
//
// low is the low half of an operation's number; of a receive, receiving.attempt and the slot of its
// buffer.
const (
	wridRecv     = 1 << 63
	wridShift    = 32
	attemptShift = 16
)

// sendID is the id of the next operation.
func (p *peerState) sendID() uint64 {
	return uint64(p.id)<<wridShift | uint64(uint32(p.sending.ops.Tail))
}

// recvID is the id of the receive into buffer slot.
func (p *peerState) recvID(slot uint32) uint64 {
	return wridRecv | uint64(p.id)<<wridShift | uint64(p.receiving.attempt)<<attemptShift | uint64(slot)
}

// wridEndpoint is the number of the endpoint in an id, wridLow its low half.
func wridEndpoint(id uint64) uint32 { return uint32(id &^ wridRecv >> wridShift) }
func wridLow(id uint64) uint32      { return uint32(id) }

// wridAttempt and wridSlot are the parts of a receive's low half.
func wridAttempt(id uint64) uint16 { return uint16(id >> attemptShift) }
func wridSlot(id uint64) uint32    { return uint32(uint16(id)) }
