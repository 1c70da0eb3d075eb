package vqp_test

import (
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// lab is where one test works: a provider that it has opened for itself, and two hosts on its NICs.
// When the test ends everything is closed, and the provider must find nothing left open.
type lab struct {
	tb      testing.TB
	kind    provider
	nics    verbs.Provider
	devices []verbs.Device
	a, b    *host
	closed  bool
}

// newLab opens NICs for a shape. It skips the test where there are not enough of them.
func newLab(tb testing.TB, s *shape) *lab {
	tb.Helper()
	l := &lab{tb: tb, kind: chosen(tb)}
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

// connect makes an end on either host and connects them to hold.
func (l *lab) connect(cfg ibverbx.Config) (a, b *end) {
	l.tb.Helper()
	cfg.Conn = over(l.kind.patient, cfg.Conn)
	return l.join(cfg)
}

// connectHastily does so with ends that soon give up on a silent peer.
func (l *lab) connectHastily(cfg ibverbx.Config) (a, b *end) {
	l.tb.Helper()
	cfg.Conn = over(l.kind.hasty, cfg.Conn)
	return l.join(cfg)
}

func (l *lab) join(cfg ibverbx.Config) (a, b *end) {
	l.tb.Helper()
	a, b = l.a.newEnd(cfg), l.b.newEnd(cfg)
	a.other, b.other = b, a
	if err := link(a, b); err != nil {
		l.tb.Fatal(err)
	}
	return a, b
}

// over is a provider's connection attributes with what a test sets over them.
func over(conn, set ibverbx.ConnConfig) ibverbx.ConnConfig {
	conn.GIDIndex = gidIndex()
	if set.RNRRetry != 0 {
		conn.RNRRetry = set.RNRRetry
	}
	return conn
}

// link exchanges the business cards of two ends, in their wire form, and connects them.
func link(a, b *end) error {
	cardA, errA := a.Card()
	cardB, errB := b.Card()
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	return errors.Join(a.Connect(throughJSON(a.tb(), cardB)), b.Connect(throughJSON(b.tb(), cardA)))
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

// close closes all that the test has left open. Everything that is still outstanding must be
// reported, and nothing may be left.
func (l *lab) close() {
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

// pump takes in what the NICs have completed on both hosts, and says how many requests were
// reported.
func (l *lab) pump() int {
	l.tb.Helper()
	return l.a.pump() + l.b.pump()
}

// until keeps both hosts going until done. It ends the test when no request is reported for as long
// as the flag allows.
func (l *lab) until(what string, done func() bool) {
	l.tb.Helper()
	deadline := time.Now().Add(*waitFlag)
	for idle := 0; !done(); idle++ {
		switch {
		case l.pump() != 0:
			idle, deadline = 0, time.Now().Add(*waitFlag)
		case time.Now().After(deadline):
			l.tb.Fatalf("%s: not within %v\n%s", what, *waitFlag, l.story())
		case idle < 100:
			runtime.Gosched()
		default:
			l.rest()
		}
	}
}

// rest leaves the cores to whoever else has work until something happens on either host, or a
// millisecond has passed: a NIC that has refused work for now raises no event.
func (l *lab) rest() {
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

// story says where everybody stands, for the reader of a failure.
func (l *lab) story() (s string) {
	for _, h := range []*host{l.a, l.b} {
		for _, e := range h.ends {
			s += e.story()
		}
	}
	return s
}

// host is one side: a domain over its NICs, a virtual CQ, and registered memory that its ends
// share.
type host struct {
	lab  *lab
	dom  *ibverbx.Domain
	cq   *ibverbx.VirtualCQ
	mem  *memory
	ends []*end
}

func (l *lab) newHost(nics []int, seed uint64) *host {
	l.tb.Helper()
	h := &host{lab: l}
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

// pump takes in what the host's NICs have completed.
func (h *host) pump() (reported int) {
	h.lab.tb.Helper()
	var wcs [64]ibverbx.WC
	for {
		n, err := h.cq.Poll(wcs[:])
		if err != nil && !errors.Is(err, ibverbx.ErrClosed) {
			h.lab.tb.Fatal(err)
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

// owner is the end that a completion says it is of.
func (h *host) owner(wc *ibverbx.WC) *end {
	h.lab.tb.Helper()
	i := slices.IndexFunc(h.ends, func(e *end) bool { return e.Num() == wc.QPNum })
	if i < 0 {
		h.lab.tb.Fatalf("a completion of no virtual queue pair: %+v", *wc)
	}
	return h.ends[i]
}

// close closes the host's ends, CQ, memory and domain. What is outstanding is reported first.
func (h *host) close() {
	tb := h.lab.tb
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

func isBusy(err error) bool   { return errors.Is(err, verbs.ErrBusy) }
func isClosed(err error) bool { return errors.Is(err, ibverbx.ErrClosed) }
