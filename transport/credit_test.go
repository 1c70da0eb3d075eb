package transport_test

import (
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// A peer that only receives gives credits back by themselves once half of its buffers are free, and
// not before.
func TestCreditsComeBackByHalves(t *testing.T) {
	for _, buffers := range []int{1, 2, 4, 8, 16, 32} {
		s := shapes()[0]
		s.stepped = true
		s.cfg.AMBuffers = buffers
		l := newLink(t, s)
		for sent := 1; sent <= 2*buffers; sent++ {
			l.send(l.a, nil)
			l.quiet()
			want := buffers - sent%((buffers+1)/2)
			if got := l.a.Stats().Credits; got != want {
				t.Fatalf("%d buffers: %d credits after %d messages, want %d", buffers, got, sent, want)
			}
		}
		if n, want := l.b.w.Stats().Control, uint64(2*buffers/((buffers+1)/2)); n != want {
			t.Errorf("%d buffers: %d messages with credits, want %d", buffers, n, want)
		}
	}
}

// A receiver that keeps AM buffers makes the sender meet ErrNoResource, and nothing is lost; it
// goes on when they are released.
func TestContract17KeptMessagesHoldTheSender(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped, s.scramble = true, true
		var kept []*transport.Message
		s.handle = func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
		l := newLink(t, s)
		buffers := l.b.w.Config().AMBuffers
		sent, taken := 0, 0
		for range 3 {
			for range 20 {
				sent += try(t, func(i int) error { return l.a.AMShort(1, nil, []byte{byte(sent + i)}) })
				l.quiet()
			}
			if len(kept) != buffers || sent != taken+buffers {
				t.Fatalf("%d sent and %d kept: the receiver has %d buffers", sent-taken, len(kept), buffers)
			}
			if s := l.b.w.Stats(); s.AMKept != buffers {
				t.Errorf("%+v", s)
			}
			must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0))) // what needs no buffer of the peer goes on
			for _, m := range kept {
				if len(m.Data()) != 1 || m.Data()[0] != byte(taken) {
					t.Fatalf("message %d carries % x", taken, m.Data())
				}
				taken++
				m.Release()
			}
			kept = nil
			l.quiet()
		}
		if a, b := l.a.Stats(), l.b.Stats(); a.Credits+b.Owed != buffers {
			t.Errorf("all is released: the sender has %+v, the receiver %+v", a, b)
		}
	})
}

// Every message that is released gives a credit back, in any order: after each the sender gets one
// more message through.
func TestContract17EveryReleaseResumesTheSender(t *testing.T) {
	s := setup{cfg: transport.Config{AMBuffers: 4, QP: shapes()[1].cfg.QP}, stepped: true}
	var kept []*transport.Message
	keep := false
	s.handle = func(m *transport.Message) {
		if keep {
			m.Keep()
			kept = append(kept, m)
		}
	}
	l := newLink(t, s)
	l.send(l.a, nil) // its credit is due at the receiver, which has no reason yet to send it
	l.quiet()
	keep = true
	for range 4 {
		l.send(l.a, nil)
		l.quiet()
	}
	if s := l.a.Stats(); len(kept) != 4 || s.Credits != 0 {
		t.Fatalf("%d kept: %+v", len(kept), s)
	}
	for range 20 {
		m := kept[0]
		kept = kept[1:]
		m.Release()
		l.quiet()
		must(t, l.a.AMShort(1, nil, nil))
		l.quiet()
	}
	for _, m := range kept {
		m.Release()
	}
}

// Credits that are due while no earlier message with credits is acknowledged are sent once one is.
func TestContract17CreditsOutlastSlowAcknowledgements(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.stepped = true
		s.cfg.AMBuffers = 1
		l := newLink(t, s)
		var actions []soft.Action
		received := func() { // everything happens except that b's sends are acknowledged
			for again := true; again; {
				again = false
				actions = l.fabric.Actions(actions[:0])
				for _, x := range actions {
					ofB := int(x.Device) >= len(l.a.nics)
					if ofB && (x.Kind == soft.Acknowledge || x.Kind == soft.Reveal && !x.Recv) {
						continue
					}
					again = l.fabric.Do(x) || again
				}
				again = l.a.w.Progress()+l.b.w.Progress() != 0 || again
			}
		}
		sent := 0
		for range 6 {
			err := l.a.AMShort(1, nil, nil)
			if err == nil {
				sent++
			} else if err != transport.ErrNoResource {
				t.Fatal(err)
			}
			received()
		}
		if sent < 2 || l.got != sent {
			t.Fatalf("%d sent, %d received", sent, l.got)
		}
		l.quiet()
		for range 6 {
			must(t, l.a.AMShort(1, nil, nil))
			l.quiet()
		}
	})
}
