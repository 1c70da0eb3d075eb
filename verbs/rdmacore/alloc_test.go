//go:build linux && (amd64 || arm64) && !(race && purego)

package rdmacore_test

import (
	"testing"

	"ibverbx/verbs"
)

// Nothing of the hot path allocates once warm, whatever the size of the batch and the kind of
// request, nor when something is refused for lack of room. (Under the race detector sync.Pool
// forgets on purpose, and purego's crossing into C uses one.)
func TestAllocs(t *testing.T) {
	const depth = 512
	s := openStandin(t, standinConfig{})
	c := verbs.NewCompChannel()
	r := newRig(t, s, rigConfig{depth: 2 * depth, channel: c,
		cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth}})
	inline := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		Inline: make([]byte, 60)}
	atomic := r.send(1, 8)
	atomic.Opcode = verbs.OpAtomicCmpAndSwp
	wcs := make([]verbs.WC, 2*depth)
	sends := func(n int, wr verbs.SendWR) []verbs.SendWR {
		wrs := make([]verbs.SendWR, n)
		for i := range wrs {
			wrs[i] = wr
		}
		return wrs
	}
	sendAndPoll := func(wrs []verbs.SendWR) func() {
		return func() {
			n, _ := r.qp.PostSend(wrs)
			m, _ := r.cq.Poll(wcs)
			if n != len(wrs) || m != n {
				t.Errorf("posted %d, polled %d", n, m)
			}
		}
	}
	recvs := make([]verbs.RecvWR, 20)
	for i := range recvs {
		recvs[i].SGL = r.sge(0, 8)
	}
	full := sends(depth+1, r.send(1, 8))
	for name, f := range map[string]func(){
		"1 send":      sendAndPoll(sends(1, r.send(1, 8))),
		"16 sends":    sendAndPoll(sends(16, r.send(1, 8))),
		"200 sends":   sendAndPoll(sends(200, r.send(1, 8))),
		"16 inline":   sendAndPoll(sends(16, inline)),
		"16 atomics":  sendAndPoll(sends(16, atomic)),
		"empty poll":  func() { _, _ = r.cq.Poll(wcs) },
		"arm":         func() { _ = r.cq.Arm(false) },
		"queue full":  func() { _, _ = r.qp.PostSend(full); _, _ = r.cq.Poll(wcs) },
		"no room":     func() { _, _ = r.cq.Poll(nil) },
		"signal":      c.Signal,
		"20 receives": func() { _, _ = r.qp.PostRecv(recvs) },
	} {
		f()
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Completions that failed are converted without allocating, too: a flush brings many.
func TestAllocsOfFlush(t *testing.T) {
	r := newRig(t, openStandin(t, standinConfig{}), rigConfig{depth: 512})
	r.setState(verbs.StateErr)
	wrs := make([]verbs.SendWR, 64)
	for i := range wrs {
		wrs[i] = r.send(uint64(i), 8)
	}
	wcs := make([]verbs.WC, 64)
	f := func() {
		n, _ := r.qp.PostSend(wrs)
		if m, _ := r.cq.Poll(wcs); n != 64 || m != 64 {
			t.Errorf("posted %d, polled %d", n, m)
		}
	}
	f()
	if n := testing.AllocsPerRun(20, f); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
