package ibverbx

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// recordingQP is a null queue pair that records what is posted on it.
type recordingQP struct {
	verbs.QP
	posts []verbs.SendWR
	recvs []uint64      // their IDs
	sgls  [][]verbs.SGE // of the receives
	steps map[verbs.QPState]verbs.QPAttr
	// With what it refuses sends, receives, the moves to ERR and RESET, and to be closed; nil if it
	// does not.
	refuse, refuseRecv, refuseErr, refuseReset, refuseClose error
	closes                                                  int  // calls of Close
	single                                                  bool // takes one send a call, without an error
	// device is another NIC than it was made on, or nil.
	device verbs.Device
}

func (q *recordingQP) Device() verbs.Device {
	if q.device != nil {
		return q.device
	}
	return q.QP.Device()
}

// CompleteRecv completes the oldest receive that is posted, as if a message had come.
func (q *recordingQP) CompleteRecv(imm, bytes uint32, op verbs.WCOpcode) bool {
	return verbstest.CompleteRecv(q.QP, imm, bytes, op)
}

func (q *recordingQP) Close() error {
	q.closes++
	if q.refuseClose != nil {
		return q.refuseClose
	}
	return q.QP.Close()
}

func (q *recordingQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.steps[attr.State] = *attr
	if attr.State == verbs.StateReset && q.refuseReset != nil {
		return q.refuseReset
	}
	if attr.State == verbs.StateErr && q.refuseErr != nil {
		return q.refuseErr
	}
	return q.QP.Modify(attr, mask)
}

func (q *recordingQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.refuse != nil {
		return 0, q.refuse
	}
	if q.single {
		wrs = wrs[:1]
	}
	n, err := q.QP.PostSend(wrs)
	for _, wr := range wrs[:n] {
		wr.SGL, wr.Inline = slices.Clone(wr.SGL), slices.Clone(wr.Inline)
		q.posts = append(q.posts, wr)
	}
	return n, err
}

func (q *recordingQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.refuseRecv != nil {
		return 0, q.refuseRecv
	}
	n, err := q.QP.PostRecv(wrs)
	for i := range wrs[:n] {
		q.recvs, q.sgls = append(q.recvs, wrs[i].ID), append(q.sgls, slices.Clone(wrs[i].SGL))
	}
	return n, err
}

// recorded is a virtual queue pair over recording queue pairs on null devices. The peer does not
// matter, since null devices never touch memory.
type recorded struct {
	*VirtualQP
	qps    []*recordingQP // the data rails
	notify *recordingQP
}

// newRecorded makes one that is connected.
func newRecorded(tb testing.TB, devices, perDevice int, cfg Config) *recorded {
	tb.Helper()
	r := newUnconnected(tb, devices, perDevice, cfg)
	connectElsewhere(tb, r.VirtualQP)
	return r
}

// Elsewhere is a card of the same shape, of an end that does not exist: for null devices, which
// ignore it.
func Elsewhere(card BusinessCard) BusinessCard {
	card.Rails = slices.Clone(card.Rails)
	for i := range card.Rails {
		card.Rails[i].GID[0] ^= 1
	}
	return card
}

// newUnconnected makes one in RESET.
func newUnconnected(tb testing.TB, devices, perDevice int, cfg Config) *recorded {
	tb.Helper()
	p := verbstest.NewNull(devices)
	// There is room for what a test asks for beyond the usual.
	sends, recvs := max(128, cfg.MaxMsgCntPerQP), max(256, cfg.Credits)
	depth := max(8192, (perDevice+1)*(sends+recvs))
	var pds []verbs.PD
	var cqs []verbs.CQ
	for i := range devices {
		pd, err := p.Device(i).AllocPD()
		if err != nil {
			tb.Fatal(err)
		}
		cq, err := p.Device(i).CreateCQ(verbs.CQConfig{Depth: depth})
		if err != nil {
			tb.Fatal(err)
		}
		pds, cqs = append(pds, pd), append(cqs, cq)
	}
	create := func(i int) *recordingQP {
		qp, err := pds[i].CreateQP(verbs.QPConfig{SendCQ: cqs[i], RecvCQ: cqs[i],
			Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: recvs}})
		if err != nil {
			tb.Fatal(err)
		}
		return &recordingQP{QP: qp, steps: map[verbs.QPState]verbs.QPAttr{}}
	}
	r := &recorded{}
	var qps []verbs.QP
	for i := range devices * perDevice {
		r.qps = append(r.qps, create(i%devices))
		qps = append(qps, r.qps[i])
	}
	r.notify = create(0)
	cq, err := NewVirtualCQ(cqs...)
	if err != nil {
		tb.Fatal(err)
	}
	if r.VirtualQP, err = NewVirtualQP(cq, qps, r.notify, cfg); err != nil {
		tb.Fatal(err)
	}
	return r
}

// connectElsewhere connects a virtual queue pair over null devices to a peer like itself.
func connectElsewhere(tb testing.TB, q *VirtualQP) {
	tb.Helper()
	card, err := q.Card()
	if err != nil {
		tb.Fatal(err)
	}
	if err := q.Connect(Elsewhere(card)); err != nil {
		tb.Fatal(err)
	}
}

// newLone makes a virtual queue pair over a single one, on a null device. It is connected.
func newLone(tb testing.TB, cfg Config) *VirtualQP {
	tb.Helper()
	cfg.QPsPerDevice = 1
	q, err := Open([]verbs.Device{verbstest.NewNull(1).Device(0)}, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	connectElsewhere(tb, q)
	return q
}

// step is what the data rails, and then the notify QP, were last given on the way to a state.
func (r *recorded) step(state verbs.QPState) (all []verbs.QPAttr) {
	for _, qp := range append(slices.Clone(r.qps), r.notify) {
		all = append(all, qp.steps[state])
	}
	return all
}

// finish polls until every send request has been reported.
func (r *recorded) finish(tb testing.TB) (got []WC) {
	tb.Helper()
	for range 1_000_000 {
		got = append(got, pollNow(tb, r.CQ())...)
		if r.Stats().SendWindow == 0 {
			return got
		}
	}
	tb.Fatalf("stuck: %+v", r.Stats())
	return nil
}

// pollNow returns the completions that are available now. There may be more afterwards: completions
// make room for further posts.
func pollNow(tb testing.TB, cq *VirtualCQ) (got []WC) {
	tb.Helper()
	var wcs [16]WC
	for n := len(wcs); n == len(wcs); {
		var err error
		if n, err = cq.Poll(wcs[:]); err != nil {
			tb.Fatal(err)
		}
		got = append(got, wcs[:n]...)
	}
	return got
}

// rawWrite is a WRITE of n bytes of memory that does not exist: null devices do not access it.
func rawWrite(id, n uint64) SendWR {
	keys := NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 2})
	return SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: Segment{Addr: 1 << 40, Length: n, Keys: keys}, Remote: RemoteSegment{Addr: 1 << 41, Length: n,
			Keys: keys}}
}

func hugeKeys(base uint32) *Keys {
	return NewKeys(map[verbs.DeviceID]uint32{0: base, 1: base + 1})
}

// FuzzPassThroughCompletions gives a virtual queue pair of one queue pair completions of any
// content. Nothing is tracked, so each is reported as it is, with undefined fields cleared. The
// first that failed is the error, and closing does not wait.
func FuzzPassThroughCompletions(f *testing.F) {
	wc := func(status, opcode, flags byte, qp byte) []byte {
		return []byte{status, opcode, flags, qp, 1, 2, 3, 4, 5, 6, 7, 8}
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	ok, writes, receives := byte(verbs.StatusSuccess), byte(verbs.WCRDMAWrite), byte(verbs.WCRecvRDMAWithImm)
	f.Add(join(wc(ok, writes, 0, 0), wc(ok, receives, byte(verbs.WCWithImm), 0), wc(ok, receives, 0, 0)))
	f.Add(join(wc(byte(verbs.StatusRetryExcErr), 255, 255, 0), wc(byte(verbs.StatusWRFlushErr), receives, 255,
		0), wc(ok, writes, 0, 0)))
	f.Add(join(wc(ok, 255, 255, 1), wc(255, 255, 255, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1024 {
			return
		}
		null := verbstest.NewNull(1)
		q, err := Open([]verbs.Device{null.Device(0)}, Config{QPsPerDevice: 1, MaxMsgCntPerQP: 4})
		if err != nil {
			t.Fatal(err)
		}
		card, err := q.Card()
		if err = errors.Join(err, q.Connect(Elsewhere(card))); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		var failed error
		for in := (program{data}); len(in.data) > 0; {
			wc := verbs.WC{Status: verbs.Status(in.byte()), Opcode: verbs.WCOpcode(in.byte()),
				Flags: verbs.WCFlags(in.byte())}
			wc.QPNum = q.send.rails.data[0].num + uint32(in.byte()%4)
			wc.ID, wc.Imm = uint64(in.uint32())<<32|uint64(in.byte()), in.uint32()
			wc.ByteLen, wc.VendorErr = wc.Imm, wc.Imm
			want := WC{ID: wc.ID, Status: wc.Status, QPNum: q.Num()}
			switch {
			case wc.Status != verbs.StatusSuccess:
				want.Opcode, want.VendorErr = verbs.WCUnknown, wc.VendorErr
			default:
				want.Opcode = wc.Opcode
				if wc.Opcode.IsRecv() {
					want.ByteLen = uint64(wc.ByteLen)
				}
				if wc.Opcode.IsRecv() && wc.Flags&verbs.WCWithImm != 0 {
					want.Imm, want.Flags = wc.Imm, verbs.WCWithImm
				}
			}
			got := q.cq.ProcessCompletions(nil, 0, wc)
			if wc.QPNum != q.send.rails.data[0].num {
				if len(got) != 0 {
					t.Fatalf("%+v of no known queue pair is reported as %+v", wc, got)
				}
				continue
			}
			if len(got) != 1 || got[0] != want {
				t.Fatalf("%+v is reported as %+v, want %+v", wc, got, want)
			}
			if failed == nil {
				failed = wc.Status.Err()
			}
			if !errors.Is(q.Err(), failed) || (failed == nil) != (q.Err() == nil) {
				t.Fatalf("error %v, want %v", q.Err(), failed)
			}
		}
		if err := errors.Join(q.Close(), null.Close()); err != nil {
			t.Fatal(err)
		}
		if q.pass.probes.gaveUp {
			t.Fatal("closing has waited in vain for the NIC")
		}
	})
}

// Drain of a single queue pair is over where nothing is left, and where the queue pair was
// destroyed, whatever it held: nothing is posted on it any more. Where something is left, two
// requests of Drain's own are.
func TestDrainIsOver(t *testing.T) {
	for _, c := range []struct {
		closed, sends, probes, over bool
	}{
		{false, false, false, true}, {true, false, false, true}, {true, true, false, true},
		{true, false, true, true}, {false, true, false, false}, {false, false, true, false},
	} {
		q := newLone(t, Config{})
		p := q.pass
		p.rail.closed = c.closed
		if c.sends {
			p.sends++
		}
		if c.probes {
			p.probes.posted++
		}
		over, o := p.finishRecvs(), &p.probes
		if over != c.over || o.sendPosted == over || o.recvPosted == over {
			t.Errorf("%+v: over: %v, probes posted: %v, %v", c, over, o.sendPosted, o.recvPosted)
		}
	}
}
