//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"ibverbx/verbs"
)

// want is how C should have seen a send.
func want(qp verbs.QP, wr verbs.SendWR) seenWR {
	w := seenWR{ID: wr.ID, QPNum: qp.Num(), Opcode: uint32(wr.Opcode), Flags: uint32(wr.Flags)}
	if wr.Opcode.HasImm() {
		w.Imm = wr.Imm
	}
	if !wr.Opcode.IsSend() {
		w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
	}
	if wr.Opcode.IsAtomic() {
		w.CompareAdd = wr.CompareAdd
	}
	if wr.Opcode == verbs.OpAtomicCmpAndSwp {
		w.Swap = wr.Swap
	}
	if wr.Flags&verbs.SendInline != 0 {
		w.InlineLen = uint32(copy(w.Inlined[:], wr.Inline))
		if w.InlineLen > 0 {
			w.NumSGE = 1
		}
		return w
	}
	w.NumSGE = uint32(copy(w.SGE[:], wr.SGL))
	return w
}

// sameSends compares what C saw with what was posted. The address of an inline payload differs,
// since it is copied.
func (r *rig) sameSends(wrs ...verbs.SendWR) {
	r.t.Helper()
	seen := r.seen(r.t)
	if len(seen) != len(wrs) {
		r.t.Fatalf("C saw %d requests, want %d", len(seen), len(wrs))
	}
	for i, wr := range wrs {
		got := seen[i]
		if wr.Flags&verbs.SendInline != 0 {
			if got.NumSGE > 0 && got.SGE[0].Length != uint32(len(wr.Inline)) {
				r.t.Errorf("request %d: %d bytes inline, want %d", i, got.SGE[0].Length, len(wr.Inline))
			}
			got.SGE = [30]verbs.SGE{}
		}
		if want := want(r.qp, wr); got != want {
			got.Inlined, want.Inlined = [1024]byte{}, [1024]byte{}
			r.t.Errorf("request %d, C saw\n%+v, want\n%+v", i, got, want)
		}
	}
}

func TestPostEveryField(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}),
		rigConfig{cap: verbs.QPCap{MaxSendSGE: 5, MaxInline: 100}})
	base := verbs.SendWR{
		ID: 0x0123456789abcdef, SGL: r.sge(8, 8), Imm: 0x01020304, RKey: 0xa1a2a3a4,
		RemoteAddr: 0xb1b2b3b4b5b6b7b8,
		CompareAdd: 0xc1c2c3c4c5c6c7c8, Swap: 0xd1d2d3d4d5d6d7d8,
	}
	var wrs []verbs.SendWR
	for op := verbs.OpRDMAWrite; op.Valid(); op++ {
		for flags := verbs.SendFlags(0); flags < 8; flags++ {
			wr := base
			wr.ID += uint64(len(wrs))
			wr.Opcode, wr.Flags = op, flags
			wrs = append(wrs, wr)
		}
	}
	for n := range 6 { // scatter lists of every length, none of them the one before
		wr := base
		wr.Opcode, wr.SGL = verbs.OpSend, nil
		for j := range n {
			wr.SGL = append(wr.SGL, verbs.SGE{Addr: r.mr.Addr() + uint64(64*j), Length: uint32(n + j),
				LKey: r.mr.LKey() + uint32(j)})
		}
		wrs = append(wrs, wr)
	}
	for _, n := range []int{100, 0, 1, 64} {
		wr := base
		wr.Opcode, wr.Flags, wr.SGL = verbs.OpRDMAWriteWithImm, verbs.SendInline|verbs.SendSignaled, nil
		wr.Inline = bytes.Repeat([]byte{byte(n + 1)}, n)
		wrs = append(wrs, wr)
	}
	wrs = append(wrs, wrs[0]) // after inline, a list again
	var signaled int
	r.set("record", 1)
	for i, wr := range wrs {
		if wr.Flags&verbs.SendSignaled != 0 {
			signaled++
		}
		if i%2 == 0 { // one by one, and in pairs
			r.post(wrs[i:min(i+2, len(wrs))]...)
		}
	}
	r.sameSends(wrs...)
	r.poll(r.cq, signaled)
}

func TestPostRecvEveryField(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{cap: verbs.QPCap{MaxRecvSGE: 5}})
	r.set("record", 1)
	var wrs []verbs.RecvWR
	for i := range 100 {
		wr := verbs.RecvWR{ID: 0xfedcba9876543210 + uint64(i)}
		for j := range i % 6 {
			wr.SGL = append(wr.SGL, verbs.SGE{Addr: r.mr.Addr() + uint64(j), Length: uint32(i),
				LKey: r.mr.LKey() + uint32(j)})
		}
		wrs = append(wrs, wr)
	}
	r.recv(wrs...)
	seen := r.seen(t)
	if len(seen) != len(wrs) {
		t.Fatalf("C saw %d receives", len(seen))
	}
	for i, wr := range wrs {
		want := seenWR{ID: wr.ID, QPNum: r.qp.Num(), IsRecv: 1}
		want.NumSGE = uint32(copy(want.SGE[:], wr.SGL))
		if seen[i] != want {
			t.Errorf("receive %d, C saw\n%+v, want\n%+v", i, seen[i], want)
		}
	}
}

// A batch of any length arrives whole and in order, 64 requests a crossing.
func TestPostBatches(t *testing.T) {
	const depth = 1024
	r := newRig(t, openStandin(t, standinConfig{}),
		rigConfig{depth: 2 * depth, cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth}})
	for _, n := range []int{0, 1, 2, 63, 64, 65, 127, 128, 129, 1000, 1024} {
		wrs := make([]verbs.SendWR, n)
		recvs := make([]verbs.RecvWR, n)
		for i := range wrs {
			wrs[i] = r.send(uint64(n*10000+i), uint32(i))
			recvs[i] = verbs.RecvWR{ID: uint64(i), SGL: r.sge(0, uint32(i))}
		}
		before := r.crossings(0, r.qp.Num(), 0)
		r.set("record", 1)
		r.post(wrs...)
		r.sameSends(wrs...)
		if got, want := r.crossings(0, r.qp.Num(), 0)-before, (n+63)/64; got != want {
			t.Errorf("%d requests in %d crossings, want %d", n, got, want)
		}
		r.set("record", 1)
		r.recv(recvs...)
		for i, s := range r.seen(t) {
			if s.ID != uint64(i) || s.SGE[0].Length != uint32(i) {
				t.Fatalf("receive %d of %d: %+v", i, n, s)
			}
		}
		r.set("record", 0)
		for i, wc := range r.poll(r.cq, n) {
			if wc.ID != wrs[i].ID || wc.Status != verbs.StatusSuccess || wc.Opcode != verbs.WCSend {
				t.Fatalf("completion %d: %+v", i, wc)
			}
		}
		for range n {
			r.completeRecv(0, r.qp.Num(), 1, 0, 0, 0)
		}
		r.poll(r.rcq, n)
	}
}

// Where C refuses a request in the middle, those before it were accepted and the others were not.
func TestPostRefusedInTheMiddle(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}),
		rigConfig{depth: 1024, cap: verbs.QPCap{MaxSendWR: 512, MaxRecvWR: 512}})
	sends, recvs := make([]verbs.SendWR, 200), make([]verbs.RecvWR, 200)
	for i := range sends {
		sends[i], recvs[i].ID = r.send(uint64(i), 1), uint64(i)
	}
	for _, at := range []int{0, 1, 63} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			r.set("record", 1)
			r.failCall("ibv_post_send", int32(syscall.EINVAL), 1, int32(at))
			n, err := r.qp.PostSend(sends)
			if n != at {
				t.Errorf("%d sends accepted, want %d", n, at)
			}
			is(t, err, verbs.ErrInvalid, syscall.EINVAL)
			mentions(t, err, fmt.Sprintf("post send: standin0 qp %d: ibv_post_send", r.qp.Num()))
			r.sameSends(sends[:at]...)
			r.post(sends[at:]...) // the rest can be posted again
			r.sameSends(sends...)
			r.poll(r.cq, len(sends))

			r.set("record", 1)
			r.failCall("ibv_post_recv", int32(syscall.ENOMEM), 1, int32(at))
			n, err = r.qp.PostRecv(recvs)
			if n != at || int(r.seenCount()) != at {
				t.Errorf("%d receives accepted, C took %d, want %d", n, r.seenCount(), at)
			}
			is(t, err, verbs.ErrQueueFull)
			r.recv(recvs[at:]...)
			for range recvs {
				r.completeRecv(0, r.qp.Num(), 1, 0, 0, 0)
			}
			r.poll(r.rcq, len(recvs))
		})
	}
}

// A driver may fail without naming the request, as librxe does when the kernel refuses to look at
// the queue. siw names the request for which a queue had no room, and returns no error.
func TestPostFailsOddly(t *testing.T) {
	const unsaid = 10000 // UNSAID of the stand-in
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	for _, c := range []struct {
		errno    int32
		at       int32 // -1: no request is named
		want     error
		accepted int
	}{
		{int32(syscall.EIO), -1, syscall.EIO, 0}, {int32(syscall.EIO), 1, syscall.EIO, 1},
		{unsaid, 0, verbs.ErrQueueFull, 0}, {unsaid, 1, verbs.ErrQueueFull, 1},
	} {
		r := rigOn(t, s, d, rigConfig{})
		for call, post := range map[string]func() (int, error){
			"ibv_post_send": func() (int, error) {
				return r.qp.PostSend([]verbs.SendWR{r.send(1, 1), r.send(2, 1)})
			},
			"ibv_post_recv": func() (int, error) { return r.qp.PostRecv([]verbs.RecvWR{{ID: 1}, {ID: 2}}) },
		} {
			r.failCall(call, c.errno, 1, c.at)
			n, err := post()
			is(t, err, c.want)
			if n != c.accepted {
				t.Errorf("%s, %v at %d: %d accepted", call, c.want, c.at, n)
			}
		}
	}
}

func TestPostQueueFull(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}),
		rigConfig{depth: 1024, cap: verbs.QPCap{MaxSendWR: 100, MaxRecvWR: 70}})
	limits := r.qp.Cap()
	if limits.MaxSendWR != 128 || limits.MaxRecvWR != 128 || limits.MaxInline != 64 {
		t.Errorf("limits %+v: the library gave more", limits)
	}
	sends, recvs := make([]verbs.SendWR, 300), make([]verbs.RecvWR, 300)
	for i := range sends {
		sends[i], recvs[i].ID = r.send(uint64(i), 1), uint64(i)
	}
	n, err := r.qp.PostSend(sends)
	if n != 128 {
		t.Errorf("%d sends accepted", n)
	}
	is(t, err, verbs.ErrQueueFull)
	mentions(t, err, "128")
	if !verbs.IsTransient(err) {
		t.Error("a full queue is transient")
	}
	if n, err = r.qp.PostSend(sends[128:]); n != 0 {
		t.Errorf("%d accepted by a full queue: %v", n, err)
	}
	wcs := make([]verbs.WC, 5)
	got, err := r.cq.Poll(wcs)
	if got != 5 || err != nil {
		t.Fatal(got, err)
	}
	if n, err = r.qp.PostSend(sends[128:]); n != 5 {
		t.Errorf("%d accepted after five completions were polled: %v", n, err)
	}
	r.poll(r.cq, 128)
	r.post(sends[:28]...)
	if n, err = r.qp.PostSend(sends); n != 100 { // 64, and 36 of the next crossing
		t.Errorf("%d accepted where 100 fit: %v", n, err)
	}
	r.poll(r.cq, 128)
	n, err = r.qp.PostRecv(recvs)
	if n != 128 {
		t.Errorf("%d receives accepted", n)
	}
	is(t, err, verbs.ErrQueueFull)
}

// A request that only some drivers refuse is refused before any of them sees it, and those before
// it in the batch are posted.
func TestPostChecks(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}),
		rigConfig{cap: verbs.QPCap{MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}})
	good := r.send(1, 8)
	three := make([]verbs.SGE, 3)
	for name, bad := range map[string]verbs.SendWR{
		"opcode":           {Opcode: 7},
		"flags":            {Opcode: verbs.OpSend, Flags: 1 << 4},
		"long list":        {Opcode: verbs.OpSend, SGL: three},
		"long inline":      {Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: make([]byte, 65)},
		"inline with list": {Opcode: verbs.OpSend, Flags: verbs.SendInline, SGL: r.sge(0, 8)},
		"inline read":      {Opcode: verbs.OpRDMARead, Flags: verbs.SendInline},
		"inline atomic":    {Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendInline},
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []int{0, 1, 64, 65} {
				wrs := make([]verbs.SendWR, 0, 100)
				for range before {
					wrs = append(wrs, good)
				}
				r.set("record", 1)
				n, err := r.qp.PostSend(append(wrs, bad, good))
				is(t, err, verbs.ErrInvalid)
				if n != before || int(r.seenCount()) != before {
					t.Errorf("%d accepted, C saw %d, want %d", n, r.seenCount(), before)
				}
				r.poll(r.cq, before)
			}
		})
	}
	if n, err := r.qp.PostSend(nil); n != 0 || err != nil {
		t.Errorf("nothing posted: %d %v", n, err)
	}
	n, err := r.qp.PostRecv([]verbs.RecvWR{{ID: 1}, {ID: 2, SGL: three}, {ID: 3}})
	if n != 1 {
		t.Errorf("%d receives accepted", n)
	}
	is(t, err, verbs.ErrInvalid)
}

// The states are checked before a driver is asked: mlx5 takes a send in any of them.
func TestPostInState(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	r := rigOn(t, s, d, rigConfig{state: verbs.StateInit})
	refused := func(n int, err error) {
		t.Helper()
		if n != 0 {
			t.Errorf("%d accepted", n)
		}
		is(t, err, verbs.ErrState)
	}
	send, recv := []verbs.SendWR{r.send(1, 1)}, []verbs.RecvWR{{ID: 2}}
	r.setState(verbs.StateReset)
	refused(r.qp.PostRecv(recv))
	refused(r.qp.PostSend(send))
	attr := path()
	for _, step := range steps {
		attr.State = step.state
		ok(t, r.qp.Modify(&attr, step.mask))
		r.recv(recv...)
		if step.state != verbs.StateRTS {
			refused(r.qp.PostSend(send))
		}
	}
	r.setState(verbs.StateSQD)
	r.post(send...) // held
	r.poll(r.cq, 0)
	r.setState(verbs.StateRTS)
	r.poll(r.cq, 1)
	r.setState(verbs.StateErr)
	r.post(send...)
	r.recv(recv...)
	if wc := r.poll(r.cq, 1)[0]; wc.Status != verbs.StatusWRFlushErr || wc.ID != 1 {
		t.Errorf("send in ERR: %+v", wc)
	}
	for _, wc := range r.poll(r.rcq, 4) {
		if wc.Status != verbs.StatusWRFlushErr || wc.ID != 2 {
			t.Errorf("receive in ERR: %+v", wc)
		}
	}
	if n := r.complaints(); n != 0 {
		t.Errorf("%s", r.complaint())
	}
}

// The payload of an inline send is the caller's again when the post returns.
func TestInlineIsCopied(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{})
	r.hold(0, r.qp.Num(), 1)
	r.set("record", 1)
	payload := []byte("inline")
	wr := verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled,
		Inline: payload}
	r.post(wr)
	copy(payload, "XXXXXX")
	seen := r.seen(t)[0]
	if got := string(seen.Inlined[:seen.InlineLen]); got != "inline" {
		t.Errorf("C saw %q", got)
	}
	r.hold(0, r.qp.Num(), 0)
	r.poll(r.cq, 1)
}

// A NIC may be in ERR before the provider knows, and bnxt_re before rdma-core 50 accepts no
// requests there and calls them invalid. The error is still that of the state; a request that
// really is invalid gets that error.
func TestPostRefusedInErr(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{})
	s.fail("ibv_post_send", syscall.EINVAL)
	_, err := r.qp.PostSend([]verbs.SendWR{r.send(1, 1)})
	is(t, err, verbs.ErrInvalid, syscall.EINVAL)
	s.killQP(0, r.qp.Num())
	s.fail("ibv_post_send", syscall.EINVAL)
	_, err = r.qp.PostSend([]verbs.SendWR{r.send(1, 1)})
	is(t, err, verbs.ErrState, syscall.EINVAL)
	s.fail("ibv_post_recv", syscall.EINVAL)
	_, err = r.qp.PostRecv([]verbs.RecvWR{{ID: 1}})
	is(t, err, verbs.ErrState, syscall.EINVAL)
}
