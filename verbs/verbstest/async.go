package verbstest

import (
	"slices"
	"testing"
	"time"

	"ibverbx/verbs"
)

// Asynchronous events, which a NIC reports outside completions.

func testAsync(t *testing.T, s *suite) {
	s.run(t, "link", s.asyncLink)
	s.run(t, "two_watchers", s.asyncTwoWatchers)
	s.run(t, "no_room", s.asyncNoRoom)
	s.run(t, "stop", s.asyncStop)
	s.run(t, "only_when_something_fails", s.asyncDeliberate)
	s.run(t, "overrun", s.asyncOverrun)
	s.run(t, "responder", s.asyncResponder)
}

// watch watches a device until the test ends.
func watch(t *testing.T, dev verbs.Device) <-chan verbs.Event {
	c := make(chan verbs.Event, 64)
	t.Cleanup(dev.Watch(c))
	return c
}

// nextAsync waits for the next event of one of the types and ignores others: NICs report more than
// is tested here, for example that a port loses its GIDs with its link.
func (n *Node) nextAsync(
	c <-chan verbs.Event, timeout time.Duration, types ...verbs.EventType,
) (e verbs.Event, ok bool) {
	take := func() bool {
		for {
			select {
			case e = <-c:
				if slices.Contains(types, e.Type) {
					return true
				}
			default:
				return false
			}
		}
	}
	ok = n.within(timeout, take)
	return e, ok
}

// wantAsync waits for an event and checks that it is from the device.
func (n *Node) wantAsync(c <-chan verbs.Event, typ verbs.EventType) verbs.Event {
	n.T.Helper()
	e, ok := n.nextAsync(c, n.Env.Timeout, typ)
	if !ok {
		n.T.Fatalf("no event %s within %v", typ.Name(), n.Env.Timeout)
	}
	if e.Device != n.Dev {
		n.T.Errorf("%v: not of the device that was watched, %s", e, n.Dev.Name())
	}
	return e
}

// wantNoAsync checks that no event of the types arrives for a while.
func (n *Node) wantNoAsync(c <-chan verbs.Event, types ...verbs.EventType) {
	n.T.Helper()
	if e, ok := n.nextAsync(c, quiet, types...); ok {
		n.T.Errorf("an event without a cause: %v", e)
	}
}

// linkNode makes a node on the first device, and brings its link up again after the test, with the
// address that it had.
func (s *suite) linkNode(t *testing.T) *Node {
	t.Helper()
	if s.env.SetLink == nil {
		t.Skip("the environment has no way to take a link down")
	}
	n := s.node(t)
	t.Cleanup(func() {
		s.env.SetLink(t, n.Dev, true)
		if !n.Until(func() bool {
			gid, err := n.Dev.QueryGID(s.env.Port, s.env.gidIndex(n.Dev))
			return s.active(n) && err == nil && !gid.GID.IsZero()
		}) {
			t.Errorf("%s port %d did not come back", n.Dev.Name(), s.env.Port)
		}
	})
	return n
}

func (s *suite) active(n *Node) bool {
	port, err := n.Dev.QueryPort(s.env.Port)
	return err == nil && port.State == verbs.PortActive
}

// asyncLink takes the link down and up, twice. Event and state agree, though one may precede the
// other a little.
func (s *suite) asyncLink(t *testing.T) {
	n := s.linkNode(t)
	c := watch(t, n.Dev)
	for range 2 {
		for _, up := range []bool{false, true} {
			typ := verbs.EventPortErr
			if up {
				typ = verbs.EventPortActive
			}
			s.env.SetLink(t, n.Dev, up)
			if e := n.wantAsync(c, typ); e.Port != s.env.Port {
				t.Errorf("%v: want port %d", e, s.env.Port)
			}
			if !n.Until(func() bool { return s.active(n) == up }) {
				t.Errorf("port %d is active: %t, after %s", s.env.Port, s.active(n), typ.Name())
			}
		}
	}
}

// asyncTwoWatchers has two watchers of one device and, if the devices' links are independent, one
// of the other.
func (s *suite) asyncTwoWatchers(t *testing.T) {
	n := s.linkNode(t)
	first, second, other := watch(t, n.Dev), watch(t, n.Dev), watch(t, s.b)
	s.env.SetLink(t, n.Dev, false)
	n.wantAsync(first, verbs.EventPortErr)
	n.wantAsync(second, verbs.EventPortErr)
	// The two ends of one cable go down together.
	if s.env.Strict && s.a != s.b {
		n.wantNoAsync(other, verbs.EventPortErr)
	}
}

// asyncNoRoom has watchers without room beside one with room, which must miss nothing.
func (s *suite) asyncNoRoom(t *testing.T) {
	n := s.linkNode(t)
	full := make(chan verbs.Event, 1)
	full <- verbs.Event{Type: verbs.EventSMChange}
	for _, c := range []chan verbs.Event{full, make(chan verbs.Event), nil} {
		t.Cleanup(n.Dev.Watch(c))
	}
	c := watch(t, n.Dev)
	s.env.SetLink(t, n.Dev, false)
	n.wantAsync(c, verbs.EventPortErr)
	s.env.SetLink(t, n.Dev, true)
	n.wantAsync(c, verbs.EventPortActive)
	if e := <-full; e.Type != verbs.EventSMChange {
		t.Errorf("a full channel has replaced what it held by %v", e)
	}
}

// asyncStop ends a watch before an event.
func (s *suite) asyncStop(t *testing.T) {
	n := s.linkNode(t)
	stopped := make(chan verbs.Event, 64)
	stop := n.Dev.Watch(stopped)
	c := watch(t, n.Dev)
	stop()
	before := len(stopped) // a real NIC may already have reported something
	s.env.SetLink(t, n.Dev, false)
	n.wantAsync(c, verbs.EventPortErr)
	stop()
	s.env.SetLink(t, n.Dev, true)
	n.wantAsync(c, verbs.EventPortActive)
	if len(stopped) != before {
		t.Errorf("%d events after stop", len(stopped)-before)
	}
	close(stopped)
}

// asyncDeliberate checks that there is no failure event for what the program does on purpose, or
// for what a completion reports.
func (s *suite) asyncDeliberate(t *testing.T) {
	p := s.pair(t, PairConfig{})
	a, b := watch(t, s.a), watch(t, s.b)
	p.A.probe(1)
	p.A.PostRecv(verbs.RecvWR{ID: 2})
	p.A.Modify(verbs.StateErr)
	p.A.wantFlushed(p.A.WaitRecv(1), 2)
	p.B.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite,
		SGL: []verbs.SGE{{Addr: p.B.Buf.Addr(), Length: 8, LKey: wrongKey(p.B.Buf.LKey())}}})
	p.B.WaitSend(1)
	for _, c := range []<-chan verbs.Event{a, b} {
		p.A.wantNoAsync(c, verbs.EventCQErr, verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr,
			verbs.EventDeviceFatal)
	}
}

// asyncOverrun overruns a completion queue and expects its event, and that of the queue pair, which
// has no completion to report with. Only strict providers must raise the latter: in rdma_rxe the
// queue pair goes on.
func (s *suite) asyncOverrun(t *testing.T) {
	c := watch(t, s.a)
	p := s.overrun(t)
	if e := p.A.wantAsync(c, verbs.EventCQErr); e.CQ != p.A.SendCQ {
		t.Errorf("%v: not of the queue that has overrun", e)
	}
	if !s.env.Strict {
		return
	}
	if e := p.A.wantAsync(c, verbs.EventQPFatal); e.QPNum != p.A.QP.Num() {
		t.Errorf("%v: want queue pair %d", e, p.A.QP.Num())
	}
	p.A.wantNoAsync(c, verbs.EventCQErr, verbs.EventQPFatal)
}

// asyncResponder makes the peer refuse an RDMA request. No receive of the peer ends with that
// error, so an event reports it (IBTA 11.6.3). Only strict providers must raise it: rdma_rxe raises
// none, and NICs differ in which of the two events they raise.
func (s *suite) asyncResponder(t *testing.T) {
	if !s.env.Strict {
		t.Skip("what a responder reports differs from NIC to NIC")
	}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		for _, typ := range []verbs.EventType{verbs.EventQPAccessErr, verbs.EventQPReqErr} {
			s.run(t, op.String()+"_"+typ.Name(), func(t *testing.T) {
				cfg := PairConfig{}
				if typ == verbs.EventQPReqErr {
					cfg.Adjust = func(_ verbs.QP, attr *verbs.QPAttr) { attr.Access = verbs.AccessLocalWrite }
				}
				p := s.pair(t, cfg)
				c := watch(t, s.b)
				p.A.PostSend(verbs.SendWR{
					ID: 1, Opcode: op, SGL: p.A.Buf.SGL(0, 8), RemoteAddr: p.B.Buf.At(len(p.B.Buf.B)),
					RKey: p.B.Buf.RKey(),
				})
				if e := p.B.wantAsync(c, typ); e.QPNum != p.B.QP.Num() {
					t.Errorf("%v: want queue pair %d", e, p.B.QP.Num())
				}
				p.B.wantState(verbs.StateErr)
				p.A.WaitSend(1)
				p.A.wantNoAsync(c, verbs.EventQPAccessErr, verbs.EventQPReqErr, verbs.EventQPFatal)
			})
		}
	}
}
