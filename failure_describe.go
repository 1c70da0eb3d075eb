package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// noRequest returns a failure that concerns no request of the user, or none that is known.
func noRequest(err error) *FailedError {
	return &FailedError{Opcode: verbs.WCUnknown, Fragment: -1, Err: err}
}

// recvDirection returns a failure of the receive direction that concerns no request of the user.
func recvDirection(part FailedPart, err error) *FailedError {
	f := noRequest(err)
	f.Recv, f.Part = true, part
	return f
}

// violation returns the failure of a connection whose peer sent something impossible.
func violation(what error) *FailedError {
	return recvDirection(PartUnknown, fmt.Errorf("%w: %w", ErrProtocol, what))
}

// describeRecv describes a failed receive of the user.
func describeRecv(r *recvReq) *FailedError {
	f := recvDirection(PartMessage, nil)
	f.HasID, f.ID, f.Opcode = true, r.id, r.opcode
	if r.message {
		f.setPieces(r.pieces)
	}
	return f
}

// describeForwarded describes a request that a single queue pair refused. Nothing is kept about
// accepted ones.
func describeForwarded(wr *SendWR, err error) *FailedError {
	f := noRequest(err)
	f.HasID, f.ID, f.Opcode, f.Part = true, wr.ID, wr.Opcode.WCOpcode(), PartMessage
	switch {
	case wr.Flags&verbs.SendInline != 0:
		f.Length = uint64(len(wr.Inline))
	case len(wr.SGL) != 0:
		f.setPieces(wr.SGL)
	default:
		f.LocalAddr, f.Length = wr.Local.Addr, wr.Local.Length
	}
	if !wr.Opcode.IsSend() {
		f.RemoteAddr = wr.Remote.Addr
	}
	return f
}

// describeForwardedRecv describes a receive that a single queue pair refused. It is unknown whether
// it would have taken a SEND or a notification.
func describeForwardedRecv(wr *RecvWR, err error) *FailedError {
	f := recvDirection(PartMessage, err)
	f.HasID, f.ID = true, wr.ID
	pieces := wr.SGL
	if len(pieces) == 0 {
		pieces = []Segment{wr.Local}
	}
	f.setPieces(pieces)
	return f
}

// setPieces sets the range of a failure to that of a scatter list.
func (f *FailedError) setPieces(pieces []Segment) {
	for _, s := range pieces {
		f.addPiece(s.Addr, s.Length)
	}
}

// addPiece adds a piece of local memory to the range of a failure.
func (f *FailedError) addPiece(addr, length uint64) {
	switch {
	case length == 0:
		return
	case f.Length == 0:
		f.LocalAddr = addr
	default:
		f.Scattered = true
	}
	f.Length += length
}

// describe describes the part of the live request r that a physical work request was, from its
// work-request id and the request's slot. Nothing is recorded for this before a failure.
func (s *sender) describe(r *sendReq, id uint64, err error) *FailedError {
	f := noRequest(err)
	f.HasID, f.ID, f.Opcode = true, r.id, r.opcode.WCOpcode()
	switch wrid.Kind(id) {
	case wrid.Final:
		f.Part = PartNotification
		if r.plan == planNone {
			f.Part = PartMessage
		}
	case wrid.Message:
		f.Part = PartMessage
	case wrid.Imm:
		f.Part = PartImmediate
	case wrid.Numbered:
		f.Part = PartFragment
		if r.isMarker(wrid.Aux(id), uint64(s.rails.maxFragment)) {
			f.Part = PartMarker
		}
	default:
		f.Part = PartFragment
		if r.plan == planAtomic {
			f.Part = PartMessage
		}
	}
	switch f.Part {
	case PartMessage:
		r.wholeRange(f)
	case PartFragment:
		s.fragmentRange(f, r, id)
	}
	return f
}

// wholeRange gives a failure the range of the whole request.
func (r *sendReq) wholeRange(f *FailedError) {
	switch {
	case r.inline:
		f.Length = r.length
	case r.scattered:
		for _, p := range r.ext.list.pieces {
			f.addPiece(p.addr, p.length)
		}
	default:
		f.LocalAddr, f.Length = r.localAddr, r.length
	}
	if !r.opcode.IsSend() {
		f.RemoteAddr = r.remoteAddr
	}
}

// sequence is the index of a number among those that request r was given; the number must be on the
// way. A request may be given more numbers than there are values; those on the way are within a
// window of the newest, so the index is unique.
func (r *sendReq) sequence(num uint32) uint64 {
	newest := uint64(r.fragments) + uint64(r.markers) - 1
	d := uint64(dqplb.Distance(r.firstNum, num))
	return newest - (newest+dqplb.Mod-d)%dqplb.Mod
}

// markersAt is how many fragments were given their numbers ahead of the markers. The markers of a
// request have numbers in a row: they are handed out when nothing but the last fragment is left,
// and after them no rail is dirty any more, even if a scatter list then cuts that fragment short.
func (r *sendReq) markersAt(limit uint64) uint64 {
	if r.scattered {
		return uint64(r.ext.markersAt)
	}
	return (max(r.length, 1) - 1) / limit
}

// isMarker reports whether a number of request r is that of a marker; limit is the size of a
// fragment.
func (r *sendReq) isMarker(num uint32, limit uint64) bool {
	at, first := r.sequence(num), r.markersAt(limit)
	return at >= first && at < first+uint64(r.markers)
}

// position returns a fragment's index among those of its request, without markers. It is -1 if that
// is unknown: the work-request id of a plain fragment has 24 bits for it, and two fragments in
// flight may share them.
func (r *sendReq) position(id, limit uint64) int {
	if wrid.Kind(id) != wrid.Numbered {
		if r.fragments > wrid.AuxMask {
			return -1
		}
		return int(wrid.Aux(id))
	}
	at := r.sequence(wrid.Aux(id))
	if r.markers != 0 && at >= r.markersAt(limit) {
		at -= uint64(r.markers)
	}
	return int(at)
}

// fragmentRange sets the failed fragment's index and range, as far as they are certain.
func (s *sender) fragmentRange(f *FailedError, r *sendReq, id uint64) {
	limit := s.fragmentLimit(r)
	f.Fragment = r.position(id, limit)
	width, same := s.rails.width()
	switch {
	case !r.scattered || r.length == 0:
		f.Fragments = int((max(r.length, 1) + limit - 1) / limit)
		if f.Fragment < 0 || f.Fragment >= f.Fragments {
			break
		}
		offset := uint64(f.Fragment) * limit
		f.RemoteAddr, f.Length = r.remoteAddr+offset, min(limit, r.length-offset)
		if !r.inline {
			f.LocalAddr = r.localAddr + offset
		}
		return
	case same || len(r.ext.list.pieces) <= width:
		f.Fragments = r.cut(limit, width, f)
		if f.Fragment >= 0 && f.Fragment < f.Fragments {
			return
		}
	case r.offset == r.length:
		f.Fragments = int(r.fragments)
	}
	if f.Fragment >= max(f.Fragments, int(r.fragments)) {
		f.Fragment = -1 // a spurious completion
	}
	// Where a list was cut depends on which rail took which fragment, if they take lists of
	// different lengths.
	r.wholeRange(f)
	f.WholeRange = true
}

// cut walks a scatter list as fragmentation does, sets the range of f's fragment, and returns the
// number of fragments.
func (r *sendReq) cut(limit uint64, width int, f *FailedError) (fragments int) {
	offset, size, start, used := uint64(0), uint64(0), uint64(0), 0
	for _, p := range r.ext.list.pieces {
		for off := uint64(0); off < p.length; {
			if used == 0 {
				start = p.addr + off
			}
			n := min(limit-size, p.length-off)
			off, size, used = off+n, size+n, used+1
			if size != limit && used != width && offset+size != r.length {
				continue
			}
			if fragments == f.Fragment {
				f.LocalAddr, f.RemoteAddr, f.Length, f.Scattered = start, r.remoteAddr+offset, size, used > 1
			}
			fragments++
			offset, size, used = offset+size, 0, 0
		}
	}
	return fragments
}

// wrongKindError reports that a message of one kind, SEND or notification, met a receive for the
// other.
type wrongKindError struct{ text string }

func (e *wrongKindError) Error() string { return e.text }

// metOtherKind reports whether a failure may come from a SEND or a notification that met a receive
// for the other. NICs differ in their report of a SEND that is too long for its receive: most
// report LOC_LEN_ERR at the receiver and REM_INV_REQ_ERR to the sender, qib and hfi1 LOC_QP_OP_ERR
// and REM_INV_REQ_ERR, rdma_rxe LOC_QP_OP_ERR and REM_OP_ERR, or in some versions REM_INV_REQ_ERR
// to both. A SEND that the peer refused may also have been too long for a receive with memory.
func (f *FailedError) metOtherKind() bool {
	var wrong *wrongKindError
	switch {
	case f.Part == PartCredit: // a credit has no memory for a SEND
		return errors.Is(f.Err, verbs.StatusLocLenErr) || errors.Is(f.Err, verbs.StatusLocQPOpErr) ||
			errors.Is(f.Err, verbs.StatusRemInvReqErr)
	case f.Opcode == verbs.WCSend:
		return errors.Is(f.Err, verbs.StatusRemInvReqErr) || errors.Is(f.Err, verbs.StatusRemOpErr)
	}
	return errors.As(f.Err, &wrong)
}

// on adds to a failure where it happened.
func (f *FailedError) on(qpNum uint32, rl *rail) *FailedError {
	f.QPNum, f.Rail = qpNum, -1
	if rl != nil {
		if errors.Is(f.Err, verbs.StatusRetryExcErr) && !f.peerDied() {
			f.GaveUpAfter, f.GIDPort = rl.givesUp, rl.gidPort
		}
		f.Rail, f.Device, f.RailQPNum = rl.index(), rl.qp.Device().Name(), rl.qp.Num()
	}
	return f
}
