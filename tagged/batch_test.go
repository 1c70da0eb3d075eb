package tagged_test

import (
	"bytes"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// TestBatches: short sends that wait in a row go out together, in order, among others that do not,
// within the window.
func TestBatches(t *testing.T) {
	for _, size := range []int{512, 8192} {
		r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 100,
			Transport: transport.Config{BufferSize: size}})
		const n = 1000
		length := func(i int) int {
			if i%50 == 7 {
				return 3000
			}
			return []int{8, 0, 400, 512, 512, 513, 20}[i%7]
		}
		var reqs []*tagged.Request
		for i := range n {
			reqs = append(reqs, r.send(a, 1, pattern(length(i), i)))
		}
		for i := range n {
			buf := make([]byte, 3000)
			d := r.recv(b.Worker(), 1, tagged.Exact, buf)
			r.done(d)
			if d.Err() != nil || d.Info().Length != length(i) ||
				!bytes.Equal(buf[:length(i)], pattern(length(i), i)) {
				t.Fatalf("buffers of %d bytes: message %d: %v, %+v", size, i, d.Err(), d.Info())
			}
		}
		r.done(reqs...)
		if s := a.Worker().Stats(); s.Batches == 0 {
			t.Errorf("no batches: %+v", s)
		}
	}
}

// TestBatchThatIsRefused: a short send that was put into a batch which the NIC refused goes out
// whole when the others are cancelled, so that it goes alone.
func TestBatchThatIsRefused(t *testing.T) {
	for _, n := range []int{8, 256, 300, 512} {
		r, a, b := pair(t, 1, tagged.Config{Transport: transport.Config{QP: ibverbx.Config{QPsPerDevice: 1}}})
		refuse := r.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: r.fabric.Device(0), Count: -1})
		one, two := r.send(a, 1, cut(pattern(n, 1), 2)...), r.send(a, 2, pattern(100, 2))
		r.workers[0].Progress() // the batch is tried
		if one == nil || two == nil || !two.Cancel() {
			t.Fatal("the sends have gone out, although the NIC refuses them")
		}
		refuse.Remove()
		buf := make([]byte, 512)
		d := r.recv(b.Worker(), 0, tagged.Any, buf)
		r.done(one, d)
		if d.Err() != nil || d.Info().Length != n || !bytes.Equal(buf[:n], pattern(n, 1)) {
			t.Errorf("%d bytes: %v, %d arrived, as they were: %t", n, d.Err(), d.Info().Length,
				bytes.Equal(buf[:n], pattern(n, 1)))
		}
	}
}
