package tagged_test

import (
	"bytes"
	"testing"

	"ibverbx/tagged"
)

// TestSendOrder: eager and rendezvous with one tag match in the order of the sends and of
// the receives.
func TestSendOrder(t *testing.T) {
	for _, unexpected := range []bool{false, true} {
		r, a, b := pair(t, 1, tagged.Config{})
		const n = 120
		length := func(i int) int { return []int{8, 20000, 9000, 300000, 0}[i%5] + i }
		var srcs, dsts [n][]byte
		var sends, recvs [n]*tagged.Request
		for i := range n {
			srcs[i], dsts[i] = pattern(length(i), i), make([]byte, length(i))
		}
		post := func() {
			for i := range n {
				mask := tagged.Exact
				if i%3 == 0 {
					mask = 0xf
				}
				recvs[i] = r.recv(b.Worker(), 7, mask, dsts[i])
			}
		}
		if !unexpected {
			post()
		}
		for i := range n {
			sends[i] = r.send(a, 7, srcs[i])
		}
		if unexpected {
			r.settle()
			post()
		}
		r.done(recvs[:]...)
		r.done(sends[:]...)
		for i := range n {
			if recvs[i].Err() != nil || !bytes.Equal(srcs[i], dsts[i]) {
				t.Fatalf("unexpected %t: receive %d: %v, %+v", unexpected, i, recvs[i].Err(), recvs[i].Info())
			}
		}
	}
}

// TestUnexpected: 1,000 messages of two senders that no receive waits for are probed, and received
// in reverse by wildcards.
func TestUnexpected(t *testing.T) {
	r := newRig(t, 3, 1, tagged.Config{})
	x, fromX := r.connect(0, 2)
	y, fromY := r.connect(1, 2)
	w := r.workers[2]
	const n = 1000
	for i := range uint64(n) {
		from := x
		if i%2 == 1 {
			from = y
		}
		if req := r.send(from, i<<8|i%2, pattern(int(i)%300, int(i))); req != nil {
			defer req.Free()
		}
	}
	r.until(func() bool { return w.Stats().Unexpected == n })
	for i := uint64(n); i > 0; i-- {
		id := i - 1
		source := fromX
		if id%2 == 1 {
			source = fromY
		}
		want := tagged.Info{Tag: id<<8 | id%2, Length: int(id) % 300, Source: source}
		if info, ok := w.Probe(id<<8, ^uint64(0xff)); !ok || info != want {
			t.Fatalf("probe of %d: %+v, %t: want %+v", id, info, ok, want)
		}
		buf := make([]byte, 300)
		req := r.recv(w, id<<8, ^uint64(0xff), buf)
		if !req.Done() || req.Err() != nil || req.Info() != want ||
			!bytes.Equal(buf[:want.Length], pattern(want.Length, int(id))) {
			t.Fatalf("receive of %d: done %t, %v, %+v", id, req.Done(), req.Err(), req.Info())
		}
	}
	if info, ok := w.Probe(0, tagged.Any); ok {
		t.Errorf("%+v is left", info)
	}
}
