package tagged_test

import (
	"errors"
	"runtime"
	"testing"

	"ibverbx/tagged"
	"ibverbx/transport"
)

// visit has worker 1 send n messages of so many bytes to worker 0, over endpoints of their own, and
// returns both ends when all messages have arrived.
func (r *rig) visit(n, length int, tag uint64) (a, b *tagged.Endpoint) {
	r.t.Helper()
	before := r.workers[0].Stats().CameUnexpected
	a, b = r.connect(0, 1)
	for range n {
		r.send(b, tag, pattern(length, 1))
	}
	r.until(func() bool { return r.workers[0].Stats().CameUnexpected == before+uint64(n) })
	return a, b
}

// TestAbortDropsMessages: what came from the peer of an endpoint that is aborted cannot be received
// any more, and takes no memory.
func TestAbortDropsMessages(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	w := r.workers[0]
	a, b := r.visit(3, 100, 1)
	other, _ := r.visit(1, 100, 2)
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	if info, found := w.Probe(1, tagged.Exact); found {
		t.Errorf("a message of the peer is still there: %+v", info)
	}
	if info, found := w.Probe(0, tagged.Any); !found || info.Source != other {
		t.Errorf("the message of another peer: %v, %+v", found, info)
	}
	if s := w.Stats(); s.Unexpected != 1 || s.UnexpectedBytes != 128 || s.Dropped != 3 {
		t.Errorf("%d messages in %d bytes are kept, %d were dropped: want 1, 128, 3", s.Unexpected,
			s.UnexpectedBytes, s.Dropped)
	}
	_ = b.Abort()
}

// TestLeftoversAreBounded: messages can be received after their endpoint was closed; all closed
// endpoints together leave MaxLeftover fragments at most, and the oldest ones go first.
func TestLeftoversAreBounded(t *testing.T) {
	for _, c := range []struct{ most, visits, want int }{{0, 1, 4}, {0, 5, 4}, {10, 5, 10}, {-1, 3, 0}} {
		r := newRig(t, 2, 1, tagged.Config{MaxUnexpected: 4, MaxLeftover: c.most})
		w := r.workers[0]
		var last *tagged.Endpoint
		for i := range c.visits {
			a, b := r.visit(4, 5000, uint64(i))
			go func() { _ = b.Close(timeout(t, 0)) }()
			if err := a.Close(timeout(t, 20e9)); err != nil && !errors.Is(err, tagged.ErrPeerFailed) {
				t.Fatal(err)
			}
			last = a
		}
		s := w.Stats()
		if s.Unexpected != c.want || s.Leftover != c.want || int(s.Dropped) != 4*c.visits-c.want {
			t.Fatalf("%+v: %d messages are kept, %d of closed endpoints, %d dropped", c, s.Unexpected,
				s.Leftover, s.Dropped)
		}
		if c.want == 0 {
			continue
		}
		if info, found := w.Probe(0, tagged.Any); !found || info.Tag != uint64(c.visits-(c.want+3)/4) {
			t.Errorf("%+v: the oldest message that is left is of visit %d", c, info.Tag)
		}
		for range c.want {
			req := r.recv(w, 0, tagged.Any, make([]byte, 5000))
			if !req.Done() || req.Err() != nil {
				t.Fatalf("%+v: receive of what is left: done %v, %v", c, req.Done(), req.Err())
			}
			if info := req.Info(); info.Tag == uint64(c.visits-1) && info.Source != last {
				t.Errorf("%+v: the source of a message of the last visit is %v", c, info.Source)
			}
		}
		if s := w.Stats(); s.Unexpected != 0 || s.Leftover != 0 || s.UnexpectedBytes != 0 {
			t.Errorf("%+v: all is received, and is left: %+v", c, s)
		}
	}
}

// TestLeftoverKeepsNoBuffers: a message that an endpoint has left takes what the package's
// documentation says, and so none of the buffers of the endpoint that it came by.
func TestLeftoverKeepsNoBuffers(t *testing.T) {
	const (
		bufferSize = 8 << 10
		ofMessage  = 350     // bytes beside its block
		ofEndpoint = 4 << 10 // of one that was closed; among them some 0.8 KiB are the test's own
	)
	for _, c := range []struct{ length, block, buffers int }{
		{1, 64, 0}, {bufferSize - 100, bufferSize, 0}, {1, 64, 500},
	} {
		each := leftBehind(t, transport.Config{BufferSize: bufferSize, AMBuffers: c.buffers}, c.length)
		t.Logf("%+v: %d bytes for each message", c, each)
		if most := c.block + ofMessage + ofEndpoint; each > most {
			t.Errorf("%+v: a message keeps %d bytes of memory, at most %d are promised", c, each, most)
		}
	}
}

// leftBehind is how many bytes of memory a message of that length takes, in one fragment, whose
// endpoint was closed.
func leftBehind(t *testing.T, buffers transport.Config, length int) int {
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	cfg := impatient()
	cfg.MaxUnexpected = 200
	cfg.Transport.BufferSize, cfg.Transport.AMBuffers = buffers.BufferSize, buffers.AMBuffers
	r := newRig(t, 2, 1, cfg)
	visit := func() {
		a, b := r.visit(1, length, 1)
		_ = b.Abort()
		r.settle()
		_ = a.Close(timeout(t, 20e9)) // the peer is gone
		r.settle()
	}
	const visits = 60 // the NIC's own rings hold on to the last few queue pairs: go round them first
	for range visits {
		visit()
	}
	before := heap()
	for range visits {
		visit()
	}
	each := (heap() - before) / visits
	if r.workers[0].Stats().Unexpected != 2*visits {
		t.Fatal("messages are missing")
	}
	return each
}
