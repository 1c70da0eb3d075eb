package verbs

import "fmt"

// SGE is a scatter-gather element: a piece of registered local memory.
type SGE struct {
	Addr   uint64 // address of the first byte, based on [MR.Addr]
	Length uint32 // bytes
	LKey   uint32 // local key of the region that contains the piece
}

// SendWR is a work request for the send queue.
type SendWR struct {
	ID     uint64 // comes back in the completion
	Opcode Opcode
	Flags  SendFlags
	// SGL is the local memory: the source of sends and writes, the destination of reads and atomics
	// (eight bytes). It may be empty for a message of no bytes.
	SGL []SGE
	// Inline is the payload itself when Flags has [SendInline]; SGL is then empty. It needs no
	// registration, and you may reuse it when the post returns.
	Inline []byte
	// Imm travels with the _WITH_IMM opcodes: a number in host order, big-endian on the wire.
	Imm  uint32
	RKey uint32 // remote key, for RDMA and atomics
	// RemoteAddr is the target's address, for RDMA and atomics; of atomics a multiple of 8.
	RemoteAddr uint64
	CompareAdd uint64 // atomics: the value to compare with, or to add
	Swap       uint64 // compare-and-swap: the value to store
}

// Bytes returns the length of the request's message.
func (wr *SendWR) Bytes() uint64 {
	if wr.Flags&SendInline != 0 {
		return uint64(len(wr.Inline))
	}
	var n uint64
	for i := range wr.SGL {
		n += uint64(wr.SGL[i].Length)
	}
	return n
}

// RecvWR is a work request for the receive queue. An RDMA write with immediate consumes one too,
// but never writes to its memory.
type RecvWR struct {
	ID  uint64 // comes back in the completion
	SGL []SGE  // where the payload goes; may be empty
}

// WC is a work completion. Unless Status is [StatusSuccess], only ID, Status, VendorErr and QPNum
// are defined.
type WC struct {
	ID        uint64
	Status    Status
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   uint32 // bytes received, or brought by a read or atomic
	Imm       uint32 // if Flags has WCWithImm; in host order
	QPNum     uint32 // the local queue pair; unique on its device only
	SrcQP     uint32
	Flags     WCFlags
}

// String returns a line for a log: "qp 17: receive 7 (RECV, 64 bytes) succeeded". For a failure it
// contains only the defined fields.
func (w WC) String() string {
	if w.Status != StatusSuccess {
		s := fmt.Sprintf("qp %d: work request %d failed: %s", w.QPNum, w.ID, w.Status.Error())
		if w.VendorErr != 0 {
			s += fmt.Sprintf(" (vendor code 0x%x)", w.VendorErr)
		}
		return s
	}
	s := fmt.Sprintf("qp %d: request %d (%v", w.QPNum, w.ID, w.Opcode)
	if w.Opcode.IsRecv() {
		s = fmt.Sprintf("qp %d: receive %d (%v, %d bytes", w.QPNum, w.ID, w.Opcode, w.ByteLen)
	}
	if w.Flags&WCWithImm != 0 {
		s += fmt.Sprintf(", immediate 0x%x", w.Imm)
	}
	return s + ") succeeded"
}
