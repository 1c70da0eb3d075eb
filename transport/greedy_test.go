package transport_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// addGreedy connects endpoints of a's worker to peers that are bare virtual queue pairs: their
// cards claim that they have receives without end, and they post none.
func addGreedy(tb testing.TB, l *link, n int) (victims []*transport.Endpoint, failed *int) {
	tb.Helper()
	failed = new(int)
	var raws []*ibverbx.VirtualQP
	tb.Cleanup(func() {
		for _, raw := range raws {
			_ = raw.Close()
			_ = raw.CQ().Close()
		}
		l.close()
	})
	for i := range n {
		victim := newEndpoint(tb, l.a.w, transport.EndpointConfig{Name: fmt.Sprintf("greedy %d", i),
			OnError: func(*transport.Endpoint, error) { *failed++ }})
		cfg := l.a.w.Config().QP
		cfg.Linger = -1
		raw, err := l.b.w.Domain().NewQP(nil, cfg)
		must(tb, err)
		raws = append(raws, raw)
		qp, err := raw.Card()
		must(tb, err)
		must(tb, raw.Connect(card(tb, victim).QP))
		must(tb, victim.Connect(transport.Card{Version: 2, QP: qp, AMBuffers: transport.MaxAMBuffers,
			BufferSize: 8192, Handlers: 2, Flush: l.b.mr.Remote()}))
		victims = append(victims, victim)
	}
	return victims, failed
}

// hog has each endpoint send by bcopy for as long as it can.
func hog(tb testing.TB, victims []*transport.Endpoint) {
	tb.Helper()
	for _, v := range victims {
		try(tb, func(int) error { _, err := v.AMBcopy(1, nil, pack([]byte{1})); return err })
	}
}

// Peers that claim receives and post none hold bounce buffers for as long as a NIC tries. Whatever
// they hold, every other endpoint still sends by bcopy, messages and puts and gets.
func TestOthersCannotTakeAnEndpointsBounceBuffers(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.QP.Conn.RNRRetry = verbs.RNRRetryForever
		l := newLink(t, s)
		victims, failed := addGreedy(t, l, 4)
		hog(t, victims)
		if free := l.a.w.Stats().BounceFree; free != 0 {
			t.Fatalf("%d bounce buffers are free", free)
		}
		other, peer := l.another(transport.EndpointConfig{}) // one that comes later, too
		for _, e := range []*end{l.a, other} {
			for i := range 10 {
				got := l.got
				l.until("a message is sent", func() bool {
					_, err := e.AMBcopy(1, nil, pack([]byte{1}))
					if err != nil && err != transport.ErrNoResource {
						t.Fatal(err)
					}
					return err == nil
				})
				l.until("it arrives", func() bool { return l.got == got+1 })
				l.until("a put", func() bool {
					_, err := e.PutBcopy(pack([]byte{byte(i), 7}), e.peer.At(100))
					return err == nil
				})
				l.flushed(e)
				landed(t, "the put", l.b.mem[100:102], []byte{byte(i), 7})
				dst, got2 := make([]byte, 2), transport.NewCompletion(1, nil)
				l.until("a get", func() bool {
					_, err := e.GetBcopy(got2, dst, e.peer.At(100))
					return err == nil
				})
				l.until("its data", got2.Fired)
				landed(t, "the get", dst, []byte{byte(i), 7})
			}
		}
		must(t, peer.Err())
		if *failed != 0 {
			t.Errorf("%d of the others failed", *failed)
		}
	})
}

// By default a NIC tries a few times only: such an endpoint fails, and gives back what it held.
func TestAPeerWithoutReceivesFailsSoon(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.QP.Linger = -1
		l := newLink(t, s)
		victims, failed := addGreedy(t, l, 4)
		hog(t, victims)
		begin := time.Now()
		l.until("all of them fail", func() bool { return *failed == len(victims) })
		t.Logf("failed after %v", time.Since(begin))
		for _, v := range victims {
			var why *ibverbx.FailedError
			if err := v.Err(); !errors.Is(err, transport.ErrPeerFailed) || !errors.As(err, &why) ||
				!errors.Is(why.Err, verbs.StatusRNRRetryExcErr) {
				t.Errorf("%v", err)
			}
		}
		l.until("the buffers are back", func() bool {
			s := l.a.w.Stats()
			return s.BounceFree == s.BounceTotal
		})
		must(t, l.a.Err())
	})
}
