package vqp_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// sizes lie around every boundary of fragmentation, in bytes.
func sizes(e *end) []uint64 {
	rails := uint64(e.DataRails())
	many := uint64(e.host.lab.kind.scaled(40))
	return []uint64{1, 8, fragment - 1, fragment, fragment + 1, rails*fragment - 1, rails * fragment,
		rails*fragment + 1, many*fragment + 5}
}

// A WRITE lands whole at every size, nothing beside it is touched, and its completion tells its
// length.
func TestWriteLandsWhole(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for _, n := range sizes(from) {
				from.send(from.write(n))
				settle(a, b)
			}
		})
	})
}

// A READ brings it whole at every size.
func TestReadBringsWhole(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for _, n := range sizes(from) {
				from.send(from.read(n))
				settle(a, b)
			}
		})
	})
}

// A WRITE_WITH_IMM of one or of many fragments yields one receive, which tells the immediate,
// whatever that is, and the length.
func TestWriteWithImmNotifiesOnce(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for _, n := range sizes(from) {
				from.deliver(from.writeImm(n))
				settle(a, b)
			}
			for _, imm := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
				r := from.writeImm(100)
				r.Imm = imm
				from.deliver(r)
			}
			settle(a, b)
		})
	})
}

// A SEND lands in the receives with memory in the order of posting, one message a receive, whatever
// notifications come between.
func TestSendTakesTheNextReceiveWithMemory(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for _, n := range append(sizes(from), 0) {
				from.deliver(from.message(n))
				settle(a, b)
			}
			for range 5 {
				from.deliver(from.message(10), from.writeImm(3*fragment), from.message(1000),
					from.message(fragment+1), from.writeImm(1))
			}
			settle(a, b)
		})
	})
}

// Promise 4: whoever sees a notification or a message sees every earlier write, on whatever rail it
// travelled. The record looks for them whenever a receive is reported.
func TestNotificationMeansThatEarlierWritesAreThere(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		for range a.host.lab.kind.scaled(12) {
			bothWays(a, b, func(from, _ *end) {
				from.deliver(from.write(5*fragment), from.write(1), from.write(2*fragment+1), from.write(8),
					from.write(3*fragment), from.writeImm(1))
				from.deliver(from.write(1), from.write(7*fragment), from.message(8))
			})
			settle(a, b)
		}
	})
}

// Atomics act on the peer's word one after the other, and bring what was there before.
func TestAtomicsActInOrder(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			from.send(from.fetchAdd(40), from.fetchAdd(1<<63), from.cmpSwap(7, true), from.cmpSwap(99, false),
				from.fetchAdd(1<<64-1), from.cmpSwap(1, true))
			settle(a, b)
		})
	})
}

// A fence makes a read see an earlier write over several rails.
func TestFencedReadSeesTheEarlierWrite(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		bothWays(a, b, func(from, _ *end) {
			for range from.host.lab.kind.scaled(12) {
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

// An inline payload is the caller's again when the post returns, however long the request then
// takes, and in however many fragments.
func TestInlinePayloadIsTheCallersAgain(t *testing.T) {
	eachShape(t, ibverbx.Config{MaxMsgSize: 16}, func(_ *testing.T, a, b *end) {
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

// Pieces of memory are gathered and scattered, through fragments that cross their boundaries. The
// lists are the caller's again when the post returns.
func TestScatterGather(t *testing.T) {
	eachShape(t, ibverbx.Config{MaxMsgSize: 150}, func(_ *testing.T, a, b *end) {
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

// A request of more pieces than a physical request can have is cut into more fragments.
func TestManySmallPieces(t *testing.T) {
	eachShapeThat(t, multi, ibverbx.Config{MaxMsgSize: 1000}, func(_ *testing.T, a, b *end) {
		for _, r := range []request{a.write(1000), a.writeImm(1000)} {
			r.Local, r.want = ibverbx.Segment{}, nil
			for i := range uint64(25) {
				src := a.mem.source(28 + i)
				r.SGL = append(r.SGL, a.mem.mr.Slice(src, 28+i))
				r.want = append(r.want, a.mem.buf[src:src+28+i]...)
			}
			a.deliver(r)
			settle(a, b)
		}
	})
}

// Zero bytes: one queue pair takes them as verbs does. Several take them for SEND only, and refuse
// the rest without a trace.
func TestZeroBytes(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		empty := func(op verbs.Opcode) request {
			return request{SendWR: ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled}}
		}
		a.deliver(empty(verbs.OpSend))
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			r := empty(op)
			if a.single() {
				a.deliver(r)
			} else if n, err := a.PostSend(r.SendWR); n != 0 || !errors.Is(err, ibverbx.ErrLength) {
				t.Errorf("%v of zero bytes over several queue pairs: %d, %v", op, n, err)
			}
		}
		settle(a, b)
		converse(a, b)
	})
}

// A successful unsignaled request of a single queue pair yields no completion; several queue pairs
// refuse it without a trace.
func TestUnsignaled(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		quiet := a.writeImm(100)
		quiet.Flags = 0
		if !a.single() {
			if n, err := a.PostSend(quiet.SendWR); n != 0 || !errors.Is(err, ibverbx.ErrUnsignaled) {
				t.Fatalf("over several queue pairs: %d, %v", n, err)
			}
			converse(a, b)
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

// DQPLB does without the notify queue pair where nobody uses SEND, and says so to who does.
func TestWithoutANotifyQP(t *testing.T) {
	dqplb := func(s *shape) bool { return multi(s) && s.scheme == ibverbx.DQPLB }
	eachShapeThat(t, dqplb, ibverbx.Config{NoNotifyQP: true}, func(t *testing.T, a, b *end) {
		if n, err := a.PostSend(a.message(8).SendWR); n != 0 || !errors.Is(err, ibverbx.ErrOpcode) {
			t.Errorf("SEND: %d, %v", n, err)
		}
		if n, err := b.PostRecv(ibverbx.RecvWR{Local: b.mem.mr.Slice(groundAt, 8)}); n != 0 ||
			!errors.Is(err, ibverbx.ErrOpcode) {
			t.Errorf("receive with memory: %d, %v", n, err)
		}
		bothWays(a, b, func(from, _ *end) {
			from.deliver(from.write(5*fragment), from.writeImm(9*fragment), from.read(2*fragment),
				from.fetchAdd(1), from.writeImm(1))
		})
		settle(a, b)
	})
}
