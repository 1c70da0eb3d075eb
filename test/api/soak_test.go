package api_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

var soakRequests = flag.Int("soak", 200_000, "work requests of TestSoak, over all shapes; the long run is "+
	"10000000")

// TestSoak sends requests of mixed kinds and sizes in every mode. It checks order, count and
// content of all, and that memory use stays constant.
func TestSoak(t *testing.T) {
	type shape struct {
		qps, nics int
		scheme    ibverbx.Scheme
	}
	var shapes []shape
	for _, qps := range []int{1, 2, 4, 16} {
		for _, nics := range []int{1, 2, 4} {
			if nics > qps {
				continue
			}
			shapes = append(shapes, shape{qps, nics, ibverbx.DQPLB})
			if qps > 1 {
				shapes = append(shapes, shape{qps, nics, ibverbx.Spray})
			}
		}
	}
	perShape := max(*soakRequests/len(shapes), 1000)
	for _, s := range shapes {
		t.Run(fmt.Sprintf("%dqp/%dnic/%v", s.qps, s.nics, s.scheme), func(t *testing.T) {
			depth := 32
			if s.qps == 1 {
				depth = soakSlots // pass-through queues nothing
			}
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: s.nics,
				QP: ibverbx.Config{Scheme: s.scheme, QPsPerDevice: s.qps / s.nics, FragmentSize: 512,
					MaxMsgCntPerQP: depth}})
			newSoak(l, uint64(s.qps*100+s.nics)).run(t, perShape)
		})
	}
}

const (
	soakSlots  = 128  // requests outstanding
	soakMax    = 2048 // bytes of the longest request
	soakSource = 64 << 10
	// Layout of either buffer: a source that never changes, a slot for each outstanding request,
	// and one word for atomics.
	soakSlotsAt = soakSource
	soakRecvAt  = soakSlotsAt + soakSlots*soakMax
	soakWordAt  = soakRecvAt + soakSlots*soakMax
)

// soak is a sender that keeps requests outstanding, and knows what each must have done.
type soak struct {
	l        *vqptest.Link
	rng      *rand.Rand
	reqs     [soakSlots]soakReq
	posted   uint64
	done     uint64
	adds     uint64
	recvs    [soakSlots]soakReq // in the order of posting
	expected uint64             // receives posted
	received uint64
	wcs      [64]ibverbx.WC
	// harm, if it is not nil, is called ahead of each post; then there are no atomics, whose
	// answers may be lost.
	harm func()
}

type soakReq struct {
	op     verbs.Opcode
	from   uint64 // offset of the source
	length uint64
	word   uint64 // what an atomic must find
	id     uint64 // of the send, for a receive
}

func newSoak(l *vqptest.Link, seed uint64) *soak {
	vqptest.FillRandom(l.A.Buf[:soakSource], seed)
	vqptest.FillRandom(l.B.Buf[:soakSource], seed+1)
	return &soak{l: l, rng: rand.New(rand.NewPCG(seed, 2))}
}

func (s *soak) run(t *testing.T, total int) {
	warm := total / 4
	var before runtime.MemStats
	deadline := time.Now().Add(s.patience())
	for s.done < uint64(total) {
		for s.posted < uint64(total) && s.posted-s.done < soakSlots && s.expected-s.received < soakSlots {
			if s.harm != nil {
				s.harm()
			}
			s.post(t)
		}
		s.collect(t, deadline)
		if warm != 0 && s.done >= uint64(warm) {
			runtime.GC()
			runtime.ReadMemStats(&before)
			warm = 0
		}
	}
	for s.received < s.expected {
		s.collect(t, deadline)
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("memory grew by %d bytes over %d requests", grown, total)
	}
	for _, e := range []*vqptest.End{s.l.A, s.l.B} {
		if err := e.Err(); err != nil {
			t.Error(err)
		}
		if st := e.Stats(); st.SendWindow != 0 || st.RecvWindow != 0 || st.Banked != 0 ||
			st.StaleEvents != 0 || st.OutOfOrder != 0 {
			t.Errorf("not quiet at the end: %+v", st)
		}
	}
}

// patience is how long a soak may take: it depends on the flag, but for those with failures.
func (s *soak) patience() time.Duration {
	if s.harm != nil {
		return time.Minute
	}
	return time.Hour
}

// post posts the next request, after the receive that it needs at the peer.
func (s *soak) post(t *testing.T) {
	a, b := s.l.A, s.l.B
	ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend,
		verbs.OpSendWithImm, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp}
	if s.harm != nil {
		ops = ops[:len(ops)-2]
	}
	r := soakReq{op: ops[s.rng.IntN(len(ops))], length: 1 + s.rng.Uint64N(soakMax), id: s.posted}
	if s.rng.IntN(2) == 0 {
		r.length = 1 + s.rng.Uint64N(64)
	}
	r.from = s.rng.Uint64N(soakSource - r.length)
	slot := s.posted % soakSlots
	slotAt := soakSlotsAt + slot*soakMax
	wr := ibverbx.SendWR{ID: s.posted, Opcode: r.op, Flags: verbs.SendSignaled, Imm: uint32(s.posted)}
	switch {
	case r.op == verbs.OpRDMARead:
		wr.Local, wr.Remote = a.MR.Slice(slotAt, r.length), a.Peer.Slice(r.from, r.length)
	case r.op.IsAtomic():
		wr.Local, wr.Remote = a.MR.Slice(slotAt, 8), a.Peer.Slice(soakWordAt, 8)
		r.word, wr.CompareAdd, wr.Swap = s.adds, 1, s.adds+1
		if r.op == verbs.OpAtomicCmpAndSwp {
			wr.CompareAdd = s.adds
		}
		s.adds++
	default:
		wr.Local = a.MR.Slice(r.from, r.length)
		if cut := s.rng.Uint64N(r.length); cut > 0 && s.rng.IntN(4) == 0 {
			wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{a.MR.Slice(r.from, cut),
				a.MR.Slice(r.from+cut, r.length-cut)}
		}
		if !r.op.IsSend() {
			wr.Remote = a.Peer.Slice(slotAt, r.length)
		}
		if r.op != verbs.OpRDMAWrite {
			recv := ibverbx.RecvWR{ID: s.expected}
			if r.op.IsSend() {
				recv.Local = b.MR.Slice(soakRecvAt+s.expected%soakSlots*soakMax, soakMax)
			}
			if _, err := b.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
			s.recvs[s.expected%soakSlots] = r
			s.expected++
		}
	}
	s.reqs[slot] = r
	if _, err := a.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	s.posted++
}

// collect polls both ends and checks what completes.
func (s *soak) collect(t *testing.T, deadline time.Time) {
	n, err := s.l.A.CQ().Poll(s.wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.wcs[:n] {
		s.checkSend(t, &s.wcs[i])
	}
	m, err := s.l.B.CQ().Poll(s.wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.wcs[:m] {
		s.checkRecv(t, &s.wcs[i])
	}
	if n+m == 0 {
		runtime.Gosched()
		if time.Now().After(deadline) {
			t.Fatalf("stuck: %+v, %v\n%+v, %v", s.l.A.Stats(), s.l.A.Err(), s.l.B.Stats(), s.l.B.Err())
		}
	}
}

func (s *soak) checkSend(t *testing.T, wc *ibverbx.WC) {
	r := &s.reqs[s.done%soakSlots]
	if wc.ID != s.done || wc.Status != verbs.StatusSuccess || wc.Opcode != r.op.WCOpcode() {
		t.Fatalf("send %d: %+v; %v", s.done, *wc, s.l.A.Err())
	}
	slot := soakSlotsAt + s.done%soakSlots*soakMax
	s.done++
	switch {
	case r.op == verbs.OpRDMARead:
		mustMatch(t, wc.ID, s.l.A.Buf[slot:slot+r.length], s.l.B.Buf[r.from:r.from+r.length])
	case r.op.IsAtomic():
		if got := binary.NativeEndian.Uint64(s.l.A.Buf[slot:]); got != r.word {
			t.Fatalf("request %d: %v found %d, want %d", wc.ID, r.op, got, r.word)
		}
	case !r.op.IsSend():
		mustMatch(t, wc.ID, s.l.B.Buf[slot:slot+r.length], s.l.A.Buf[r.from:r.from+r.length])
	}
}

func (s *soak) checkRecv(t *testing.T, wc *ibverbx.WC) {
	r := &s.recvs[s.received%soakSlots]
	if wc.ID != s.received || wc.Status != verbs.StatusSuccess {
		t.Fatalf("receive %d: %+v; %v", s.received, *wc, s.l.B.Err())
	}
	if r.op != verbs.OpSend && wc.Imm != uint32(r.id) {
		t.Fatalf("receive %d: immediate %d, want %d", s.received, wc.Imm, r.id)
	}
	if r.op.IsSend() {
		at := soakRecvAt + s.received%soakSlots*soakMax
		mustMatch(t, wc.ID, s.l.B.Buf[at:at+r.length], s.l.A.Buf[r.from:r.from+r.length])
	}
	s.received++
}

func mustMatch(t *testing.T, id uint64, got, want []byte) {
	if !bytes.Equal(got, want) {
		t.Fatalf("request %d: wrong content", id)
	}
}
