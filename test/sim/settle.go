package sim

import (
	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// settle lets the fabric run until nothing moves any more. With balance, programs also post what
// the other end waits for.
func (w *world) settle(balance bool) {
	still := 0 // rounds without movement; what a poll starts may show in the next round
	for range 20_000 {
		before := w.Moves
		w.RunFabric(50)
		moved := 0
		for _, c := range w.cqs {
			moved += c.pollAll()
		}
		for _, e := range w.ends {
			if e.state == draining {
				e.drain()
			}
		}
		for _, c := range w.conns {
			if balance {
				moved += c.balance()
			}
		}
		if still++; moved != 0 || w.Moves != before {
			still = 0
		}
		if still == 3 {
			return
		}
	}
	w.Broken(lab.Liveness, "it does not come to rest")
}

// sound says whether both ends work and keep the rules.
func (c *conn) sound() bool {
	for _, e := range c.ends {
		if e.state != connected || e.vq.Err() != nil {
			return false
		}
	}
	return !c.hostile
}

// balance makes as many receives as messages of each kind: it posts receives for messages that
// wait, and has the peer send for receives that wait. A receive that nothing matches would hold up
// all later ones.
func (c *conn) balance() (moved int) {
	if c.hostile {
		return 0
	}
	for _, e := range c.ends {
		if e.state != connected || e.vq.Err() != nil {
			continue
		}
		var waiting [2]int
		for _, r := range e.recvs[e.recvHead:] {
			if r.message && !e.single {
				waiting[kindMessage]++
			} else {
				waiting[kindNotification]++
			}
		}
		var coming [messageKinds]int
		for kind, list := range e.expect {
			for len(list) != 0 && list[0].session < e.sessionNo {
				list = list[1:]
			}
			coming[kind] = len(list)
		}
		coming[kindMessage] += coming[kindRelaxed]
		for kind, n := range waiting {
			for range coming[kind] - n {
				moved += e.postMissingRecv(kind == kindMessage || e.single)
			}
			for range n - coming[kind] {
				moved += e.peer.sendMissing(kind == kindMessage)
			}
		}
		if n := len(e.sends); e.single && e.sendHead < n && e.sends[n-1].flags&verbs.SendSignaled == 0 {
			moved += e.sendMissing(false) // a signaled request, whose completion proves those before it
		}
	}
	return moved
}

// postMissingRecv posts a receive.
func (e *end) postMissingRecv(message bool) int {
	before := len(e.recvs)
	if wr, ok := e.makeRecv(message); ok {
		e.postAllRecvs([]ibverbx.RecvWR{wr}, 1)
	}
	return len(e.recvs) - before
}

// sendMissing sends a byte: as a message, or with a notification.
func (e *end) sendMissing(message bool) int {
	if e.state != connected || e.vq.Err() != nil {
		return 0
	}
	s := &send{index: len(e.sends), session: e.sessionNo, op: verbs.OpRDMAWriteWithImm,
		flags: verbs.SendSignaled, length: 1, imm: 5}
	if message {
		s.op = verbs.OpSend
	}
	wr := ibverbx.SendWR{ID: e.id(false, s.index), Opcode: s.op, Imm: s.imm}
	if !e.giveMemory(s, &wr) {
		e.w.Broken(lab.Leak, "the simulation has too little memory to come to its end")
	}
	wr.Flags = s.flags
	e.enter(s)
	e.postAll([]ibverbx.SendWR{wr}, 1)
	return 1
}
