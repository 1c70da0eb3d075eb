package sim

import "ibverbx"

// postRecvs posts receives of both kinds.
func (e *end) postRecvs(n int) {
	if e.conn.plan.lazy[e.index%2] && e.w.Rng.IntN(10) != 0 || e.mute() && !e.takesMessages() {
		return
	}
	var wrs []ibverbx.RecvWR
	for range n {
		message := e.single || e.takesMessages() && (e.w.Rng.IntN(3) == 0 || e.plainPeer || e.mute())
		wr, ok := e.makeRecv(message)
		if !ok {
			break
		}
		wrs = append(wrs, wr)
	}
	good := len(wrs)
	if e.w.Rng.IntN(20) == 0 {
		wrs = append(wrs, e.spoiltRecv())
	}
	e.postAllRecvs(wrs, good)
}

func (e *end) makeRecv(message bool) (ibverbx.RecvWR, bool) {
	r := &recv{index: len(e.recvs), session: e.sessionNo, message: message && e.conn.plan.small != 0}
	wr := ibverbx.RecvWR{ID: e.id(true, r.index)}
	if r.message {
		var ok bool
		if r.buffer, ok = e.host.Memory.Alloc(e.conn.plan.small, r); !ok {
			return wr, false
		}
		wr.Local = e.host.Segment(r.buffer)
		if cut := e.w.Rng.IntN(r.buffer.N); e.w.Rng.IntN(4) == 0 && cut != 0 &&
			e.conn.plan.cfg[e.index%2].MaxSGE > 1 {
			wr.SGL = []ibverbx.Segment{e.host.MR.Slice(uint64(r.buffer.Off), uint64(cut)),
				e.host.MR.Slice(uint64(r.buffer.Off+cut), uint64(r.buffer.N-cut))}
			wr.Local = ibverbx.Segment{}
		}
	}
	e.recvs = append(e.recvs, r)
	return wr, true
}

// postAllRecvs posts receives, of which nothing is wrong with the good ones.
func (e *end) postAllRecvs(wrs []ibverbx.RecvWR, good int) {
	e.post(&batch{what: "receive", first: len(e.recvs) - good, good: good, all: len(wrs),
		post:    func() (int, error) { return e.vq.PostRecv(wrs...) },
		counted: func() uint64 { return e.vq.Stats().Recvs },
		posted:  func(i int) any { return e.recvs[i] },
		keep:    e.keepRecvs, full: e.recvQueueFull})
}

// keepRecvs forgets the receives from index n on, which were refused.
func (e *end) keepRecvs(n int) {
	for _, r := range e.recvs[n:] {
		if r.out != 0 {
			e.w.Broken(ruleOneForOne, "%v: %v was refused, and is on a NIC", e, r)
		}
	}
	e.recvs = e.recvs[:n]
}
