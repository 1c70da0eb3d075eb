package vqp_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// shallow is a configuration with queues that hold much less than the tests post.
var shallow = ibverbx.Config{FragmentSize: 512, MaxMsgCntPerQP: 4, Credits: 4}

// Promise 8: hundreds of mixed requests in both directions, over queues that hold four fragments
// each, are all accepted at once and complete in order. No queue overflows.
func TestHundredsOfRequestsOverShallowQueues(t *testing.T) {
	eachShape(t, shallow, func(t *testing.T, a, b *end) {
		total := a.host.rig.kind.scaled(400)
		streams := []*stream{newStream(a, total, 12*512), newStream(b, total, 12*512)}
		for _, s := range streams {
			s.advance()
		}
		for _, e := range []*end{a, b} {
			if s := e.Stats(); !e.single() && s.SendsWaiting == 0 {
				t.Errorf("nothing has to wait with %d requests posted: %+v", total, s)
			}
		}
		a.host.rig.until("all to be posted", func() bool {
			for _, e := range []*end{a, b} {
				for i, r := range e.Stats().Rails {
					if !e.single() && r.Outstanding > 4 {
						t.Fatalf("rail %d holds %d of 4", i, r.Outstanding)
					}
				}
			}
			done := streams[0].advance()
			return streams[1].advance() && done
		})
		settle(a, b)
	})
}

// stream is a list of requests that one end posts, and the other end the receives for them.
type stream struct {
	from     *end
	rs       []request
	expected int // for how many the other end has posted receives
	sent     int
}

// newStream makes a stream of requests of all kinds, of at most n bytes each.
func newStream(from *end, total int, n uint64) *stream {
	s := &stream{from: from}
	for range total {
		s.rs = append(s.rs, from.any(n))
	}
	return s
}

// advance posts as much as is accepted, and says whether that is all.
func (s *stream) advance() bool {
	for s.expected < len(s.rs) && s.from.other.tryExpect(&s.rs[s.expected]) {
		s.expected++
	}
	if s.sent < s.expected {
		s.sent += s.from.trySend(s.rs[s.sent:s.expected]...)
	}
	return s.sent == len(s.rs) && s.expected == len(s.rs)
}

// A sender that is ahead of the receives loses nothing. DQPLB keeps notifications up to a limit,
// and then slows the sender down. Everything else waits at the sender.
func TestSenderAheadOfTheReceives(t *testing.T) {
	cfg := shallow
	cfg.MaxBanked = 3
	eachShape(t, cfg, func(t *testing.T, a, b *end) {
		var rs []request
		for range a.host.rig.kind.scaled(100) {
			rs = append(rs, a.write(600), a.writeImm(1500), a.writeImm(1))
		}
		if a.single() {
			rs = rs[:4] // the queue holds no more while there are no receives
		}
		a.send(rs...)
		for range 20 {
			a.host.rig.rest()
		}
		if s := b.Stats(); s.Banked > 3+a.DataRails()*4 {
			t.Errorf("%d notifications are kept, where 3 are allowed beyond the %d that the credits bring",
				s.Banked, a.DataRails()*4)
		}
		for i := range rs {
			b.expect(&rs[i])
		}
		settle(a, b)
	})
}

// A message waits for its receive, and nothing sent after it is reported before it.
func TestMessageWaitsForItsReceive(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		rs := []request{a.message(100), a.write(3 * fragment), a.message(200)}
		a.send(rs...)
		for range 20 {
			a.host.rig.rest()
		}
		if a.sends.reported != 0 {
			t.Fatalf("%d requests reported behind a message that nobody has received", a.sends.reported)
		}
		for i := range rs {
			b.expect(&rs[i])
		}
		settle(a, b)
	})
}

// A region cannot be closed while a request may use it, such as a receive that waits for a message.
// After that is reported it can.
func TestRegionInUseCannotBeClosed(t *testing.T) {
	eachShapeThat(t, multi, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		refused := func(what string, mr *ibverbx.MR) {
			t.Helper()
			if err := mr.Close(); !isBusy(err) {
				t.Fatalf("closing the region of %s: %v, want %v", what, err, verbs.ErrBusy)
			}
		}
		m := a.message(100)
		a.send(m)
		refused("a message that waits for a receive", a.mem.mr)
		b.expect(&m)
		refused("a receive that waits for a message", b.mem.mr)
		settle(a, b)
		own := newMemory(a.host, 9)
		src := own.source(100)
		w := a.write(100)
		w.Local, w.want = own.mr.Slice(src, 100), own.buf[src:src+100]
		a.send(w)
		refused("a write that is not reported yet", own.mr)
		settle(a, b)
		if err := own.mr.Close(); err != nil {
			t.Errorf("closing the region when all is reported: %v", err)
		}
		if n, err := a.PostSend(w.SendWR); n != 0 || err == nil {
			t.Errorf("a write from a closed region: %d, %v", n, err)
		}
	})
}
