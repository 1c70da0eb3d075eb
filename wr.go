package ibverbx

import (
	"fmt"
	"math/bits"
	"strconv"

	"ibverbx/verbs"
)

// SendWR is a virtual work request for the send direction.
//
// A write, read or WRITE_WITH_IMM may have no bytes: a doorbell, or a probe of the connection. Like
// any other it is sent, on one queue pair, and completes in its turn; a WRITE_WITH_IMM follows all
// earlier writes. It touches no memory, so you may leave out Local and Remote, and neither the
// library nor the NIC checks their keys and bounds (IBTA C9-88). The peer's queue pair must still
// grant the right ([ConnConfig].Access).
type SendWR struct {
	// ID comes back in the completion. It need not be unique.
	ID     uint64
	Opcode verbs.Opcode
	// Flags: with several queue pairs [verbs.SendSignaled] is required, also for a WRITE_WITH_IMM,
	// which the C++ original accepts without; other requests are refused with [ErrUnsignaled].
	// [verbs.SendFence] holds the request back until the data of every earlier one has completed;
	// over several queue pairs it is the only way to make a read see an earlier write, or an atomic
	// follow one.
	Flags verbs.SendFlags
	// Local is the memory to send from, or for reads and atomics to receive into.
	Local Segment
	// SGL names several pieces of memory in place of Local. It is copied during the post. One work
	// request takes [Config.MaxSGE] pieces, 4 by default. Over several queue pairs a longer list is
	// cut into more fragments; SENDs are not cut, and nothing is on a single queue pair, so there
	// it is refused. NICs fetch each piece separately, so it may be cheaper to copy short pieces
	// together, as Inline.
	//
	// In this library a list of one piece costs what Local does. By the count of instructions, a
	// second piece costs a third of a request, since the list is then copied, and each further one
	// a fourteenth: it is checked against its region, copied, and translated for the NIC. If the
	// region changes from one piece to the next, it is a fifth, because a region is held once for
	// each run of its pieces; two alternating regions cost no atomic step after the first of each.
	SGL []Segment
	// Inline is the payload itself when Flags has [verbs.SendInline], instead of Local and SGL. It
	// needs no registration, and you may reuse it when the post returns.
	Inline []byte
	// Remote is the peer's memory, for RDMA and atomics.
	Remote RemoteSegment
	// Imm travels with the _WITH_IMM opcodes: a number in host order. DQPLB delivers it between
	// ends that both announce that they can (see [BusinessCard]); a peer that cannot receives 0.
	//
	// The C++ original stores it in its host's byte order, so an original on a little-endian host
	// receives and sends it with the bytes reversed: set [ConnConfig].ImmLittleEndian for such a
	// peer. In DQPLB the original sends and reports none.
	Imm uint32
	// Relaxed frees a SEND from promise 4 of the package. Over several queue pairs an ordinary SEND
	// waits until all earlier data is acknowledged. A relaxed one is sent in its turn, behind the
	// data of earlier requests but without waiting for its arrival, so it may be received before
	// that data is in the peer's memory. Relaxed SENDs are received in posting order among
	// themselves; an ordinary SEND posted before one may be received after it. Requests that wait
	// for earlier data also wait for the acknowledgement of a relaxed SEND: a fenced request, an
	// ordinary SEND, a notification of [Spray]. With [verbs.SendFence] a relaxed SEND waits like
	// any other request. A single queue pair keeps everything in order anyway. Other opcodes are
	// refused with [verbs.ErrInvalid].
	Relaxed bool
	// EveryRail makes a remote flush, such as that of package transport; leave it false otherwise.
	// It cuts an RDMA read or write into one fragment for each data queue pair, all equally long.
	// A read then follows the earlier writes of *every* queue pair, and its response pushes them
	// into the peer's memory (IBTA o9-20). The length must be a multiple of [VirtualQP.DataRails],
	// the fragments must be no longer than [Config.FragmentSize], and the length must not be 0,
	// because a read of nothing pushes nothing. A scatter list must be no longer than one work
	// request takes. Other opcodes are refused with [verbs.ErrInvalid].
	EveryRail bool
	// CompareAdd is an atomic's value to add or to compare with, Swap the value that
	// compare-and-swap stores.
	CompareAdd, Swap uint64
}

// RecvWR is a virtual work request for the receive direction.
//
// With several queue pairs there are two kinds: one without memory waits for a notification
// (WRITE_WITH_IMM), one with memory waits for a SEND. Each takes the messages of its kind in order,
// and all complete in posting order. With a single queue pair any receive takes any message, as in
// verbs.
//
// A waiting receive also reveals that the queue pair under it fails: see [VirtualQP.Err].
type RecvWR struct {
	ID    uint64    // comes back in the completion
	Local Segment   // where a SEND goes; zero for a notification
	SGL   []Segment // several pieces in place of Local; copied during the post
}

// WC is a virtual work completion. Unlike a physical one, all of its fields are always defined;
// those that do not apply are zero. With several queue pairs Opcode is the request's even if it
// failed. A single queue pair knows no more than the NIC, which leaves the opcode of a failed
// completion undefined: it is then [verbs.WCUnknown].
type WC struct {
	ID        uint64
	Status    verbs.Status
	Opcode    verbs.WCOpcode
	VendorErr uint32 // the NIC's own code for the error, if any
	// Imm of a receive is the sender's immediate, if Flags has [verbs.WCWithImm]. For a send it is
	// always 0, unlike in the C++ original, which repeats the request's.
	Imm   uint32
	QPNum uint32 // [VirtualQP.Num] of the virtual queue pair
	Flags verbs.WCFlags
	// ByteLen is the length of the request in bytes; for a receive, the bytes that arrived. It is 0
	// for a notification of Spray, which does not carry it, and for a send of a single queue pair.
	ByteLen uint64
}

// Err returns nil for success, and otherwise the status as an error.
func (w *WC) Err() error { return w.Status.Err() }

// String returns a line for a log: "virtual qp 3: request 7 (RDMA_WRITE, 4096 bytes) succeeded".
func (w WC) String() string {
	what := "request"
	switch {
	case w.Opcode.IsRecv():
		what = "receive"
	case w.Opcode == verbs.WCUnknown:
		what = "request or receive"
	}
	s := fmt.Sprintf("virtual qp %d: %s %d (%v, %d bytes", w.QPNum, what, w.ID, w.Opcode, w.ByteLen)
	if w.Flags&verbs.WCWithImm != 0 {
		s += fmt.Sprintf(", immediate 0x%x", w.Imm)
	}
	if w.Status == verbs.StatusSuccess {
		return s + ") succeeded"
	}
	s += ") failed: " + w.Status.Error()
	if w.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor code 0x%x)", w.VendorErr)
	}
	return s
}

// Segment is a piece of local memory: part of an [MR], or raw memory with keys from elsewhere.
type Segment struct {
	Addr   uint64 // address of the first byte
	Length uint64 // bytes
	Keys   *Keys  // local keys
}

// RemoteSegment is a piece of the peer's memory: part of a [RemoteMR], or raw memory with keys from
// elsewhere.
type RemoteSegment struct {
	Addr   uint64 // address of the first byte at the peer
	Length uint64 // bytes that a request may access from there
	Keys   *Keys  // remote keys
}

// String shows address range for error messages and logs.
func (s Segment) String() string { return addrRange(s.Addr, s.Length) }

// String shows address range for error messages and logs.
func (s RemoteSegment) String() string { return addrRange(s.Addr, s.Length) }

func addrRange(addr, n uint64) string {
	return "0x" + strconv.FormatUint(addr, 16) + "+" + strconv.FormatUint(n, 10)
}

// immOrder is the byte order of the user's immediates on the wire: that of verbs or, if it is set,
// little-endian. The numbers of DQPLB have their own order (dqplb.Swap).
type immOrder bool

// turn converts between an immediate of the user and one of package verbs. It is its own inverse.
func (o immOrder) turn(imm uint32) uint32 {
	if o {
		return bits.ReverseBytes32(imm)
	}
	return imm
}

// length returns the length in bytes of a request that was accepted.
func (wr *SendWR) length() (n uint64) {
	if wr.Flags&verbs.SendInline != 0 {
		return uint64(len(wr.Inline))
	}
	n = wr.Local.Length
	for i := range wr.SGL {
		n += wr.SGL[i].Length
	}
	return n
}
