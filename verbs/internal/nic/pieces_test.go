package nic

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

// What the requester's side of a request is refused for, and what memory it has.
func TestLocal(t *testing.T) {
	r := newRig(t)
	r.ready()
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: append(r.sge(8, 16), r.sge(100, 4)...)}
	with := func(edit func(*verbs.SendWR)) verbs.SendWR {
		wr := write
		wr.SGL = append([]verbs.SGE(nil), write.SGL...)
		edit(&wr)
		return wr
	}
	var other PD
	must(t, other.Init(&r.dev))
	var foreign, readOnly MR
	must(t, foreign.Register(&other, make([]byte, 64), verbs.AccessAll))
	must(t, readOnly.Register(&r.pd, make([]byte, 64), 0))
	for name, c := range map[string]struct {
		wr   verbs.SendWR
		want verbs.Status
		n    []int // lengths of the pieces
	}{
		"write":    {write, verbs.StatusSuccess, []int{16, 4}},
		"no bytes": {verbs.SendWR{Opcode: verbs.OpSend}, verbs.StatusSuccess, nil},
		"inline": {verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: []byte("abc")},
			verbs.StatusSuccess, []int{3}},
		"inline of no bytes": {verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline},
			verbs.StatusSuccess, nil},
		"a key of no bytes": {with(func(wr *verbs.SendWR) { wr.SGL[0] = verbs.SGE{LKey: 5} }),
			verbs.StatusSuccess, []int{4}},
		"too long": {with(func(wr *verbs.SendWR) { wr.SGL[0].Length = 1 << 20 }),
			verbs.StatusLocLenErr, nil},
		"key": {with(func(wr *verbs.SendWR) { wr.SGL[0].LKey += 2 }), verbs.StatusLocProtErr, nil},
		"remote key": {with(func(wr *verbs.SendWR) { wr.SGL[0].LKey = r.mr.RKey() }),
			verbs.StatusLocProtErr, nil},
		"before": {with(func(wr *verbs.SendWR) { wr.SGL[0].Addr = r.mr.Addr() - 1 }),
			verbs.StatusLocProtErr, nil},
		"behind": {with(func(wr *verbs.SendWR) { wr.SGL[0].Addr += 4096 }), verbs.StatusLocProtErr, nil},
		"domain": {with(func(wr *verbs.SendWR) {
			wr.SGL[0] = verbs.SGE{Addr: foreign.Addr(), Length: 1, LKey: foreign.LKey()}
		}), verbs.StatusLocProtErr, nil},
		"from what nobody may write": {verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{{
			Addr: readOnly.Addr(), Length: 64, LKey: readOnly.LKey()}}}, verbs.StatusSuccess, []int{64}},
		"into what nobody may write": {verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{{
			Addr: readOnly.Addr(), Length: 64, LKey: readOnly.LKey()}}}, verbs.StatusLocProtErr, nil},
		"atomic of 4": {verbs.SendWR{Opcode: verbs.OpAtomicFetchAdd, SGL: r.sge(0, 4)},
			verbs.StatusLocLenErr, nil},
	} {
		seq := r.send(c.wr)
		var p Pieces
		if got := r.qp.Local(nil, seq); got != c.want {
			t.Errorf("%s, checked: %v, want %v", name, got, c.want)
		}
		if got := r.qp.Local(&p, seq); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		} else if got == verbs.StatusSuccess {
			wantLengths(t, name, &p, c.n)
		}
		r.qp.SQ.reset()
	}
	seq := r.send(verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: r.sge(0, 8)})
	r.qp.Attr.MaxRDAtomic = 0
	if got := r.qp.Local(nil, seq); got != verbs.StatusLocQPOpErr {
		t.Errorf("a read of a queue pair that has none outstanding: %v", got)
	}
	var p Pieces
	if got := r.qp.Landing(&p, seq); got != verbs.StatusSuccess || len(p.Bytes) != 1 {
		t.Errorf("where a read lands: %v", got)
	}
	must(t, r.mr.Close())
	if got := r.qp.Landing(&p, seq); got != verbs.StatusLocProtErr {
		t.Errorf("a read into a region that was closed: %v", got)
	}
}

func wantLengths(t *testing.T, name string, p *Pieces, want []int) {
	t.Helper()
	if len(p.Bytes) != len(want) {
		t.Errorf("%s: %d pieces, want %v", name, len(p.Bytes), want)
		return
	}
	for i, b := range p.Bytes {
		if len(b) != want[i] || cap(b) < want[i] {
			t.Errorf("%s: piece %d of %d bytes, want %d", name, i, len(b), want[i])
		}
	}
}

// What the responder refuses, and with which status.
func TestResponder(t *testing.T) {
	r := newRig(t)
	r.ready()
	const (
		write, read, add = verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAdd
		invalid, access  = verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr
	)
	for _, c := range []struct {
		op    verbs.Opcode
		right verbs.AccessFlags
		reads uint8
		want  verbs.Status
	}{
		{verbs.OpSend, 0, 0, verbs.StatusSuccess},
		{write, verbs.AccessRemoteWrite, 0, verbs.StatusSuccess},
		{write, verbs.AccessRemoteRead | verbs.AccessRemoteAtomic, 4, invalid},
		{verbs.OpRDMAWriteWithImm, verbs.AccessRemoteRead, 4, invalid},
		{read, verbs.AccessRemoteRead, 1, verbs.StatusSuccess},
		{read, verbs.AccessRemoteRead, 0, invalid},
		{read, verbs.AccessRemoteWrite, 1, invalid},
		{add, verbs.AccessRemoteAtomic, 1, verbs.StatusSuccess},
		{add, verbs.AccessRemoteAtomic, 0, invalid},
		{add, verbs.AccessRemoteWrite | verbs.AccessRemoteRead, 1, invalid},
	} {
		r.qp.Attr.Access, r.qp.Attr.MaxDestRDAtomic = c.right, c.reads
		if got := r.qp.Permits(c.op); got != c.want {
			t.Errorf("%v where %v and %d reads are allowed: %v, want %v", c.op, c.right, c.reads, got, c.want)
		}
	}
	var writable MR
	must(t, writable.Register(&r.pd, make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	base := r.mr.Addr()
	for name, c := range map[string]struct {
		op      verbs.Opcode
		rkey    uint32
		addr, n uint64
		want    verbs.Status
	}{
		"write":                {write, r.mr.RKey(), base, 4096, verbs.StatusSuccess},
		"no bytes":             {write, 0, 0, 0, verbs.StatusSuccess},
		"a byte too many":      {write, r.mr.RKey(), base, 4097, access},
		"a byte too far":       {write, r.mr.RKey(), base + 1, 4096, access},
		"all but a byte":       {write, r.mr.RKey(), base + 1, 4095, verbs.StatusSuccess},
		"round the end":        {write, r.mr.RKey(), base + 8, ^uint64(0) - 4, access},
		"local key":            {write, r.mr.LKey(), base, 8, access},
		"stale key":            {write, r.mr.RKey() + 2, base, 8, access},
		"write where allowed":  {write, writable.RKey(), writable.Addr(), 64, verbs.StatusSuccess},
		"read where not":       {read, writable.RKey(), writable.Addr(), 64, access},
		"atomic where not":     {add, writable.RKey(), writable.Addr(), 8, access},
		"atomic":               {add, r.mr.RKey(), base + 8, 8, verbs.StatusSuccess},
		"atomic between words": {add, r.mr.RKey(), base + 4, 8, invalid},
	} {
		var p Pieces
		if got := r.qp.Target(&p, c.op, c.rkey, c.addr, c.n); got != c.want ||
			(got == verbs.StatusSuccess && c.n > 0) != (len(p.Bytes) == 1 && uint64(len(p.Bytes[0])) == c.n &&
				uint64(cap(p.Bytes[0])) == c.n) {
			t.Errorf("%s: %v with %d pieces, want %v", name, got, len(p.Bytes), c.want)
		}
		if got := r.qp.Target(nil, c.op, c.rkey, c.addr, c.n); got != c.want {
			t.Errorf("%s, checked: %v, want %v", name, got, c.want)
		}
	}
}

// A message goes to the first bytes of the next receive, all of which has to be there.
func TestAccept(t *testing.T) {
	r := newRig(t)
	r.ready()
	r.recv(verbs.RecvWR{SGL: append(r.sge(0, 10), r.sge(50, 20)...)})
	for n, want := range map[uint64][]int{0: nil, 7: {7}, 10: {10}, 11: {10, 1}, 30: {10, 20}} {
		var p Pieces
		if got := r.qp.Accept(&p, n); got != verbs.StatusSuccess {
			t.Errorf("%d bytes: %v", n, got)
		}
		wantLengths(t, "receive", &p, want)
	}
	if got := r.qp.Accept(nil, 31); got != verbs.StatusRemInvReqErr {
		t.Errorf("a byte too many: %v", got)
	}
	r.qp.RQ.Take()
	r.recv(verbs.RecvWR{SGL: []verbs.SGE{{Addr: r.mr.Addr() + 4000, Length: 97, LKey: r.mr.LKey()}}})
	if got := r.qp.Accept(nil, 1); got != verbs.StatusRemOpErr {
		t.Errorf("a receive beyond its region: %v", got)
	}
}

// A region that is held is closed when it is released, and its keys name nothing from the moment in
// which Close was called.
func TestCloseWaitsForWhoHolds(t *testing.T) {
	r := newRig(t)
	r.ready()
	r.lock.Lock()
	var p Pieces
	if r.qp.Target(&p, verbs.OpRDMAWrite, r.mr.RKey(), r.mr.Addr(), 8) != verbs.StatusSuccess {
		t.Fatal("no memory")
	}
	p.Hold()
	r.lock.Unlock()
	closed := make(chan error)
	go func() { closed <- r.mr.Close() }()
	for deadline := time.Now().Add(10 * time.Second); ; {
		r.lock.Lock()
		waits := r.lock.waiters > 0
		_, found := r.qp.RemoteSlice(r.mr.RKey(), r.mr.Addr(), 8, 0)
		r.lock.Unlock()
		if waits {
			if found {
				t.Error("the key names a region that is being closed")
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("Close does not wait")
		}
	}
	refused(t, "the domain", r.pd.Close(), verbs.ErrBusy, "1 memory regions and 1 queue pairs")
	p.Bytes[0][0] = 1 // still the program's memory, and the NIC's
	r.lock.Lock()
	p.Release()
	r.lock.WakeQuiet()
	r.lock.Unlock()
	must(t, <-closed)
	if len(p.Bytes) != 0 || r.open.MRs != 0 {
		t.Errorf("%d pieces, %d regions are left", len(p.Bytes), r.open.MRs)
	}
	refused(t, "again", r.mr.Close(), verbs.ErrClosed, "")
}

// Objects close in their order, and are counted.
func TestClosingOrder(t *testing.T) {
	r := newRig(t)
	if want := (Objects{PDs: 1, MRs: 1, CQs: 1, QPs: 1}); r.open != want {
		t.Errorf("open are %+v", r.open)
	}
	refused(t, "completion queue", r.cq.Close(), verbs.ErrBusy, "2 send and receive queues")
	must(t, r.mr.Close())
	refused(t, "domain", r.pd.Close(), verbs.ErrBusy, "0 memory regions and 1 queue pairs")
	r.closeQP(r.qp)
	refused(t, "post", r.qp.MaySend(), verbs.ErrClosed, "")
	must(t, r.pd.Close())
	refused(t, "domain", r.pd.Close(), verbs.ErrClosed, "")
	must(t, r.cq.Close())
	if r.open != (Objects{}) {
		t.Errorf("open are %+v", r.open)
	}
	_, err := r.pd.CheckQP(verbs.QPCap{}, &r.cq, &r.cq)
	refused(t, "queue pair", err, verbs.ErrClosed, "the protection domain")
	_, err = r.poll()
	refused(t, "poll", err, verbs.ErrClosed, "")
}

// Nothing is made on a NIC that is gone or closed.
func TestUnusableNIC(t *testing.T) {
	r := newRig(t)
	r.dev.Gone = true
	refused(t, "domain", (&PD{}).Init(&r.dev), verbs.ErrDeviceGone, "")
	refused(t, "region", (&MR{}).Register(&r.pd, r.buf, 0), verbs.ErrDeviceGone, "")
	refused(t, "completion queue", (&CQ{}).Init(&r.dev, nil, verbs.CQConfig{}), verbs.ErrDeviceGone, "")
	refused(t, "send", r.qp.MaySend(), verbs.ErrDeviceGone, "")
	refused(t, "receive", r.qp.MayReceive(), verbs.ErrDeviceGone, "")
	r.dev.Closed = "over"
	refused(t, "domain", (&PD{}).Init(&r.dev), verbs.ErrClosed, "over")
}
