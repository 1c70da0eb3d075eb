package vqp_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// request is a send request and its required effect.
type request struct {
	ibverbx.SendWR
	// want is the payload. When the request has completed, it is at lands; that of a SEND is where
	// a receive of the peer says.
	want  []byte
	lands []landing
	// never: the peer must get no notification of it, because an earlier request fails.
	never bool
}

// landing is a piece of a host's memory to which data goes.
type landing struct {
	mem *memory
	plot
}

// notifies says whether the peer needs a receive for the request.
func (r *request) notifies() bool { return r.Opcode.HasImm() || r.Opcode.IsSend() }

// write is a WRITE of n bytes.
func (e *end) write(n uint64) request {
	src, dst := e.mem.source(n), e.other.mem.land(n)
	return request{
		SendWR: ibverbx.SendWR{
			Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			Local: e.mem.mr.Slice(src, n), Remote: e.peer.Slice(dst.at, n),
		},
		want:  e.mem.buf[src : src+n],
		lands: []landing{{e.other.mem, dst}},
	}
}

// writeImm is a WRITE_WITH_IMM of n bytes.
func (e *end) writeImm(n uint64) request {
	r := e.write(n)
	r.Opcode, r.Imm = verbs.OpRDMAWriteWithImm, e.mem.rng.Uint32()
	return r
}

// read is a READ of n bytes.
func (e *end) read(n uint64) request {
	src, dst := e.other.mem.source(n), e.mem.land(n)
	return request{
		SendWR: ibverbx.SendWR{
			Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled,
			Local: e.mem.mr.Slice(dst.at, n), Remote: e.peer.Slice(src, n),
		},
		want:  e.other.mem.buf[src : src+n],
		lands: []landing{{e.mem, dst}},
	}
}

// message is a SEND of n bytes, every other one with an immediate.
func (e *end) message(n uint64) request {
	src := e.mem.source(n)
	r := request{
		SendWR: ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			Local: e.mem.mr.Slice(src, n)},
		want: e.mem.buf[src : src+n],
	}
	if n == 0 {
		r.Local = ibverbx.Segment{}
	}
	if imm := e.mem.rng.Uint32(); imm%2 == 0 {
		r.Opcode, r.Imm = verbs.OpSendWithImm, imm
	}
	return r
}

// fetchAdd adds to the end's word in the peer's memory.
func (e *end) fetchAdd(v uint64) request {
	r := e.atomic(verbs.OpAtomicFetchAdd)
	r.CompareAdd = v
	e.count += v
	return r
}

// cmpSwap swaps v into the end's word in the peer's memory. Without hit it compares with a value
// that is not there, so nothing changes.
func (e *end) cmpSwap(v uint64, hit bool) request {
	r := e.atomic(verbs.OpAtomicCmpAndSwp)
	r.CompareAdd, r.Swap = e.count+1, v
	if hit {
		r.CompareAdd = e.count
		e.count = v
	}
	return r
}

func (e *end) atomic(op verbs.Opcode) request {
	dst := e.mem.land(8)
	return request{
		SendWR: ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled, Local: e.mem.mr.Slice(dst.at, 8),
			Remote: e.peer.Slice(e.word, 8)},
		want:  wordBytes(e.count), // the value before
		lands: []landing{{e.mem, dst}},
	}
}

// any is a request of any kind, of at most n bytes.
func (e *end) any(n uint64) request {
	n = 1 + e.mem.rng.Uint64N(n)
	switch e.mem.rng.IntN(7) {
	case 0, 1:
		return e.write(n)
	case 2, 3:
		return e.writeImm(n)
	case 4:
		return e.read(n)
	case 5:
		return e.message(n)
	}
	if v := e.mem.rng.Uint64(); v%2 == 0 {
		return e.fetchAdd(v)
	} else {
		return e.cmpSwap(v, v%3 != 0)
	}
}

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
