package vqp_test

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// testRig is what a test runs on: a provider of its own, and two hosts on its NICs. When the test
// ends, everything is closed, and the provider must find nothing left open.
type testRig struct {
	tb      testing.TB
	kind    provider
	nics    verbs.Provider
	devices []verbs.Device
	a, b    *host
	closed  bool
}

// newRig opens NICs for a shape. It skips the test if there are too few.
func newRig(tb testing.TB, s *shape) *testRig {
	tb.Helper()
	l := &testRig{tb: tb, kind: chosen(tb)}
	if l.kind.crossed && !s.wired() {
		tb.Skip("a rail would join a NIC to itself")
	}
	var err error
	if l.nics, err = l.kind.open(s.nics()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(l.close)
	if l.devices, err = l.nics.Devices(); err != nil {
		tb.Fatal(err)
	}
	if len(l.devices) < s.nics() {
		tb.Skipf("needs %d NICs, there are %d", s.nics(), len(l.devices))
	}
	l.a, l.b = l.newHost(s.a, 1), l.newHost(s.b, 2)
	return l
}

// connect makes an end on each host and connects them with long timeouts.
func (l *testRig) connect(cfg ibverbx.Config) (a, b *end) {
	l.tb.Helper()
	cfg.Conn = over(l.kind.patient, cfg.Conn)
	return l.join(cfg)
}

// connectHasty does so with short timeouts: the ends soon give up on a silent peer.
func (l *testRig) connectHasty(cfg ibverbx.Config) (a, b *end) {
	l.tb.Helper()
	cfg.Conn = over(l.kind.hasty, cfg.Conn)
	return l.join(cfg)
}

func (l *testRig) join(cfg ibverbx.Config) (a, b *end) {
	l.tb.Helper()
	a, b = l.a.newEnd(cfg), l.b.newEnd(cfg)
	a.other, b.other = b, a
	if err := vqptest.Connect(l.tb, a.VirtualQP, b.VirtualQP); err != nil {
		l.tb.Fatal(err)
	}
	return a, b
}

// over overrides a provider's connection attributes with those that a test sets.
func over(conn, set ibverbx.ConnConfig) ibverbx.ConnConfig {
	conn.GIDIndex = gidIndex()
	if set.RNRRetry != 0 {
		conn.RNRRetry = set.RNRRetry
	}
	return conn
}

// close closes what the test has left open. Everything outstanding must be reported, and nothing
// may be left.
func (l *testRig) close() {
	if l.closed {
		return
	}
	l.closed = true
	for _, h := range []*host{l.a, l.b} {
		if h != nil {
			h.close()
		}
	}
	if err := l.nics.Close(); err != nil && !l.tb.Failed() {
		l.tb.Errorf("something is left open: %v", err)
	}
}

// pump polls on both hosts, and returns how many requests were reported.
func (l *testRig) pump() int {
	l.tb.Helper()
	return l.a.pump() + l.b.pump()
}

// until polls on both hosts until done. It fails the test if no request is reported for as long as
// the flag allows.
func (l *testRig) until(what string, done func() bool) {
	l.tb.Helper()
	deadline := time.Now().Add(*waitFlag)
	for idle := 0; !done(); idle++ {
		switch {
		case l.pump() != 0:
			idle, deadline = 0, time.Now().Add(*waitFlag)
		case time.Now().After(deadline):
			l.tb.Fatalf("%s: not within %v\n%s", what, *waitFlag, l.describe())
		case idle < 100:
			runtime.Gosched()
		default:
			l.rest()
		}
	}
}

// rest sleeps until an event on either host, or for a millisecond: a NIC that has refused a request
// for now raises no event.
func (l *testRig) rest() {
	l.tb.Helper()
	for _, h := range []*host{l.a, l.b} {
		if err := h.cq.Arm(); err != nil && !errors.Is(err, ibverbx.ErrClosed) {
			l.tb.Fatal(err)
		}
	}
	if l.pump() != 0 {
		return
	}
	select {
	case <-l.a.cq.Events():
	case <-l.b.cq.Events():
	case <-time.After(time.Millisecond):
	}
}

// describe describes the state of both hosts.
func (l *testRig) describe() (s string) {
	for _, h := range []*host{l.a, l.b} {
		for _, e := range h.ends {
			s += e.describe()
		}
	}
	return s
}

// host is one side: a domain over its NICs, a virtual CQ, and registered memory that its ends
// share.
type host struct {
	rig  *testRig
	dom  *ibverbx.Domain
	cq   *ibverbx.VirtualCQ
	mem  *memory
	ends []*end
}

func (l *testRig) newHost(nics []int, seed uint64) *host {
	l.tb.Helper()
	h := &host{rig: l}
	var devices []verbs.Device
	for _, i := range nics {
		devices = append(devices, l.devices[i])
	}
	var err error
	if h.dom, err = ibverbx.NewDomain(devices...); err != nil {
		l.tb.Fatal(err)
	}
	if h.cq, err = h.dom.NewCQ(0); err != nil {
		l.tb.Fatal(err)
	}
	h.mem = newMemory(h, seed)
	return h
}

// pump polls on the host.
func (h *host) pump() (reported int) {
	h.rig.tb.Helper()
	var wcs [64]ibverbx.WC
	for {
		n, err := h.cq.Poll(wcs[:])
		if err != nil && !errors.Is(err, ibverbx.ErrClosed) {
			h.rig.tb.Fatal(err)
		}
		for i := range wcs[:n] {
			h.owner(&wcs[i]).report(&wcs[i])
		}
		reported += n
		if n < len(wcs) {
			return reported
		}
	}
}

// owner is the end that a completion names.
func (h *host) owner(wc *ibverbx.WC) *end {
	h.rig.tb.Helper()
	i := slices.IndexFunc(h.ends, func(e *end) bool { return e.Num() == wc.QPNum })
	if i < 0 {
		h.rig.tb.Fatalf("a completion of no virtual queue pair: %+v", *wc)
	}
	return h.ends[i]
}

// close closes the ends, CQ, memory and domain of the host. What is outstanding is reported first.
func (h *host) close() {
	tb := h.rig.tb
	tb.Helper()
	for _, e := range h.ends {
		if !e.closed {
			e.close()
		}
	}
	if err := h.cq.Close(); err != nil && !isClosed(err) { // the test may have closed it
		tb.Errorf("close the virtual CQ: %v", err)
	}
	h.pump()
	if err := h.mem.mr.Close(); err != nil && !isClosed(err) && !tb.Failed() {
		tb.Errorf("close the memory: %v", err)
	}
	if err := h.dom.Close(); err != nil && !tb.Failed() {
		tb.Errorf("close the domain: %v", err)
	}
}

func isClosed(err error) bool { return errors.Is(err, ibverbx.ErrClosed) }

// No goroutine may be left after the tests. Those that run in parallel wait for timeouts and take
// little of a processor.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // unless the command line says otherwise
	flag.Parse()
	goleak.VerifyTestMain(inTurn{m})
}

// inTurn runs the tests on one provider after the other.
type inTurn struct{ m *testing.M }

func (t inTurn) Run() (code int) {
	for name := range strings.SplitSeq(*providerFlag, ",") {
		fmt.Println("provider:", name)
		*providerFlag = name
		code = max(code, t.m.Run())
	}
	return code
}
