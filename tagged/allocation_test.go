package tagged_test

import (
	"testing"

	"ibverbx/internal/guard"
	"ibverbx/tagged"
)

// TestAllocations: once warm no path allocates, nor do calls that wait.
func TestAllocations(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	r, a, b := pair(t, 1, tagged.Config{})
	w := b.Worker()
	src, dst := pattern(1<<20, 1), make([]byte, 1<<20)
	for w, mem := range map[*tagged.Worker][]byte{a.Worker(): src, w: dst} {
		if _, err := w.Register(mem); err != nil {
			t.Fatal(err)
		}
	}
	ctx := timeout(t, 50e9)
	finish := func(s, d *tagged.Request) {
		for s != nil && !s.Done() || !d.Done() {
			a.Worker().Progress()
			w.Progress()
		}
		if s != nil {
			s.Free()
		}
		d.Free()
	}
	for _, n := range []int{0, 8, 4096, 16000, 1 << 20} {
		paths := map[string]func(){
			"expected": func() {
				d, _ := w.Recv(1, tagged.Exact, dst[:n/2], dst[n/2:n])
				s, _ := a.Send(1, src[:n/3], src[n/3:n])
				finish(s, d)
			},
			"unexpected": func() {
				s, _ := a.SendSync(1, src[:n])
				for _, ok := w.Probe(1, tagged.Exact); !ok; _, ok = w.Probe(1, tagged.Exact) {
					w.Progress()
					a.Worker().Progress()
				}
				d, _ := w.Recv(0, tagged.Any, dst[:n])
				finish(s, d)
			},
		}
		if n <= tagged.DefaultEagerLimit {
			paths["waiting"] = func() {
				if err := a.SendWait(ctx, 1, src[:n]); err != nil {
					t.Error(err)
				}
				if _, err := w.RecvWait(ctx, 1, tagged.Exact, dst[:n]); err != nil {
					t.Error(err)
				}
				a.Worker().Progress()
			}
			paths["queued"] = func() {
				var recvs, sends [100]*tagged.Request
				for i := range recvs {
					recvs[i], _ = w.Recv(1, tagged.Exact, dst[:n])
					sends[i], _ = a.Send(1, src[:n])
				}
				for i := range recvs {
					finish(sends[i], recvs[i])
				}
			}
		}
		for name, f := range paths {
			for range 300 { // every slot of the rings beneath allocates once
				f()
			}
			if got := testing.AllocsPerRun(50, f); got != 0 {
				t.Errorf("%d bytes, %s: %g allocations", n, name, got)
			}
		}
	}
	r.settle()
}
