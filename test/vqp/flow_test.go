package vqp_test

import (
	"testing"

	"ibverbx"
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
