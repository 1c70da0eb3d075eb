package vqp_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// trespass is a way to name memory of the peer that may not be accessed. Posting checks bounds, so
// memory beyond them needs a raw description.
type trespass struct {
	name string
	// aim names n bytes of a region of the peer, which has n bytes and is followed by n that are
	// not registered.
	aim func(mr *ibverbx.MR, n uint64) ibverbx.RemoteSegment
	// access is what the region allows.
	access verbs.AccessFlags
	closed bool // the region is closed before the request goes out
	partly bool // its first half may be accessed
}

var trespasses = []trespass{
	{name: "wrong key", access: verbs.AccessAll, aim: func(mr *ibverbx.MR, n uint64) ibverbx.RemoteSegment {
		return raw(mr, 0, n, 0x5a5a00)
	}},
	{name: "half beyond the end", access: verbs.AccessAll, partly: true,
		aim: func(mr *ibverbx.MR, n uint64) ibverbx.RemoteSegment {
			return raw(mr, n/2, n, 0)
		}},
	{name: "behind the end", access: verbs.AccessAll,
		aim: func(mr *ibverbx.MR, n uint64) ibverbx.RemoteSegment {
			return raw(mr, n, n, 0)
		}},
	{name: "no remote right", access: verbs.AccessLocalWrite,
		aim: func(mr *ibverbx.MR, n uint64) ibverbx.RemoteSegment {
			return mr.Remote().Slice(0, n)
		}},
	{name: "closed region", access: verbs.AccessAll, closed: true,
		aim: func(mr *ibverbx.MR, n uint64) ibverbx.RemoteSegment {
			return mr.Remote().Slice(0, n)
		}},
}

// raw describes n bytes from offset off of a region, also beyond its bounds, with its keys or
// others.
func raw(mr *ibverbx.MR, off, n uint64, otherwise uint32) ibverbx.RemoteSegment {
	from := mr.Remote().At(0)
	keys := map[verbs.DeviceID]uint32{}
	for dev := range verbs.DeviceID(verbs.MaxDevices) {
		if key, ok := from.Keys.Key(dev); ok {
			keys[dev] = key ^ otherwise
		}
	}
	return ibverbx.RemoteSegment{Addr: from.Addr + off, Length: n, Keys: ibverbx.NewKeys(keys)}
}

// Statuses with which the virtual queue pair of a receiver may fail after it refused a request of
// the peer. By the specification receives are flushed. With rdma_rxe the receive that the request
// would have taken has the error itself.
var refusedAtTheReceiver = []verbs.Status{verbs.StatusWRFlushErr, verbs.StatusRemAccessErr,
	verbs.StatusRemInvReqErr, verbs.StatusLocAccessErr, verbs.StatusLocProtErr}

// A request for memory that may not be accessed fails with a remote access error, whatever the
// operation. Requests before it have succeeded, and those after it are flushed. The peer gets no
// notification of it, its memory does not change, and its virtual queue pair fails too. After a
// reset of both ends everything works again.
func TestForbiddenRemoteMemory(t *testing.T) {
	for i := range trespasses {
		c := &trespasses[i]
		t.Run(c.name, func(t *testing.T) {
			eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
				for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
					verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
					if c.partly && op.IsAtomic() {
						continue // an atomic has no first half
					}
					trespassOnce(a, b, c, op)
					restart(a, b)
				}
			})
		})
	}
}

func trespassOnce(a, b *end, c *trespass, op verbs.Opcode) {
	tb := a.tb()
	tb.Helper()
	a.deliver(a.write(5*fragment), a.read(100), a.writeImm(fragment+1))
	settle(a, b)
	bad := map[verbs.Opcode]func() request{
		verbs.OpRDMAWrite:        func() request { return a.write(8 * fragment) },
		verbs.OpRDMAWriteWithImm: func() request { return a.writeImm(8 * fragment) },
		verbs.OpRDMARead:         func() request { return a.read(8 * fragment) },
		verbs.OpAtomicFetchAdd:   func() request { return a.fetchAdd(1) },
		verbs.OpAtomicCmpAndSwp:  func() request { return a.cmpSwap(1, true) },
	}[op]()
	n := uint64(len(bad.want))
	ground := make([]byte, 2*n)
	vqptest.FillRandom(ground, 5)
	before := slices.Clone(ground)
	mr, err := b.host.dom.Register(ground[:n], c.access)
	if err != nil {
		tb.Fatal(err)
	}
	bad.Remote, bad.lands, bad.never = c.aim(mr, n), nil, true
	if c.closed {
		if err := mr.Close(); err != nil {
			tb.Fatal(err)
		}
	}

	for range 3 {
		for _, e := range []*end{a, b} {
			e.recv()
			e.recv(e.mem.land(200))
		}
	}
	done := a.sends.reported
	behind := []request{a.write(3 * fragment), a.writeImm(5 * fragment), a.read(2 * fragment), a.message(100),
		a.writeImm(1)}
	for i := range behind {
		// DQPLB orders notifications by the data that they follow. A read writes no data at the
		// peer, so a notification after it may be sent before its failure is known.
		reads := op == verbs.OpRDMARead || op.IsAtomic()
		behind[i].never = !reads || a.single() || a.Scheme() == ibverbx.Spray || behind[i].Opcode.IsSend()
	}
	a.mayFail, b.mayFail = true, true
	a.send(append([]request{bad}, behind...)...)
	failed := a.stopped(verbs.StatusRemAccessErr, verbs.StatusRemInvReqErr)
	b.stopped(refusedAtTheReceiver...)

	if failed.Recv || !failed.HasID || failed.ID != a.sends.failure.ID ||
		a.sends.reported-done != 1+len(behind) || !errors.Is(failed, a.sends.failure.Status) {
		tb.Errorf("%v: VirtualQP.Err tells of request %d: %v; the first to fail was %s", op, failed.ID,
			failed, fmtWC(a.sends.failure))
	}
	if !c.closed {
		if err := mr.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	reached := uint64(0) // bytes that the request may have accessed
	if c.partly {
		reached = n / 2
	}
	if !bytes.Equal(ground[:n-reached], before[:n-reached]) || !bytes.Equal(ground[n:], before[n:]) {
		tb.Errorf("%v: memory was written that is none of the peer's", op)
	}
}
