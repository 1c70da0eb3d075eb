// Package vqptest has what tests and benchmarks of virtual queue pairs share: two connected ends
// over software NICs, stepped ones too, and the physical objects that a test makes by itself. Only
// tests import it.
//
// A Link has two ends, A and B, each with NICs, a registered buffer and a record of what it has
// polled:
//
//	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 4}})
//	l.B.ExpectRecv(t, 7)
//	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 1, 0, 4096))
//	vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess) // 7
//
// Over a stepped fabric (SteppedLink) nothing happens until the test makes it happen, one work
// request at a time: Arrive, Acknowledge, Reveal. The link is closed when the test ends; a NIC that
// still has an open object then fails the test.
package vqptest

import (
	"bytes"
	"cmp"
	"encoding/binary"
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

// Link is two connected virtual queue pairs, each over its own NICs of one fabric and with a
// registered buffer. Cards and memory descriptions go through JSON, as between two processes.
type Link struct {
	TB     testing.TB
	Fabric *soft.Fabric
	A, B   *End
	closed bool
}

// End is one side of a link.
type End struct {
	*ibverbx.VirtualQP
	cq      *ibverbx.VirtualCQ
	dom     *ibverbx.Domain
	Buf     []byte
	MR      *ibverbx.MR      // of Buf
	Peer    ibverbx.RemoteMR // the other end's buffer
	NICs    []*soft.Device
	Other   *End
	Backlog []ibverbx.WC // completions that Pump has polled and Wait has not returned yet
	RailQPs []uint32     // queue pair numbers of the rails, the notify QP last if there is one
}

// LinkConfig describes a link. The zero value has one NIC and one queue pair at each end.
type LinkConfig struct {
	NICs     int // at each end; 0 means one
	QP       ibverbx.Config
	Fabric   soft.Config     // its number of NICs follows from NICs
	Buffer   int             // bytes of the buffer at each end; 0 means 1 MiB
	CQDepth  int             // 0 means that the virtual queue pair creates its virtual CQ
	PeerQP   *ibverbx.Config // configuration of B, if it differs from QP
	EditCard func(*ibverbx.BusinessCard)
	// PeerGIDs is the number of entries of Conn.PeerGIDs that NewLink sets at each end, for cards
	// without addresses. It needs one NIC at each end.
	PeerGIDs int
	// Wrap returns the device that an end uses in place of a NIC; nil means the NIC itself.
	Wrap func(*soft.Device) verbs.Device
}

// NewLink makes two ends and connects them. It closes them when the test ends.
func NewLink(tb testing.TB, c LinkConfig) *Link {
	tb.Helper()
	c.NICs = max(c.NICs, 1)
	if c.QP.QPsPerDevice == 0 {
		c.QP.QPsPerDevice = 1
	}
	if c.Buffer == 0 {
		c.Buffer = 1 << 20
	}
	c.Fabric.Devices = 2 * c.NICs
	fabric, err := soft.New(c.Fabric)
	if err != nil {
		tb.Fatal(err)
	}
	l := &Link{TB: tb, Fabric: fabric}
	peerQP := c.QP
	if c.PeerQP != nil {
		peerQP = *c.PeerQP
	}
	l.A = l.newEnd(c.QP, 0, c)
	l.B = l.newEnd(peerQP, c.NICs, c)
	l.A.Other, l.B.Other = l.B, l.A
	tb.Cleanup(l.Close)
	l.Connect(c.EditCard)
	return l
}

func (l *Link) newEnd(cfg ibverbx.Config, first int, c LinkConfig) *End {
	l.TB.Helper()
	e := &End{Buf: make([]byte, c.Buffer)}
	cfg.Conn.Patience = cmp.Or(cfg.Conn.Patience, ibverbx.PatienceShort)
	cfg.Conn.Access = cmp.Or(cfg.Conn.Access, verbs.AccessAll)
	for range c.PeerGIDs {
		gid, err := l.Fabric.Device(1-first).QueryGID(1, 0)
		if err != nil {
			l.TB.Fatal(err)
		}
		cfg.Conn.PeerGIDs = append(cfg.Conn.PeerGIDs, gid.GID)
	}
	var devices []verbs.Device
	for i := range c.NICs {
		e.NICs = append(e.NICs, l.Fabric.Device(first+i))
		if devices = append(devices, e.NICs[i]); c.Wrap != nil {
			devices[i] = c.Wrap(e.NICs[i])
		}
	}
	var err error
	if e.dom, err = ibverbx.NewDomain(devices...); err != nil {
		l.TB.Fatal(err)
	}
	if c.CQDepth != 0 {
		if e.cq, err = e.dom.NewCQ(c.CQDepth); err != nil {
			l.TB.Fatal(err)
		}
	}
	if e.VirtualQP, err = e.dom.NewQP(e.cq, cfg); err != nil {
		l.TB.Fatal(err)
	}
	e.cq = e.CQ()
	if e.MR, err = e.dom.Register(e.Buf, verbs.AccessAll); err != nil {
		l.TB.Fatal(err)
	}
	for _, r := range e.Stats().Rails {
		e.RailQPs = append(e.RailQPs, r.QPNum)
	}
	return e
}

// Connect exchanges cards and memory descriptions in their wire form. edit, unless nil, changes
// each card before the other end gets it.
func (l *Link) Connect(edit func(*ibverbx.BusinessCard)) {
	l.TB.Helper()
	l.A.Peer, l.B.Peer = ThroughJSON(l.TB, l.B.MR.Remote()), ThroughJSON(l.TB, l.A.MR.Remote())
	through := func(card ibverbx.BusinessCard) ibverbx.BusinessCard {
		if edit != nil {
			edit(&card)
		}
		return ThroughJSON(l.TB, card)
	}
	if err := connect(l.A.VirtualQP, l.B.VirtualQP, through); err != nil {
		l.TB.Fatal(err)
	}
}

// Reconnect connects ends that were reset.
func (l *Link) Reconnect() error { return connect(l.A.VirtualQP, l.B.VirtualQP, nil) }

// ConnectBoth connects two virtual queue pairs by their cards.
func ConnectBoth(tb testing.TB, a, b *ibverbx.VirtualQP) {
	tb.Helper()
	if err := connect(a, b, nil); err != nil {
		tb.Fatal(err)
	}
}

// Connect connects two virtual queue pairs by their cards in wire form.
func Connect(tb testing.TB, a, b *ibverbx.VirtualQP) error {
	tb.Helper()
	return connect(a, b, func(card ibverbx.BusinessCard) ibverbx.BusinessCard {
		return ThroughJSON(tb, card)
	})
}

// connect connects each end with the other's card, as returned by through.
func connect(a, b *ibverbx.VirtualQP, through func(ibverbx.BusinessCard) ibverbx.BusinessCard) error {
	cardA, errA := a.Card()
	cardB, errB := b.Card()
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if through != nil {
		cardA, cardB = through(cardA), through(cardB)
	}
	return errors.Join(a.Connect(cardB), b.Connect(cardA))
}

// Close closes everything that a test has left open, and fails the test if a NIC still has an
// object afterwards.
func (l *Link) Close() {
	if l.closed {
		return
	}
	l.closed = true
	for _, e := range []*End{l.A, l.B} {
		_ = e.Close() // the test may have closed it
		for {         // completions hold memory regions until they are reported
			if _, ok, err := e.cq.PollOne(); !ok || err != nil {
				break
			}
		}
		_ = e.cq.Close()
		_ = e.MR.Close()
		_ = e.dom.Close()
	}
	if err := l.Fabric.Close(); err != nil {
		l.TB.Errorf("leak: %v", err)
	}
}

// ThroughJSON returns a copy of v, converted to JSON and back.
func ThroughJSON[T any](tb testing.TB, v T) (out T) {
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

// Send posts one signaled request, which must be accepted.
func (e *End) Send(tb testing.TB, wr ibverbx.SendWR) {
	tb.Helper()
	wr.Flags |= verbs.SendSignaled
	if n, err := e.PostSend(wr); n != 1 || err != nil {
		tb.Fatalf("PostSend: %d, %v", n, err)
	}
}

// Write returns a WRITE, or a request with another opcode, of n bytes from and to the same offset.
func (e *End) Write(op verbs.Opcode, id, off, n uint64) ibverbx.SendWR {
	return ibverbx.SendWR{ID: id, Opcode: op, Flags: verbs.SendSignaled, Local: e.MR.Slice(off, n),
		Remote: e.Peer.Slice(off, n), Imm: uint32(id)}
}

// ExpectRecv posts a receive for a notification.
func (e *End) ExpectRecv(tb testing.TB, id uint64) {
	tb.Helper()
	if _, err := e.PostRecv(ibverbx.RecvWR{ID: id}); err != nil {
		tb.Fatal(err)
	}
}

// Poll polls, and returns the whole backlog.
func (e *End) Poll(tb testing.TB) []ibverbx.WC {
	tb.Helper()
	e.Pump(tb)
	got := e.Backlog
	e.Backlog = nil
	return got
}

// Pump polls into the backlog.
func (e *End) Pump(tb testing.TB) {
	var wcs [64]ibverbx.WC
	for {
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
		e.Backlog = append(e.Backlog, wcs[:n]...)
		if n < len(wcs) {
			return
		}
	}
}

// Wait returns the next n completions of an end. It polls both ends meanwhile.
func (e *End) Wait(tb testing.TB, n int) []ibverbx.WC {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for len(e.Backlog) < n {
		e.Pump(tb)
		e.Other.Pump(tb)
		if time.Now().After(deadline) {
			tb.Fatalf("%d of %d completions: %s\n err %v, stats %+v\n other end: err %v, stats %+v",
				len(e.Backlog), n, FormatWCs(e.Backlog), e.Err(), e.Stats(), e.Other.Err(), e.Other.Stats())
		}
		runtime.Gosched()
	}
	got := e.Backlog[:n:n]
	e.Backlog = e.Backlog[n:]
	return got
}

// IDs returns the IDs of completions, which must all have the given status.
func IDs(tb testing.TB, wcs []ibverbx.WC, status verbs.Status) []uint64 {
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

// FillRandom fills p with bytes drawn from the seed.
func FillRandom(p []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(p) // never fails
}

// MustEqual fails the test at the first byte in which got and want differ.
func MustEqual(tb testing.TB, what string, got, want []byte) {
	if !bytes.Equal(got, want) {
		tb.Helper()
		i := 0
		for i < len(got) && i < len(want) && got[i] == want[i] {
			i++
		}
		tb.Fatalf("%s: %d and %d bytes, first difference at %d", what, len(got), len(want), i)
	}
}

// Mode is a shape of a virtual queue pair.
type Mode struct {
	Name   string
	NICs   int // at each end
	QPs    int // on each NIC
	Scheme ibverbx.Scheme
}

// Link makes a link in this mode, which sets NICs, QPsPerDevice and Scheme of a configuration.
func (m *Mode) Link(tb testing.TB, c LinkConfig) *Link {
	tb.Helper()
	c.NICs, c.QP.QPsPerDevice, c.QP.Scheme = m.NICs, m.QPs, m.Scheme
	return NewLink(tb, c)
}

// Modes lists the shapes for tests of all shapes.
var Modes = []Mode{
	{"single", 1, 1, ibverbx.DQPLB},
	{"spray/2qp/1nic", 1, 2, ibverbx.Spray},
	{"spray/4qp/2nic", 2, 2, ibverbx.Spray},
	{"spray/4qp/4nic", 4, 1, ibverbx.Spray},
	{"dqplb/2qp/1nic", 1, 2, ibverbx.DQPLB},
	{"dqplb/4qp/2nic", 2, 2, ibverbx.DQPLB},
	{"dqplb/16qp/4nic", 4, 4, ibverbx.DQPLB},
}

// EachMode runs a test in every mode, with fragments of the given size.
func EachMode(t *testing.T, fragment uint32, test func(t *testing.T, l *Link)) {
	for _, m := range Modes {
		t.Run(m.Name, func(t *testing.T) {
			test(t, m.Link(t, LinkConfig{QP: ibverbx.Config{FragmentSize: fragment}}))
		})
	}
}

// EachMultiMode runs a test in every mode with several queue pairs.
func EachMultiMode(t *testing.T, cfg LinkConfig, test func(t *testing.T, l *Link)) {
	for _, m := range Modes {
		if m.QPs*m.NICs == 1 {
			continue
		}
		t.Run(m.Name, func(t *testing.T) { test(t, m.Link(t, cfg)) })
	}
}

// FormatWCs formats completions for a failure message.
func FormatWCs(wcs []ibverbx.WC) string {
	s := ""
	for i := range wcs {
		s += fmt.Sprintf("{id %d %v %v %d bytes imm %d} ", wcs[i].ID, wcs[i].Status.Name(), wcs[i].Opcode,
			wcs[i].ByteLen, wcs[i].Imm)
	}
	return s
}
