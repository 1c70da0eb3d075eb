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
	if e.w.Rng.IntN(20) == 0 {
		e.postSpoiltRecv(wrs)
		return
	}
	if len(wrs) != 0 {
		e.postGoodRecvs(wrs)
	}
}

func (e *end) makeRecv(message bool) (ibverbx.RecvWR, bool) {
	r := &recv{index: len(e.recvs), session: e.sessionNo, message: message && e.conn.plan.small != 0}
	wr := ibverbx.RecvWR{ID: e.id(true, r.index)}
	if r.message {
		var ok bool
		if r.buffer, ok = e.host.Memory.Alloc(e.conn.plan.small); !ok {
			return wr, false
		}
		wr.Local = e.host.Segment(r.buffer)
		if cut := e.w.Rng.IntN(r.buffer.N); e.w.Rng.IntN(4) == 0 && cut != 0 &&
			e.conn.plan.cfg[e.index%2].MaxSGE > 1 {
			wr.SGL = []ibverbx.Segment{e.host.MR.Slice(uint64(r.buffer.Off), uint64(cut)),
				e.host.MR.Slice(uint64(r.buffer.Off+cut), uint64(r.buffer.N-cut))}
			wr.Local = ibverbx.Segment{}
		}
		e.buffers = append(e.buffers, r)
	}
	e.recvs = append(e.recvs, r)
	return wr, true
}

func (e *end) postGoodRecvs(wrs []ibverbx.RecvWR) {
	first := len(e.recvs) - len(wrs)
	want := e.refusal()
	n, err := e.vq.PostRecv(wrs...)
	e.logRecvs(first, n, err)
	e.keepRecvs(first + n)
	if n == len(wrs) && err == nil && want == nil {
		return
	}
	e.checkRefusal("receive", n, len(wrs), err, want, e.recvQueueFull)
}

func (e *end) logRecvs(first, n int, err error) {
	for _, r := range e.recvs[first : first+n] {
		e.w.Logf("  %v posts %v", e, r)
	}
	if err != nil {
		e.w.Logf("  %v", err)
	}
}

// keepRecvs forgets the receives from index n on, which were refused.
func (e *end) keepRecvs(n int) {
	for _, r := range e.recvs[n:] {
		if r.out != 0 {
			e.w.Broken(ruleOneForOne, "%v: %v was refused, and is on a NIC", e, r)
		}
	}
	e.recvs = e.recvs[:n]
	for len(e.buffers) != 0 && e.buffers[len(e.buffers)-1].index >= n {
		e.buffers = e.buffers[:len(e.buffers)-1]
	}
}
