package vqp_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// sizes, in bytes, are next to every boundary of fragmentation.
func sizes(e *end) []uint64 {
	rails := uint64(e.DataRails())
	many := uint64(e.host.rig.kind.scaled(40))
	return []uint64{0, 1, 8, fragment - 1, fragment, fragment + 1, rails*fragment - 1, rails * fragment,
		rails*fragment + 1, many*fragment + 5}
}

// Requests of every kind and any size: each lands whole, changes nothing beside it, and says its
// length; a WRITE_WITH_IMM of one or many fragments completes one receive, with its immediate, and
// a SEND the next receive with memory, also with notifications between them.
func TestRequestsOfAnySize(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for _, n := range sizes(from) {
				for _, kind := range []func(uint64) request{from.write, from.read, from.writeImm,
					from.message} {
					from.deliver(kind(n))
					settle(a, b)
				}
			}
			for _, imm := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
				r := from.writeImm(100)
				r.Imm = imm
				from.deliver(r)
			}
			for range 5 {
				from.deliver(from.message(10), from.writeImm(3*fragment), from.message(1000),
					from.message(fragment+1), from.writeImm(1))
			}
			settle(a, b)
		})
	})
}

// Promise 4: when a notification or message is reported, all earlier writes are in memory, whatever
// rails they took. The record checks that with every receive.
func TestNotificationComesAfterEarlierWrites(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		for range a.host.rig.kind.scaled(12) {
			bothWays(a, b, func(from, _ *end) {
				from.deliver(from.write(5*fragment), from.write(1), from.write(2*fragment+1), from.write(8),
					from.write(3*fragment), from.writeImm(1))
				from.deliver(from.write(1), from.write(7*fragment), from.message(8))
			})
			settle(a, b)
		}
	})
}

// Atomics change the peer's word one after the other, and return the value before.
func TestAtomicsKeepTheirOrder(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			from.send(from.fetchAdd(40), from.fetchAdd(1<<63), from.cmpSwap(7, true), from.cmpSwap(99, false),
				from.fetchAdd(1<<64-1), from.cmpSwap(1, true))
			settle(a, b)
		})
	})
}

// A read with a fence sees an earlier write over several rails.
func TestFencedReadSeesTheEarlierWrite(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for range from.host.rig.kind.scaled(12) {
				const n = 6 * fragment
				w := from.write(n)
				back := from.mem.land(n)
				r := request{
					SendWR: ibverbx.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled |
						verbs.SendFence, Local: from.mem.mr.Slice(back.at, n), Remote: w.Remote},
					want: w.want, lands: []landing{{from.mem, back}},
				}
				from.send(w, r)
				settle(a, b)
			}
		})
	})
}

// The caller may reuse an inline payload as soon as the post returns, also if it is sent in many
// fragments.
func TestInlinePayloadMayBeReused(t *testing.T) {
	eachShape(t, ibverbx.Config{FragmentSize: 16}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for _, r := range []request{from.write(60), from.writeImm(60), from.writeImm(1), from.message(64),
				from.write(16)} {
				payload := append([]byte(nil), r.want...)
				r.Flags |= verbs.SendInline
				r.Local, r.Inline = ibverbx.Segment{}, payload
				from.deliver(r)
				clear(payload)
				settle(a, b)
			}
		})
	})
}

// Pieces of memory are gathered and scattered, in fragments that cross their boundaries. The caller
// may reuse the lists as soon as the post returns.
func TestScatterGather(t *testing.T) {
	eachShape(t, ibverbx.Config{FragmentSize: 150}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, to *end) {
			for _, r := range []request{from.write(450), from.writeImm(450), from.message(450)} {
				// Pieces from all over the source, an empty one among them.
				r.Local, r.want = ibverbx.Segment{}, nil
				for _, n := range []uint64{100, 0, 200, 150} {
					src := from.mem.source(n)
					r.SGL = append(r.SGL, from.mem.mr.Slice(src, n))
					r.want = append(r.want, from.mem.buf[src:src+n]...)
				}
				if r.Opcode.IsSend() {
					to.recv(to.mem.land(1), to.mem.land(300), to.mem.land(500))
					from.send(r)
				} else {
					from.deliver(r)
				}
				clear(r.SGL)
				settle(a, b)
			}
			r := from.read(350)
			from.mem.release(r.lands[0].plot)
			r.Local, r.lands = ibverbx.Segment{}, nil
			for _, n := range []uint64{333, 17} {
				p := from.mem.land(n)
				r.SGL, r.lands = append(r.SGL, from.mem.mr.Slice(p.at, n)),
					append(r.lands, landing{from.mem, p})
			}
			from.send(r)
			clear(r.SGL)
			settle(a, b)
		})
	})
}

// Requests of zero bytes are accepted, and need neither memory nor keys.
func TestZeroBytes(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
			verbs.OpRDMARead} {
			a.deliver(request{SendWR: ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled}})
		}
		settle(a, b)
		exchange(a, b)
	})
}

// A successful unsignaled request of a single queue pair has no completion. Several queue pairs
// refuse it without effect.
func TestUnsignaled(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		quiet := a.writeImm(100)
		quiet.Flags = 0
		if !a.single() {
			if n, err := a.PostSend(quiet.SendWR); n != 0 || !errors.Is(err, ibverbx.ErrUnsignaled) {
				t.Fatalf("over several queue pairs: %d, %v", n, err)
			}
			exchange(a, b)
			return
		}
		before := a.sends.reported
		a.deliver(quiet)
		for range 9 {
			w := a.write(100)
			w.Flags = 0
			a.send(w)
		}
		last := a.write(100)
		a.send(last)
		settle(a, b)
		if s := a.Stats(); s.SendsCompleted != 1 || a.sends.reported-before != 11 {
			t.Errorf("%d completions of one signaled request among ten that are not", s.SendsCompleted)
		}
	})
}
