package ibverbx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// link is two connected virtual queue pairs, a and b, each over its own NICs of one fabric, with a
// registered buffer on each end. Cards and memory descriptions go through JSON, as between two
// processes.
type link struct {
	tb              testing.TB
	fabric          *soft.Fabric
	a, b            *end
	closed          bool
	inventedCredits uint64 // credits of b that a test has completed itself
}

// end is one side of a link.
type end struct {
	*ibverbx.VirtualQP
	cq      *ibverbx.VirtualCQ
	dom     *ibverbx.Domain
	buf     []byte
	mr      *ibverbx.MR
	peer    ibverbx.RemoteMR // the other side's buffer
	nics    []*soft.Device
	other   *end
	backlog []ibverbx.WC // polled, and not returned to the test yet
	railQP  []uint32     // queue pair numbers of the rails, the notify QP last if there is one
}

// linkConfig shapes a link. The zero value is one NIC and one queue pair an end.
type linkConfig struct {
	nics    int // an end
	qp      ibverbx.Config
	fabric  soft.Config
	buffer  int
	cqDepth int
	peerQP  *ibverbx.Config // b's configuration where it differs
	rawCard func(*ibverbx.BusinessCard)
	// peerGIDs is how many of Conn.PeerGIDs each end is given: of cards without, and one NIC.
	peerGIDs int
	wrap     func(*soft.Device) verbs.Device // what an end uses in place of a NIC; nil for the NIC
}

func newLink(tb testing.TB, c linkConfig) *link {
	tb.Helper()
	c.nics = max(c.nics, 1)
	if c.qp.QPsPerDevice == 0 {
		c.qp.QPsPerDevice = 1
	}
	if c.buffer == 0 {
		c.buffer = 1 << 20
	}
	c.fabric.Devices = 2 * c.nics
	fabric, err := soft.New(c.fabric)
	if err != nil {
		tb.Fatal(err)
	}
	l := &link{tb: tb, fabric: fabric}
	peerQP := c.qp
	if c.peerQP != nil {
		peerQP = *c.peerQP
	}
	l.a = l.newEnd(c.qp, 0, c)
	l.b = l.newEnd(peerQP, c.nics, c)
	l.a.other, l.b.other = l.b, l.a
	tb.Cleanup(l.close)
	l.connect(c.rawCard)
	return l
}

func (l *link) newEnd(cfg ibverbx.Config, first int, c linkConfig) *end {
	l.tb.Helper()
	e := &end{buf: make([]byte, c.buffer)}
	for range c.peerGIDs {
		gid, err := l.fabric.Device(1-first).QueryGID(1, 0)
		if err != nil {
			l.tb.Fatal(err)
		}
		cfg.Conn.PeerGIDs = append(cfg.Conn.PeerGIDs, gid.GID)
	}
	var devices []verbs.Device
	for i := range c.nics {
		e.nics = append(e.nics, l.fabric.Device(first+i))
		if devices = append(devices, e.nics[i]); c.wrap != nil {
			devices[i] = c.wrap(e.nics[i])
		}
	}
	var err error
	if e.dom, err = ibverbx.NewDomain(devices...); err != nil {
		l.tb.Fatal(err)
	}
	if c.cqDepth != 0 {
		if e.cq, err = e.dom.NewCQ(c.cqDepth); err != nil {
			l.tb.Fatal(err)
		}
	}
	if e.VirtualQP, err = e.dom.NewQP(e.cq, cfg); err != nil {
		l.tb.Fatal(err)
	}
	e.cq = e.CQ()
	if e.mr, err = e.dom.Register(e.buf, verbs.AccessAll); err != nil {
		l.tb.Fatal(err)
	}
	for _, r := range e.Stats().Rails {
		e.railQP = append(e.railQP, r.QPNum)
	}
	return e
}

// connect exchanges cards and memory descriptions, in their wire form.
func (l *link) connect(edit func(*ibverbx.BusinessCard)) {
	l.tb.Helper()
	l.a.peer, l.b.peer = throughJSON(l.tb, l.b.mr.Remote()), throughJSON(l.tb, l.a.mr.Remote())
	cardA, err := l.a.Card()
	if err != nil {
		l.tb.Fatal(err)
	}
	cardB, err := l.b.Card()
	if err != nil {
		l.tb.Fatal(err)
	}
	if edit != nil {
		edit(&cardA)
		edit(&cardB)
	}
	if err := l.a.Connect(throughJSON(l.tb, cardB)); err != nil {
		l.tb.Fatal(err)
	}
	if err := l.b.Connect(throughJSON(l.tb, cardA)); err != nil {
		l.tb.Fatal(err)
	}
}

// close closes everything that a test has left open, and fails the test if a NIC still has an
// object afterwards.
func (l *link) close() {
	if l.closed {
		return
	}
	l.closed = true
	for _, e := range []*end{l.a, l.b} {
		_ = e.Close() // the test may have closed it
		for {         // completions hold memory regions until they are reported
			if _, ok, err := e.cq.PollOne(); !ok || err != nil {
				break
			}
		}
		_ = e.cq.Close()
		_ = e.mr.Close()
		_ = e.dom.Close()
	}
	if err := l.fabric.Close(); err != nil {
		l.tb.Errorf("leak: %v", err)
	}
}

// reconnect connects ends that were reset.
func (l *link) reconnect() error {
	cardA, err := l.a.Card()
	if err != nil {
		return err
	}
	cardB, err := l.b.Card()
	if err != nil {
		return err
	}
	return errors.Join(l.a.Connect(cardB), l.b.Connect(cardA))
}

func throughJSON[T any](tb testing.TB, v T) (out T) {
	tb.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		tb.Fatalf("%s: %v", data, err)
	}
	return out
}

// send posts one request that must be accepted.
func (e *end) send(tb testing.TB, wr ibverbx.SendWR) {
	tb.Helper()
	wr.Flags |= verbs.SendSignaled
	if n, err := e.PostSend(wr); n != 1 || err != nil {
		tb.Fatalf("PostSend: %d, %v", n, err)
	}
}

// write is a WRITE or WRITE_WITH_IMM of n bytes from and to the same offset.
func (e *end) write(op verbs.Opcode, id, off, n uint64) ibverbx.SendWR {
	return ibverbx.SendWR{ID: id, Opcode: op, Flags: verbs.SendSignaled, Local: e.mr.Slice(off, n),
		Remote: e.peer.Slice(off, n), Imm: uint32(id)}
}

// expectRecv posts a receive for a notification.
func (e *end) expectRecv(tb testing.TB, id uint64) {
	tb.Helper()
	if _, err := e.PostRecv(ibverbx.RecvWR{ID: id}); err != nil {
		tb.Fatal(err)
	}
}

// poll polls, and returns the whole backlog.
func (e *end) poll(tb testing.TB) []ibverbx.WC {
	tb.Helper()
	e.pump(tb)
	got := e.backlog
	e.backlog = nil
	return got
}

// pump polls into the end's backlog.
func (e *end) pump(tb testing.TB) {
	tb.Helper()
	var wcs [64]ibverbx.WC
	for {
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			tb.Fatal(err)
		}
		e.backlog = append(e.backlog, wcs[:n]...)
		if n < len(wcs) {
			return
		}
	}
}

// wait returns the next n completions of an end, and polls both ends meanwhile.
func (e *end) wait(tb testing.TB, n int) []ibverbx.WC {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for len(e.backlog) < n {
		e.pump(tb)
		e.other.pump(tb)
		if time.Now().After(deadline) {
			tb.Fatalf("%d of %d completions: %s\n err %v, stats %+v\n other end: err %v, stats %+v",
				len(e.backlog), n, fmtWCs(e.backlog), e.Err(), e.Stats(), e.other.Err(), e.other.Stats())
		}
		runtime.Gosched()
	}
	got := e.backlog[:n:n]
	e.backlog = e.backlog[n:]
	return got
}

// ids are the IDs of completions, which must all have the given status.
func ids(tb testing.TB, wcs []ibverbx.WC, status verbs.Status) []uint64 {
	tb.Helper()
	list := []uint64{}
	for i := range wcs {
		if wcs[i].Status != status {
			tb.Errorf("completion %d (id %d): %v, want %v", i, wcs[i].ID, wcs[i].Status.Name(), status.Name())
		}
		list = append(list, wcs[i].ID)
	}
	return list
}

func fillRandom(p []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
}

func mustEqual(tb testing.TB, what string, got, want []byte) {
	tb.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < len(got) && i < len(want) && got[i] == want[i] {
			i++
		}
		tb.Fatalf("%s: %d and %d bytes, first difference at %d", what, len(got), len(want), i)
	}
}

// modes are the shapes of a virtual queue pair.
var modes = []struct {
	name   string
	nics   int
	qps    int // a NIC
	scheme ibverbx.Scheme
}{
	{"single", 1, 1, ibverbx.DQPLB},
	{"spray/2qp/1nic", 1, 2, ibverbx.Spray},
	{"spray/4qp/2nic", 2, 2, ibverbx.Spray},
	{"spray/4qp/4nic", 4, 1, ibverbx.Spray},
	{"dqplb/2qp/1nic", 1, 2, ibverbx.DQPLB},
	{"dqplb/4qp/2nic", 2, 2, ibverbx.DQPLB},
	{"dqplb/16qp/4nic", 4, 4, ibverbx.DQPLB},
}

// eachMode runs a test in every mode, with fragments of the given size.
func eachMode(t *testing.T, fragment uint32, test func(t *testing.T, l *link)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			test(t, newLink(t, linkConfig{nics: m.nics,
				qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps, FragmentSize: fragment}}))
		})
	}
}

func fmtWCs(wcs []ibverbx.WC) string {
	s := ""
	for i := range wcs {
		s += fmt.Sprintf("{id %d %v %v %d bytes imm %d} ", wcs[i].ID, wcs[i].Status.Name(), wcs[i].Opcode,
			wcs[i].ByteLen, wcs[i].Imm)
	}
	return s
}
