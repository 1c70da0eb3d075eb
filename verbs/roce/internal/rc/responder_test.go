package rc

import (
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// forge gives an end a packet that its peer has not sent.
func (n *network) forge(to int, h wire.Header, payload []byte) {
	n.t.Helper()
	h.DestQP, h.PKey = n.ends[to].q.Num, defaultPKey
	n.ends[to].q.Receive(n.now, &h, payload)
	n.check()
}

// leaving is what an end sends now, without carrying it to the other.
func (n *network) leaving(from int) (packets []wire.Header) {
	for _, b := range n.ends[from].transmit(n.now) {
		var h wire.Header
		if _, err := wire.Parse(b, &h); err != nil {
			n.t.Fatal(err)
		}
		packets = append(packets, h)
	}
	return packets
}

// wantStatuses polls an end and compares what has completed.
func (e *end) wantStatuses(want ...verbs.Status) {
	e.t.Helper()
	wcs := e.poll()
	if len(wcs) != len(want) {
		e.t.Fatalf("%d completions, want %v: %v", len(wcs), want, wcs)
	}
	for i := range wcs {
		if wcs[i].Status != want[i] {
			e.t.Errorf("completion %d: %v, want %v", i, wcs[i].Status, want[i])
		}
	}
}

// A message whose completion the receiver's queue had no room for is not acknowledged: nobody there
// learns of it.
func TestOverrunIsNotAcknowledged(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
		n := newNetwork(t, 1, shape{timeout: 8, retries: 1})
		a, b := n.ends[0], n.ends[1]
		b.overruns = true
		b.recv(verbs.RecvWR{ID: 1, SGL: b.sge(0, 8)})
		wr := a.write(b, 1, 8)
		wr.Opcode = op
		a.send(wr)
		n.run()
		a.wantStatuses(verbs.StatusRetryExcErr)
		if b.q.State != verbs.StateErr {
			t.Errorf("%v: the receiver is in %v", op, b.q.State)
		}
	}
}

// What a queue pair does not allow is refused before a receive is looked for, and that before the
// key is: the order of rdma_rxe.
func TestOrderOfChecks(t *testing.T) {
	n := newNetwork(t, 1, shape{})
	a, b := n.ends[0], n.ends[1]
	a.send(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWriteWithImm, SGL: a.sge(0, 8), RKey: b.mr.RKey() ^ 0x100,
		RemoteAddr: b.mr.Addr()})
	for b.q.Stats().RNRNAKs+a.q.Stats().RNRNAKs == 0 {
		if !n.step() {
			t.Fatal("no RNR NAK for a write with immediate without a receive")
		}
	}
	b.recv(verbs.RecvWR{ID: 1})
	n.run()
	a.wantStatuses(verbs.StatusRemAccessErr)
	b.wantStatuses(verbs.StatusWRFlushErr)

	n = newNetwork(t, 1, shape{})
	a, b = n.ends[0], n.ends[1]
	b.q.Attr.MaxDestRDAtomic = 0
	b.q.resp.allow(0)
	a.send(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: a.sge(0, 8), RKey: b.mr.RKey() ^ 0x100,
		RemoteAddr: b.mr.Addr()})
	n.run()
	a.wantStatuses(verbs.StatusRemInvReqErr)
}

// A message begins with its first packet, goes on with packets of the path MTU, and ends with one
// that is no longer than that and not empty. The first packet that is not so is refused.
func TestPiecesOfAMessage(t *testing.T) {
	type packet struct {
		opcode wire.Opcode
		bytes  int
	}
	const mtu = 256
	first := packet{wire.WriteFirst, mtu}
	for _, packets := range [][]packet{
		{{wire.WriteMiddle, mtu}}, {{wire.WriteLast, 1}}, {{wire.WriteFirst, mtu - 1}},
		{{wire.WriteFirst, 0}}, {{wire.WriteOnly, mtu + 1}}, {first, first}, {first, {wire.WriteOnly, 1}},
		{first, {wire.SendLast, 1}}, {first, {wire.ReadRequest, 0}}, {first, {wire.WriteMiddle, mtu - 1}},
		{first, {wire.WriteLast, mtu + 1}}, {first, {wire.WriteLast, 0}},
	} {
		n := newNetwork(t, 1, shape{})
		b := n.ends[1]
		psn := b.q.resp.expected.psn()
		length := 0 // which the bytes of all pieces agree with
		for _, p := range packets {
			length += p.bytes
		}
		for i, p := range packets {
			n.forge(1, wire.Header{Opcode: p.opcode, PSN: psn + uint32(i), Addr: b.mr.Addr(),
				RKey: b.mr.RKey(), Length: uint32(length)}, make([]byte, p.bytes))
			left, last := n.leaving(1), i == len(packets)-1
			if refused := len(left) == 1 && left[0].Syndrome == wire.NakInvalidRequest; refused != last {
				t.Errorf("%v: packet %d is answered by %+v", packets, i, left)
			}
		}
	}
}

// A read that was asked for before lies wholly before the expected number.
func TestRepeatedReadPastExpected(t *testing.T) {
	n := newNetwork(t, 1, shape{})
	b := n.ends[1]
	n.forge(1, wire.Header{Opcode: wire.ReadRequest, PSN: b.q.resp.expected.psn() - 1, Addr: b.mr.Addr(),
		RKey: b.mr.RKey(), Length: 10000}, nil)
	if got := n.leaving(1); len(got) != 0 {
		t.Errorf("%d packets of an answer to a read that nobody can have asked for", len(got))
	}
}

// A queue pair that its owner takes to ERR says no more.
func TestErrorSilences(t *testing.T) {
	n := newNetwork(t, 1, shape{})
	b := n.ends[1]
	n.forge(1, wire.Header{Opcode: wire.ReadRequest, PSN: b.q.resp.expected.psn(), Addr: b.mr.Addr(),
		RKey: b.mr.RKey(), Length: 10000}, nil)
	b.q.Enter(n.now, verbs.StateErr)
	if got := n.leaving(1); len(got) != 0 {
		t.Errorf("%d packets of an answer leave in ERR", len(got))
	}
}

// In SQD the number of reads that the peer may have outstanding can change.
func TestReadsChangeInSQD(t *testing.T) {
	n := newNetwork(t, 1, shape{reads: 1})
	b := n.ends[1]
	b.modify(n.now, verbs.QPAttr{State: verbs.StateSQD}, verbs.QPAttrState)
	b.modify(n.now, verbs.QPAttr{MaxDestRDAtomic: 3}, verbs.QPAttrMaxDestRDAtomic)
	first := b.q.resp.expected.psn()
	for i := range uint32(3) {
		n.forge(1, wire.Header{Opcode: wire.FetchAdd, PSN: first + i, Addr: b.mr.Addr(), RKey: b.mr.RKey(),
			SwapAdd: 1}, nil)
	}
	n.leaving(1)
	for i := range uint32(3) {
		n.forge(1, wire.Header{Opcode: wire.FetchAdd, PSN: first + i, Addr: b.mr.Addr(), RKey: b.mr.RKey(),
			SwapAdd: 1}, nil)
	}
	got := n.leaving(1)
	if b.q.State != verbs.StateSQD || len(got) != 3 {
		t.Fatalf("state %v, %d answers to three atomics that were asked for again", b.q.State, len(got))
	}
	for i, h := range got {
		if h.Original != uint64(i) {
			t.Errorf("atomic %d found %d", i, h.Original)
		}
	}
}

// A refusal leaves once. If it is lost, the peer says nothing more, and the request runs out of
// retries.
func TestLostRefusal(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours, retries: 3})
		a, b := n.ends[0], n.ends[1]
		refusals, asked := 0, 0
		n.drop = func(to int, h *wire.Header) bool {
			if to == 1 {
				asked++
				return false
			}
			refusals++
			return true
		}
		bad := a.write(b, 0, 8)
		bad.RKey ^= 1
		a.send(bad)
		n.run()
		a.wantStatuses(verbs.StatusRetryExcErr)
		if refusals != 1 || asked < 4 || b.q.State != verbs.StateErr {
			t.Errorf("asked %d times, answered %d times, in %v", asked, refusals, b.q.State)
		}
	})
}

// Of an answer that waits to be sent nothing is sent twice, however often the peer asks: one that
// runs out of patience while a long answer leaves would be given more and more of it.
func TestImpatientReader(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		const packets = 100
		for name, from := range map[string]seq{"what comes": 0, "all of it": 0, "the rest": BatchPackets} {
			n := newNetwork(t, 1, shape{ours: ours})
			b := n.ends[1]
			first := b.q.resp.expected
			ask := func(from seq) {
				n.forge(1, wire.Header{Opcode: wire.ReadRequest, PSN: (first + from).psn(), RKey: b.mr.RKey(),
					Addr: b.mr.Addr() + uint64(from)*256, Length: uint32(packets-from) * 256}, nil)
			}
			ask(0)
			want := packets
			if name != "what comes" {
				b.q.Transmit(n.now, &b.batch)
				b.batch.Reset()
				want -= int(from)
			}
			for range 5 {
				ask(from)
			}
			got := n.leaving(1)
			if len(got) != want {
				t.Fatalf("%s: %d packets leave, want %d", name, len(got), want)
			}
			for i, h := range got {
				if h.PSN != (first + seq(packets-want+i)).psn() {
					t.Fatalf("%s: packet %d has number %d", name, i, h.PSN-first.psn())
				}
			}
		}
	})
}

// A READ takes the numbers of its answer. A packet that was kept with one of them is not from whom
// the READ is, and is forgotten.
func TestReadOverAKeptPacket(t *testing.T) {
	for _, packets := range []int{2, 34, 1000} {
		n := newNetwork(t, 1, shape{ours: true, memory: 1 << 20})
		b := n.ends[1]
		expected := b.q.resp.expected
		n.forge(1, wire.Header{Opcode: wire.SendOnly, PSN: (expected + 1).psn()}, nil)
		n.leaving(1)
		n.forge(1, wire.Header{Opcode: wire.ReadRequest, PSN: expected.psn(), Addr: b.mr.Addr(),
			RKey: b.mr.RKey(), Length: uint32(packets) << b.q.shift}, nil)
		answers := 0
		for _, h := range n.leaving(1) {
			if h.Opcode.IsReadResponse() && !h.TellsGap() {
				answers++
			}
		}
		if answers != packets || b.q.resp.ahead.n != 0 {
			t.Errorf("%d packets of %d leave, %d are kept", answers, packets, b.q.resp.ahead.n)
		}
	}
}

// A packet that is longer than the path MTU is not kept, whoever sends it: what waits for a gap to
// be filled has a bound.
func TestOversizedPacketIsNotKept(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true})
	b := n.ends[1]
	for i := range seq(100) {
		n.forge(1, wire.Header{Opcode: wire.WriteMiddle, PSN: (b.q.resp.expected + 1 + i).psn()},
			make([]byte, b.q.mtu()+4))
	}
	if r := &b.q.resp.ahead; r.n != 0 || b.q.Stats().Broken != 100 {
		t.Errorf("%d packets kept, %d broken", r.n, b.q.Stats().Broken)
	}
}

// What has a number before the first one of the connection was not carried out before: it belongs
// to another connection, or the two ends do not agree on where they begin. It gets no answer, which
// would tell the peer that it arrived.
func TestBeforeTheFirstNumber(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours})
		b := n.ends[1]
		first := b.q.resp.expected
		for i, opcode := range []wire.Opcode{wire.WriteOnly, wire.SendOnly, wire.WriteOnlyImm,
			wire.ReadRequest, wire.FetchAdd} {
			n.forge(1, wire.Header{Opcode: opcode, PSN: (first - 1 - seq(i)*100000).psn(), AckReq: true,
				Addr: b.mr.Addr(), RKey: b.mr.RKey(), Length: 8}, nil)
			if left := n.leaving(1); len(left) != 0 {
				t.Errorf("%v is answered: %v", opcode, left)
			}
		}
		if s := b.q.Stats(); s.Duplicates != 0 || s.Unexpected != 5 {
			t.Errorf("%+v", s)
		}
	})
}

// Nor does an answer to a number before the first one belong to the connection: one that tells of a
// gap, in an earlier life of the queue pairs, is nothing that this peer does against the protocol.
func TestAnswersBeforeTheFirstNumber(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours})
		a := n.ends[0]
		psn := (a.q.req.first - 100000).psn()
		for _, h := range []wire.Header{
			{Opcode: wire.ReadResponseOnly, PSN: psn, Syndrome: wire.NakSequence},
			{Opcode: wire.Acknowledge, PSN: psn, Syndrome: wire.NakRemoteAccess},
			{Opcode: wire.Acknowledge, PSN: psn, Syndrome: wire.Ack, Reserved: wire.FromResponder},
			{Opcode: wire.AtomicAcknowledge, PSN: psn},
		} {
			n.forge(0, h, nil)
		}
		if s := a.q.Stats(); s.Unexpected != 4 || s.Broken != 0 || s.NAKs != 0 || a.q.IsOurs() != ours {
			t.Errorf("%+v, ours: %v", s, a.q.IsOurs())
		}
	})
}

// Answers between two ends of ours carry what the responder's NIC grants, those to a foreign peer
// never: it would take them for credits of SENDs.
func TestGrants(t *testing.T) {
	for _, ours := range []bool{true, false} {
		n := newNetwork(t, 1, shape{ours: ours, timeout: 14})
		a, b := n.ends[0], n.ends[1]
		grant := wire.AckCredits(24)
		b.q.cfg.Grant = &grant
		n.drop = func(to int, h *wire.Header) bool {
			if to == 0 && h.Opcode.HasAETH() && (h.Syndrome == grant) != ours {
				t.Errorf("ours %v: %v says %v, %d", ours, h.Opcode, h.Syndrome, h.Syndrome.Value())
			}
			return false
		}
		a.send(a.write(b, 1, 8))
		n.run()
		if s, ok := a.q.Granted(); ok != ours || ours && s != grant {
			t.Errorf("ours %v: a write brings %v, %d", ours, ok, s.Value())
		}
		if _, ok := a.q.Granted(); ok {
			t.Error("it is returned twice")
		}
		a.send(a.read(b, 2, 8))
		n.run()
		if s, ok := a.q.Granted(); ok != ours || ours && s != grant {
			t.Errorf("ours %v: a read brings %v, %d", ours, ok, s.Value())
		}
		a.wantStatuses(success(2)...)
	}
}

// A Tick that comes late, since the process did not run for a while, is one timeout however long
// that was: what is sent again gets the time that it has to be answered.
func TestLateTickIsOneTimeout(t *testing.T) {
	n := newNetwork(t, 1, shape{timeout: 10, retries: 3})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 8))
	lost := true
	n.drop = func(int, *wire.Header) bool { return lost }
	n.flush(0)
	now := n.now + int64(time.Minute)
	a.q.Tick(now)
	if at := a.q.Deadline(); at <= now {
		t.Errorf("the next timeout is due %v before the first one was counted", time.Duration(now-at))
	} else if most := now + int64(verbs.AckTimeout(10)); at > most {
		t.Errorf("the next timeout is due %v after the first one, want %v", time.Duration(at-now),
			verbs.AckTimeout(10))
	}
	if got := a.q.Stats().Timeouts; got != 1 {
		t.Errorf("%d timeouts", got)
	}
	n.now, lost = now, false
	n.run()
	a.wantStatuses(success(1)...)
}

// A rate limit holds, and is reached, where timers come late by up to some ten milliseconds.
func TestLateTimersKeepTheRate(t *testing.T) {
	for _, late := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		const rate, size = 50e6, 4096
		var l limiter
		l.start(rate, 0)
		sent, now := 0, int64(0)
		for now < int64(time.Second) {
			for l.allows(now) {
				l.spend(size)
				sent += size
			}
			now = l.next(now) + int64(late)
		}
		if got := float64(sent) / (float64(now) / 1e9) / rate; got < 0.97 || got > 1.03 {
			t.Errorf("%v late: %.3f of the limit", late, got)
		}
	}
}

// A pause in which nothing is to be sent is no delay that is made up for: after it there is a burst
// of a millisecond at most, although the last packet took more than there was.
func TestAPauseGivesABurstOnly(t *testing.T) {
	const rate, size = 20_000_000, 4096
	n := newNetwork(t, 1, shape{mtu: verbs.MTU4096, rate: rate, timeout: 18})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 4*size))
	n.run()
	n.now += int64(time.Second)
	a.send(a.write(b, 2, 64*size))
	if got, most := len(a.transmit(n.now)), rate/1000/size+1; got > most {
		t.Errorf("%d packets leave at once, want %d at most", got, most)
	}
}
