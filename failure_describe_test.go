package ibverbx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// posted is a physical work request and the rail that carried it.
type posted struct {
	qp uint32
	verbs.SendWR
}

// allPosts are the work requests of the data rails and the notify QP that concern request n, data
// in order of address.
func (r *recorded) allPosts(n uint64) (data, rest []posted) {
	for _, qp := range append(slices.Clone(r.qps), r.notify) {
		for _, wr := range qp.posts {
			switch {
			case wrid.Number(wr.ID) != n:
			case wr.Bytes() != 0:
				data = append(data, posted{qp.Num(), wr})
			default:
				rest = append(rest, posted{qp.Num(), wr})
			}
		}
	}
	slices.SortFunc(data, func(a, b posted) int { return int(int64(a.RemoteAddr) - int64(b.RemoteAddr)) })
	return data, rest
}

// failing completes one work request with an error, and returns the failure.
func (r *recorded) failing(t *testing.T, p posted) *FailedError {
	t.Helper()
	device := verbs.DeviceID(0)
	for _, rl := range r.send.rails.all {
		if rl.num == p.qp && rl.index() == wrid.Rail(p.ID) {
			device = verbs.DeviceID(rl.device)
		}
	}
	r.CQ().ProcessCompletions(nil, device, verbs.WC{ID: p.ID, Status: verbs.StatusRemAccessErr, Opcode: 77,
		VendorErr: 0x88, ByteLen: 99, QPNum: p.qp})
	var fe *FailedError
	if !errors.As(r.Err(), &fe) {
		t.Fatalf("nothing failed: %v", r.Err())
	}
	return fe
}

// The failure describes the work request that failed, by its position and its range. Every
// fragment, marker, immediate and notification of requests of many shapes fails once.
func TestFailureDescribesTheWorkRequestThatFailed(t *testing.T) {
	const base, remote = 1 << 40, 1 << 41
	keys := hugeKeys(1)
	rng := rand.New(rand.NewPCG(1, 2))
	plain := func(int) (local Segment, sgl []Segment) {
		return Segment{Addr: base, Length: 1 + rng.Uint64N(1000), Keys: keys}, nil
	}
	scattered := func(most uint64) func(int) (Segment, []Segment) {
		return func(int) (Segment, []Segment) {
			var sgl []Segment
			for i := range 1 + rng.Uint64N(30) {
				sgl = append(sgl, Segment{Addr: base + i*100_000, Length: rng.Uint64N(most), Keys: keys})
			}
			sgl = append(sgl, Segment{Addr: base + 1<<30, Length: 1, Keys: keys})
			return Segment{}, sgl
		}
	}
	for _, c := range []struct {
		name   string
		scheme Scheme
		op     verbs.Opcode
		memory func(int) (Segment, []Segment)
		widths []int  // pieces that a rail accepts, where fewer than the null NIC
		start  uint32 // DQPLB number
		ahead  bool   // plain writes go first, so that there are markers
	}{
		{"write", DQPLB, verbs.OpRDMAWrite, plain, nil, 0, false},
		{"read", Spray, verbs.OpRDMARead, plain, nil, 0, true},
		{"spray", Spray, verbs.OpRDMAWriteWithImm, plain, nil, 0, true},
		{"dqplb", DQPLB, verbs.OpRDMAWriteWithImm, plain, nil, 0, false},
		{"dqplb/markers", DQPLB, verbs.OpRDMAWriteWithImm, plain, nil, 0, true},
		{"dqplb/markers/wrap", DQPLB, verbs.OpRDMAWriteWithImm, plain, nil, dqplb.Mod - 5, true},
		{"scattered write", DQPLB, verbs.OpRDMAWrite, scattered(300), nil, 0, false},
		{"scattered write/cut", Spray, verbs.OpRDMAWrite, scattered(30), []int{3, 3, 3, 3}, 0, false},
		{"scattered dqplb/cut", DQPLB, verbs.OpRDMAWriteWithImm, scattered(30), []int{2, 2, 2, 2}, 0, true},
		{"scattered dqplb/cut/wrap", DQPLB, verbs.OpRDMAWriteWithImm, scattered(20), []int{4, 4, 4, 4},
			dqplb.Mod - 5, true},
		{"scattered dqplb/unlike rails", DQPLB, verbs.OpRDMAWriteWithImm, scattered(20), []int{4, 2, 4, 3},
			dqplb.Mod - 5, true},
		{"scattered write/unlike rails", Spray, verbs.OpRDMAWrite, scattered(20), []int{4, 2, 4, 3}, 0,
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[FailedPart]int{}
			unknown := 0
			for round := range 20 {
				local, sgl := c.memory(round)
				post := func() *recorded {
					r := newRecorded(t, 2, 2, Config{Scheme: c.scheme, FragmentSize: 100})
					jumpTo(r.VirtualQP, r.VirtualQP, c.start)
					for i, w := range c.widths {
						r.send.rails.data[i].maxSGE = w
					}
					if c.ahead {
						if _, err := r.PostSend(rawWrite(1, 350)); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := r.PostSend(SendWR{ID: 7, Opcode: c.op, Flags: verbs.SendSignaled,
						Local: local, SGL: sgl,
						Remote: RemoteSegment{Addr: remote, Length: 1 << 30, Keys: keys},
						Imm:    9}); err != nil {
						t.Fatal(err)
					}
					return r
				}
				r := post()
				n := r.send.win.Tail - 1
				if c.op == verbs.OpRDMAWriteWithImm && c.scheme == Spray {
					finishData(t, r)
				}
				data, rest := r.allPosts(n)
				length := uint64(0)
				for _, p := range data {
					length += p.Bytes()
				}
				for i := range len(data) + len(rest) {
					r := post()
					if i >= len(data) && c.scheme == Spray {
						finishData(t, r)
					}
					// Rails and numbers are assigned the same way every time.
					p := append(slices.Clone(data), rest...)[i]
					for at, rl := range r.send.rails.all {
						if at == wrid.Rail(p.ID) {
							p.qp = rl.num
						}
					}
					fe := r.failing(t, p)
					seen[fe.Part]++
					if !fe.HasID || fe.ID != 7 || fe.Opcode != c.op.WCOpcode() ||
						fe.Rail != wrid.Rail(p.ID) ||
						fe.RailQPNum != p.qp || fe.VendorErr != 0x88 {
						t.Fatalf("%+v", fe)
					}
					if i >= len(data) {
						if fe.Part == PartFragment || fe.Part == PartMessage || fe.Fragment != -1 ||
							fe.Length != 0 {
							t.Fatalf("the failure claims data: %v", fe)
						}
						continue
					}
					if fe.Part != PartFragment || fe.Fragment != i || fe.Fragments != len(data) {
						t.Fatalf("fragment %d of %d: %+v", i, len(data), fe)
					}
					if fe.WholeRange {
						unknown++
						if fe.RemoteAddr != remote || fe.Length != length {
							t.Fatalf("the whole request is %d bytes at %#x: %v", length, remote, fe)
						}
						continue
					}
					if fe.LocalAddr != p.SGL[0].Addr || fe.RemoteAddr != p.RemoteAddr ||
						fe.Length != p.Bytes() || fe.Scattered != (len(p.SGL) > 1) {
						t.Fatalf("fragment %d of %d is %+v\nthe failure: %+v", i, len(data), p, fe)
					}
				}
			}
			numbered := c.op == verbs.OpRDMAWriteWithImm && c.scheme == DQPLB
			notified := c.op == verbs.OpRDMAWriteWithImm && c.scheme == Spray
			if (seen[PartMarker] != 0) != (c.ahead && numbered) ||
				(seen[PartImmediate] != 0) != numbered ||
				(seen[PartNotification] != 0) != notified ||
				seen[PartFragment] < 30 {
				t.Errorf("parts that failed: %v", seen)
			}
			alike := len(c.widths) == 0 || slices.Min(c.widths) == slices.Max(c.widths)
			if alike && unknown != 0 {
				t.Errorf("the range of %d fragments was not known", unknown)
			}
		})
	}
}

// finishData polls until the notification is posted, and leaves it outstanding.
func finishData(t *testing.T, r *recorded) {
	t.Helper()
	for i := 0; len(r.notify.posts) == 0; i++ {
		var wcs [1]verbs.WC
		dev := i % 2
		n, err := r.CQ().cqs[dev].cq.Poll(wcs[:])
		if err != nil || i == 10_000 {
			t.Fatal(i, err)
		}
		r.CQ().ProcessCompletions(nil, verbs.DeviceID(dev), wcs[:n]...)
	}
}

// A request may use more numbers than exist, and more fragments than a work-request ID
// distinguishes.
func TestPositionsBeyondTheIDs(t *testing.T) {
	const limit, ahead = 10, 3*dqplb.Mod + 99
	r := &sendReq{length: ahead*limit + 1,
		sendProgress: sendProgress{firstNum: dqplb.Mod - 3, fragments: ahead + 1, markers: 2}}
	for at := uint64(r.fragments) + 1; at > uint64(r.fragments)-20_000; at-- {
		num := uint32((uint64(r.firstNum) + at) % dqplb.Mod)
		if got := r.sequence(num); got != at {
			t.Fatalf("number %d is at %d, want %d", num, got, at)
		}
		want := at
		if at >= ahead {
			want -= 2
		}
		marker := at == ahead || at == ahead+1
		if got := r.isMarker(num, limit); got != marker {
			t.Fatalf("number at %d: marker %v", at, got)
		}
		if got := r.position(wrid.New(wrid.Numbered, 0, num, 1), limit); !marker && got != int(want) {
			t.Fatalf("number at %d: position %d, want %d", at, got, want)
		}
	}
	if got := r.position(wrid.New(wrid.Data, 0, 5, 1), limit); got != -1 {
		t.Errorf("position %d of a plain fragment: it may be another one", got)
	}
	r.fragments = wrid.AuxMask
	if got := r.position(wrid.New(wrid.Data, 0, 5, 1), limit); got != 5 {
		t.Errorf("position %d", got)
	}
}

// A completion with an impossible position yields a description of the whole request.
func TestImpossiblePosition(t *testing.T) {
	for _, scattered := range []bool{false, true} {
		r := newRecorded(t, 1, 2, Config{FragmentSize: 100})
		wr := rawWrite(1, 250)
		if scattered {
			wr.SGL, wr.Local = []Segment{wr.Local}, Segment{}
		}
		if _, err := r.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		data, _ := r.allPosts(1)
		p := data[0]
		p.ID |= wrid.New(0, 0, 9, 0)
		if fe := r.failing(t, p); fe.Fragment != -1 || !fe.WholeRange || fe.Length != 250 ||
			fe.Fragments != 3 {
			t.Errorf("%+v", fe)
		}
	}
}

// died is the failure of a rail whose peer's process has died.
func (r *recorded) died() *FailedError {
	f := noRequest(verbs.StatusRetryExcErr)
	f.VendorErr = vendorDied
	return f.on(1, r.send.rails.data[0])
}

// The whole text of each error: users read it.
func TestFailedErrorText(t *testing.T) {
	on := func(f FailedError) *FailedError {
		f.QPNum, f.Rail, f.Device, f.RailQPNum = 1, 1, "mlx5_1", 18
		return &f
	}
	bare := FailedError{QPNum: 1, Rail: -1, Opcode: verbs.WCUnknown, Fragment: -1}
	with := func(f FailedError, edit func(*FailedError)) *FailedError { edit(&f); return &f }
	status := func(s verbs.Status) string { return s.Error() }
	advice := func(s verbs.Status) string { return ": " + s.Advice() }
	const at = ": rail 1 (mlx5_1 qp 18): "
	for _, c := range []struct {
		f    *FailedError
		want string
	}{
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCRDMAWrite, Part: PartFragment, Fragment: 2,
			Fragments: 16, LocalAddr: 0x1000, RemoteAddr: 0x2000, Length: 524288,
			VendorErr: 0x81, GaveUpAfter: givesUpAfter(17, 6), Err: verbs.StatusRetryExcErr}),
			"virtual qp 1: RDMA_WRITE id 7, fragment 3 of 16 (524288 bytes from 0x1000 to remote 0x2000): " +
				"rail 1 (mlx5_1 qp 18): RETRY_EXC_ERR: transport retries exceeded: the peer or the path " +
				"to it is gone (vendor 0x81: transport retry counter exceeded): no answer for 3.76s " +
				"(Conn.Patience): " +
				"check that the peer's process lives and has connected, then link, routing and GID index, " +
				"then timeout and retry count"},
		// Nobody has waited for a process that is known to have died; there is nothing to check.
		{newRecorded(t, 1, 2, Config{}).died(),
			"virtual qp 1: rail 0 (null0 qp 17): " + status(verbs.StatusRetryExcErr) +
				" (vendor 0x53484d01: the process has died)"},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCRDMARead, Part: PartFragment, Fragments: 1,
			LocalAddr: 0x1000, RemoteAddr: 0x2000, Length: 8, Scattered: true,
			VendorErr: 0x88, Err: verbs.StatusRemAccessErr}),
			"virtual qp 1: RDMA_READ id 7 (8 bytes from remote 0x2000 to 0x1000 and on (scattered))" + at +
				status(verbs.StatusRemAccessErr) +
				" (vendor 0x88: protection error at the remote buffer)" + advice(verbs.StatusRemAccessErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCRDMAWrite, Part: PartFragment, Fragment: 4,
			LocalAddr: 0x1000, RemoteAddr: 0x2000, Length: 900, WholeRange: true,
			Err: verbs.StatusLocProtErr}),
			"virtual qp 1: RDMA_WRITE id 7, fragment 5 (the request: 900 bytes from 0x1000 to remote " +
				"0x2000)" + at + status(verbs.StatusLocProtErr) + advice(verbs.StatusLocProtErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCRDMAWrite, Part: PartFragment, Fragment: -1,
			Fragments: 9, RemoteAddr: 0x2000, Length: 90, VendorErr: 0x81,
			Err: verbs.StatusLocQPOpErr}),
			"virtual qp 1: RDMA_WRITE id 7, one of 9 fragments (90 bytes to remote 0x2000)" + at +
				status(verbs.StatusLocQPOpErr) + " (vendor 0x81)" + advice(verbs.StatusLocQPOpErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCRDMAWrite, Part: PartMarker, Fragment: -1,
			VendorErr: 0xf9, Err: verbs.StatusWRFlushErr}),
			"virtual qp 1: RDMA_WRITE id 7, marker ahead of its last fragment" + at +
				status(verbs.StatusWRFlushErr) + " (vendor 0xf9: flushed)" + advice(verbs.StatusWRFlushErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCRDMAWrite, Part: PartNotification, Fragment: -1,
			Err: verbs.StatusRNRRetryExcErr}),
			"virtual qp 1: RDMA_WRITE id 7, notification behind its data" + at +
				status(verbs.StatusRNRRetryExcErr) + advice(verbs.StatusRNRRetryExcErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCSend, Part: PartMessage, Fragment: -1,
			LocalAddr: 0x1000, Length: 64, Err: verbs.StatusRemInvReqErr}),
			"virtual qp 1: SEND id 7 (64 bytes at 0x1000)" + at + status(verbs.StatusRemInvReqErr) +
				advice(verbs.StatusRemInvReqErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCSend, Part: PartMessage, Fragment: -1, Length: 64,
			Err: verbs.StatusRemInvReqErr}),
			"virtual qp 1: SEND id 7 (64 bytes)" + at + status(verbs.StatusRemInvReqErr) +
				advice(verbs.StatusRemInvReqErr)},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCFetchAdd, Part: PartMessage, Fragment: -1,
			Err: verbs.StatusRemInvReqErr}),
			"virtual qp 1: FETCH_ADD id 7" + at + status(verbs.StatusRemInvReqErr) +
				advice(verbs.StatusRemInvReqErr) + "; reads and atomics must be granted by the peer's " +
				"Conn.Access"},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCFetchAdd, Part: PartMessage, Fragment: -1,
			LocalAddr: 0x1000, RemoteAddr: 0x2000, Length: 8, Err: verbs.StatusRemOpErr}),
			"virtual qp 1: FETCH_ADD id 7 (8 bytes from remote 0x2000 to 0x1000)" + at +
				status(verbs.StatusRemOpErr) + advice(verbs.StatusRemOpErr)},
		{on(FailedError{Recv: true, HasID: true, ID: 3, Opcode: verbs.WCRecv, Part: PartMessage, Fragment: -1,
			LocalAddr: 0x1000, Length: 100, Scattered: true, Err: verbs.StatusLocLenErr}),
			"virtual qp 1: RECV id 3 (100 bytes at 0x1000 and on (scattered))" + at +
				status(verbs.StatusLocLenErr) + advice(verbs.StatusLocLenErr)},
		{on(FailedError{Recv: true, Opcode: verbs.WCUnknown, Part: PartCredit, Fragment: -1,
			Err: fmt.Errorf("%w: number 5 came twice", ErrProtocol)}),
			"virtual qp 1: a receive kept for messages of the peer (dqplb credit)" + at +
				"protocol violation by the peer: number 5 came twice: check that the peer's queue pairs " +
				"are used by its virtual queue pair alone, and that both ends exchanged cards of this " +
				"connection"},
		{on(FailedError{HasID: true, ID: 7, Opcode: verbs.WCUnknown, Fragment: -1,
			Err: verbs.StatusFatalErr}),
			"virtual qp 1: request or receive id 7" + at + status(verbs.StatusFatalErr) +
				advice(verbs.StatusFatalErr)},
		{with(bare, func(f *FailedError) { f.Device, f.Err = "mlx5_1", verbs.ErrOverrun }),
			"virtual qp 1: mlx5_1: completion queue overrun: make the CQ deeper, or let nothing complete " +
				"on it but its virtual queue pairs, for which room is reserved"},
		{with(bare, func(f *FailedError) { f.Err = verbs.ErrDeviceGone }),
			"virtual qp 1: device gone: check the NIC and the kernel's log: close, and open anew on the " +
				"NICs that are there"},
		{with(bare, func(f *FailedError) { f.Err = errors.New("something else") }),
			"virtual qp 1: something else"},
	} {
		if got := c.f.Error(); got != c.want {
			t.Errorf("the error is\n%s\nwant\n%s", got, c.want)
		}
	}
}
