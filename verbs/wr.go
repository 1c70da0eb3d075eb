package verbs

import (
	"fmt"
	"strconv"
	"strings"
)

// Opcode is the operation of a send work request (enum ibv_wr_opcode).
type Opcode uint32

// The operations.
const (
	OpRDMAWrite        Opcode = 0
	OpRDMAWriteWithImm Opcode = 1
	OpSend             Opcode = 2
	OpSendWithImm      Opcode = 3
	OpRDMARead         Opcode = 4
	OpAtomicCmpAndSwp  Opcode = 5
	OpAtomicFetchAdd   Opcode = 6
)

var opcodeNames = [...]string{
	OpRDMAWrite:        "RDMA_WRITE",
	OpRDMAWriteWithImm: "RDMA_WRITE_WITH_IMM",
	OpSend:             "SEND",
	OpSendWithImm:      "SEND_WITH_IMM",
	OpRDMARead:         "RDMA_READ",
	OpAtomicCmpAndSwp:  "ATOMIC_CMP_AND_SWP",
	OpAtomicFetchAdd:   "ATOMIC_FETCH_AND_ADD",
}

// String returns the verbs name of the operation.
func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return "opcode " + strconv.FormatUint(uint64(o), 10)
}

// Valid reports whether o is an operation that this package knows.
func (o Opcode) Valid() bool { return int(o) < len(opcodeNames) }

// IsAtomic reports whether o is an atomic.
func (o Opcode) IsAtomic() bool { return o == OpAtomicCmpAndSwp || o == OpAtomicFetchAdd }

// IsSend reports whether o consumes a receive and its memory: SEND, with or without immediate.
func (o Opcode) IsSend() bool { return o == OpSend || o == OpSendWithImm }

// HasImm reports whether o carries an immediate.
func (o Opcode) HasImm() bool { return o == OpRDMAWriteWithImm || o == OpSendWithImm }

// WCOpcode is the operation of a successful completion (enum ibv_wc_opcode).
type WCOpcode uint32

// The operations of successful completions. A receive has bit 7 set.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129

	// WCUnknown is not a verbs value. It stands in a failed completion that does not say which
	// operation it ends.
	WCUnknown WCOpcode = 64
)

// IsRecv reports whether the completion ends a receive. Call it only if the status is success.
func (o WCOpcode) IsRecv() bool { return o&WCRecv != 0 }

// String returns the verbs name.
func (o WCOpcode) String() string {
	switch o {
	case WCSend:
		return "SEND"
	case WCRDMAWrite:
		return "RDMA_WRITE"
	case WCRDMARead:
		return "RDMA_READ"
	case WCCompSwap:
		return "COMP_SWAP"
	case WCFetchAdd:
		return "FETCH_ADD"
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImm:
		return "RECV_RDMA_WITH_IMM"
	case WCUnknown:
		return "unknown"
	}
	return "completion opcode " + strconv.FormatUint(uint64(o), 10)
}

// WCOpcode returns the opcode of a successful completion of a send work request.
func (o Opcode) WCOpcode() WCOpcode {
	switch o {
	case OpSend, OpSendWithImm:
		return WCSend
	case OpRDMARead:
		return WCRDMARead
	case OpAtomicCmpAndSwp:
		return WCCompSwap
	case OpAtomicFetchAdd:
		return WCFetchAdd
	}
	return WCRDMAWrite
}

// SendFlags modify a send work request (enum ibv_send_flags).
type SendFlags uint32

// Flags of a send work request.
const (
	// SendFence waits for the earlier reads and atomics of the queue pair before this request
	// starts.
	SendFence SendFlags = 1 << 0
	// SendSignaled asks for a completion.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited raises an event at a receiver that armed its CQ for solicited completions only.
	SendSolicited SendFlags = 1 << 2
	// SendInline takes the payload from SendWR.Inline during the post.
	SendInline SendFlags = 1 << 3
)

// String returns the names of the flags.
func (f SendFlags) String() string {
	return flagString(uint64(f), "FENCE", "SIGNALED", "SOLICITED", "INLINE")
}

// AccessFlags are rights to memory: those that a region grants, or those that a queue pair grants
// its peer (enum ibv_access_flags).
type AccessFlags uint32

// Access rights. Local read is always granted.
const (
	AccessLocalWrite   AccessFlags = 1 << 0
	AccessRemoteWrite  AccessFlags = 1 << 1
	AccessRemoteRead   AccessFlags = 1 << 2
	AccessRemoteAtomic AccessFlags = 1 << 3

	// AccessAll grants everything: handy for tests and for peers that trust each other.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic

	// AccessRelaxedOrdering is not a right of the peer but a permission for the NIC, for a memory
	// region only: its writes to the region may reach memory in any order (ibv_reg_mr(3); the PCIe
	// attribute of that name). On some hosts a NIC is more than twice as fast with it. It is
	// optional: NICs, kernels and libraries without it ignore it (Linux 5.6 and rdma-core 28 have
	// it), and software NICs do not need it.
	//
	// The meaning of a completion stays the same: once you have polled it, the data of its message,
	// and of earlier messages on its queue pair, is visible. There is no order before that. If your
	// program polls memory, do not poll such a region: a later write may be visible before an
	// earlier one, and the last byte of a message before its first. Keep the words that you poll in
	// a region of their own, without this flag: a write to such a word, sent on the same queue pair
	// after the data, does not overtake the data on PCIe.
	AccessRelaxedOrdering AccessFlags = 1 << 20
)

// String returns the names of the rights.
func (f AccessFlags) String() string {
	const relaxed = "RELAXED_ORDERING"
	if f == AccessRelaxedOrdering {
		return relaxed
	}
	s := flagString(uint64(f&^AccessRelaxedOrdering), "LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ",
		"REMOTE_ATOMIC")
	if f&AccessRelaxedOrdering != 0 {
		s += "|" + relaxed
	}
	return s
}

// Valid reports whether f has only rights that exist, and local write if the peer may write
// (ibv_reg_mr(3)).
func (f AccessFlags) Valid() bool {
	if f&^(AccessAll|AccessRelaxedOrdering) != 0 {
		return false
	}
	return f&(AccessRemoteWrite|AccessRemoteAtomic) == 0 || f&AccessLocalWrite != 0
}

// WCFlags tell which optional fields of a completion are set (enum ibv_wc_flags).
type WCFlags uint32

// WCWithImm says that the completion carries an immediate.
const WCWithImm WCFlags = 1 << 1

// flagString returns the names of the set bits of v, from bit 0 up; bits without a name print as a
// number.
func flagString(v uint64, names ...string) string {
	if v == 0 {
		return "0"
	}
	var parts []string
	for i, name := range names {
		if v&(1<<i) != 0 {
			parts = append(parts, name)
			v &^= 1 << i
		}
	}
	if v != 0 {
		parts = append(parts, "0x"+strconv.FormatUint(v, 16))
	}
	return strings.Join(parts, "|")
}

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
