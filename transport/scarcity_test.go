package transport_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx/transport"
)

// outOfCredits is a link whose receiver has kept every buffer.
func outOfCredits(t *testing.T, cfg transport.Config) (l *link, kept *[]*transport.Message) {
	t.Helper()
	kept = new([]*transport.Message)
	s := setup{cfg: cfg}
	s.cfg.KeepAlive = -1 // nothing else may wake a goroutine
	s.handle = func(m *transport.Message) { m.Keep(); *kept = append(*kept, m) }
	l = newLink(t, s)
	buffers := l.b.w.Config().AMBuffers
	for range buffers {
		l.send(l.a, nil)
	}
	l.until("the peer keeps all credits", func() bool {
		return len(*kept) == buffers &&
			l.a.Stats().Outstanding == 0
	})
	t.Cleanup(func() {
		for _, m := range *kept {
			m.Release()
		}
	})
	return l, kept
}

// What a request lacked is its own: the one behind it in the queue does not wait for that, however
// the first one left the queue.
func TestContract04WhatARequestLacksIsItsOwn(t *testing.T) {
	lacksCredit := func(answer transport.Outcome) *transport.Pending {
		return request(func(head *transport.Endpoint) transport.Outcome {
			if err := head.AMShort(1, nil, nil); err != transport.ErrNoResource {
				t.Errorf("%v", err)
			}
			return answer
		})
	}
	t.Run("purged", func(t *testing.T) {
		l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, Spin: -1})
		if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
			t.Fatal(err)
		}
		must(t, l.a.Pending(lacksCredit(transport.PendingNoResource)))
		flushed := make(chan error, 1)
		go func() { flushed <- l.a.Flush(within(t), transport.FlushLocal) }()
		sleeping(t, l.a.w, 1)
		l.a.Purge(func(*transport.Pending) {})
		must(t, <-flushed)
	})
	t.Run("done", func(t *testing.T) {
		l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, BounceBuffers: 2})
		try(t, func(int) error { _, err := l.a.PutBcopy(pack([]byte{1}), l.a.peer.At(0)); return err })
		must(t, l.a.Pending(lacksCredit(transport.PendingDone)))
		put := false
		must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
			o := outcome(t, head.PutShort([]byte{1}, l.a.peer.At(0)))
			put = o == transport.PendingDone
			return o
		})))
		l.until("the put behind it", func() bool { return put })
	})
	t.Run("forgotten", func(t *testing.T) {
		l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, MaxOutstanding: 2, Spin: -1})
		if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
			t.Fatal(err)
		}
		l.a.fill(t) // a put meets a full window
		must(t, l.a.w.Start())
		sleeping(t, l.a.w, 1)
		put := transport.NewCompletion(1, nil)
		for {
			err := l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
				o := outcome(t, head.PutShort([]byte{1}, l.a.peer.At(0)))
				if o == transport.PendingDone {
					put.Done(nil)
				}
				return o
			}))
			if err == nil {
				break
			}
			if !errors.Is(err, transport.ErrBusy) {
				t.Fatal(err)
			}
			if err := l.a.PutShort([]byte{1}, l.a.peer.At(0)); err == nil {
				return // no request is needed
			}
		}
		must(t, l.b.w.Wait(within(t), put))
	})
}

// Purge wakes a goroutine that waits in Close.
func TestPurgeWakesClose(t *testing.T) {
	l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, Spin: -1})
	if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Fatal(err)
	}
	must(t, l.a.Pending(
		request(func(head *transport.Endpoint) transport.Outcome { return transport.PendingNoResource })))
	closed := make(chan error, 1)
	go func() { closed <- l.a.Close(within(t)) }()
	sleeping(t, l.a.w, 1)
	l.a.Purge(func(*transport.Pending) {})
	must(t, <-closed)
}

// A silent peer is probed although another endpoint is busy.
func TestKeepAliveBesideOtherTraffic(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin, s.cfg.KeepAlive = -1, 5*time.Millisecond
	l := newLink(t, s)
	busy, _ := l.another(transport.EndpointConfig{})
	// Few rounds of progress, and events more often than probes are due.
	for puts := 0; puts < 25 && l.a.w.Stats().Probes == 0; puts++ {
		next := time.Now().Add(2 * time.Millisecond)
		must(t, busy.PutShort([]byte{1}, busy.peer.At(0)))
		must(t, l.a.w.WaitFor(within(t), 2*time.Millisecond, func() bool { return time.Now().After(next) }))
	}
	if l.a.w.Stats().Probes == 0 {
		t.Error("the silent peer was not probed")
	}
}

// Abort while another goroutine closes: Close returns that the endpoint was aborted.
func TestCloseSaysThatItWasAborted(t *testing.T) {
	l, _ := outOfCredits(t, transport.Config{AMBuffers: 2, Spin: -1})
	if err := l.a.AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Fatal(err)
	}
	must(t, l.a.Pending(request(func(head *transport.Endpoint) transport.Outcome {
		if head.AMShort(1, nil, nil) == transport.ErrNoResource {
			return transport.PendingNoResource
		}
		return transport.PendingDone
	})))
	closed := make(chan error, 1)
	go func() { closed <- l.a.Close(within(t)) }()
	sleeping(t, l.a.w, 1)
	must(t, l.a.Abort(nil))
	if err := <-closed; !errors.Is(err, transport.ErrCanceled) {
		t.Errorf("%v", err)
	}
}
