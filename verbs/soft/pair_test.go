package soft

import (
	"errors"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// end is one side of a connection: everything it needs, closed with the test.
type end struct {
	t   testing.TB
	dev *Device
	pd  verbs.PD
	mr  verbs.MR
	buf []byte
	cq  *CQ // of sends
	rcq *CQ // of receives
	qp  *QP
}

type endConfig struct {
	buf     int // bytes
	depth   int // of the CQs
	qp      verbs.QPCap
	channel *verbs.CompChannel
}

// connection holds the attributes that connect sets; tests change them through a function.
type connection = verbs.QPAttr

func newFabric(t testing.TB, cfg Config) *Fabric {
	t.Helper()
	if cfg.Devices == 0 {
		cfg.Devices = 2
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // here, since it takes a microsecond
		t.Fatal(err)
	}
}

func newEnd(t testing.TB, d *Device, cfg endConfig) *end {
	t.Helper()
	if cfg.buf == 0 {
		cfg.buf = 64 << 10
	}
	e := &end{t: t, dev: d, buf: make([]byte, cfg.buf)}
	var err error
	e.pd, err = d.AllocPD()
	must(t, err)
	e.mr, err = e.pd.RegisterMR(e.buf, verbs.AccessAll)
	must(t, err)
	cq, err := d.CreateCQ(verbs.CQConfig{Depth: cfg.depth, Channel: cfg.channel})
	must(t, err)
	rcq, err := d.CreateCQ(verbs.CQConfig{Depth: cfg.depth, Channel: cfg.channel})
	must(t, err)
	e.cq, e.rcq = cq.(*CQ), rcq.(*CQ)
	e.newQP(cfg.qp)
	t.Cleanup(func() { e.close() })
	return e
}

func (e *end) newQP(qcap verbs.QPCap) {
	e.t.Helper()
	qp, err := e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.rcq, Cap: qcap})
	must(e.t, err)
	e.qp = qp.(*QP)
}

// replaceCQ gives the end another queue for its sends, and with it another queue pair.
func (e *end) replaceCQ() {
	e.t.Helper()
	must(e.t, e.qp.Close())
	must(e.t, e.cq.Close())
	cq, err := e.dev.CreateCQ(verbs.CQConfig{Depth: e.cq.Depth(), Channel: e.cq.Channel()})
	must(e.t, err)
	e.cq = cq.(*CQ)
	e.newQP(e.qp.Cap())
}

// close closes what is still open.
func (e *end) close() {
	for _, c := range []interface{ Close() error }{e.qp, e.mr, e.cq, e.rcq, e.pd} {
		if err := c.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			e.t.Error(err)
		}
	}
}

// connect takes both sides to RTS. Timers are short: an acknowledgement times out after 1 ms, RNR
// after 10 µs.
func connect(t testing.TB, a, b *end, change ...func(*connection)) {
	t.Helper()
	for _, pair := range [][2]*end{{a, b}, {b, a}} {
		raise(t, pair[0], pair[1], change...)
	}
}

func raise(t testing.TB, a, b *end, change ...func(*connection)) {
	t.Helper()
	attr := connection{
		PathMTU:         verbs.MTU4096,
		DestQPNum:       b.qp.Num(),
		RQPSN:           100,
		SQPSN:           100,
		Access:          verbs.AccessAll,
		MaxRDAtomic:     4,
		MaxDestRDAtomic: 4,
		MinRNRTimer:     1,
		Port:            1,
		Timeout:         8,
		RetryCount:      3,
		RNRRetry:        7,
		AH:              verbs.AH{DGID: b.dev.gids[0], Port: 1, Global: true},
	}
	for _, c := range change {
		c(&attr)
	}
	must(t, verbstest.ToRTS(a.qp, attr))
}

func setState(t testing.TB, e *end, s verbs.QPState) {
	t.Helper()
	must(t, e.qp.Modify(&verbs.QPAttr{State: s}, verbs.QPAttrState))
}

// sge names n bytes of the end's buffer.
func (e *end) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}}
}

// write is a signaled write of n bytes at off to the same place at the peer.
func (e *end) write(peer *end, id uint64, off, n int) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: e.sge(off, n),
		RemoteAddr: peer.mr.Addr() + uint64(off), RKey: peer.mr.RKey(),
	}
}

// send is a signaled send of n bytes at off.
func (e *end) send(id uint64, off, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: e.sge(off, n)}
}

func (e *end) post(wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend(wrs)
	if err != nil || n != len(wrs) {
		e.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

func (e *end) recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	n, err := e.qp.PostRecv(wrs)
	if err != nil || n != len(wrs) {
		e.t.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
}

// await polls until n completions came.
func await(t testing.TB, cq verbs.CQ, n int) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, n)
	got := 0
	for end := time.Now().Add(10 * time.Second); got < n; {
		m, err := cq.Poll(wcs[got:])
		must(t, err)
		got += m
		if m == 0 {
			if time.Now().After(end) {
				t.Fatalf("%d of %d completions: %+v", got, n, wcs[:got])
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	return wcs
}

// awaitStatus polls one completion and compares it.
func awaitStatus(t testing.TB, cq verbs.CQ, id uint64, want verbs.Status) verbs.WC {
	t.Helper()
	wc := await(t, cq, 1)[0]
	if wc.ID != id || wc.Status != want {
		t.Fatalf("completion of request %d: %v, want %d: %v", wc.ID, wc.Status.Name(), id, want.Name())
	}
	return wc
}

func nothing(t testing.TB, cq verbs.CQ) {
	t.Helper()
	var wcs [1]verbs.WC
	if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
		t.Fatalf("poll: %d %+v %v, want nothing", n, wcs[0], err)
	}
}

// pair is two connected ends on two NICs.
func pair(t testing.TB, cfg Config, ends endConfig, change ...func(*connection)) (*Fabric, *end, *end) {
	t.Helper()
	f := newFabric(t, cfg)
	a, b := newEnd(t, f.Device(0), ends), newEnd(t, f.Device(1), ends)
	connect(t, a, b, change...)
	return f, a, b
}
