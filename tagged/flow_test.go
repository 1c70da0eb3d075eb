package tagged_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// TestWindow: a sender has no more than MaxUnexpected fragments and announcements at a receiver
// that does not receive; the rest waits, and goes out in order as messages are received.
func TestWindow(t *testing.T) {
	const window = 4
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: window})
	w := b.Worker()
	const n = 50
	var sends []*tagged.Request
	length := func(i int) int { return []int{8, 20000}[i%2] }
	for i := range n {
		sends = append(sends, r.send(a, uint64(i), pattern(length(i), i)))
	}
	r.settle()
	if s := w.Stats(); s.Unexpected != window {
		t.Fatalf("%d messages are kept: want %d", s.Unexpected, window)
	}
	for i := range n {
		buf := make([]byte, length(i))
		d := r.recv(w, uint64(i), tagged.Exact, buf)
		r.done(d)
		if d.Err() != nil || !bytes.Equal(buf, pattern(len(buf), i)) {
			t.Fatalf("message %d: %v", i, d.Err())
		}
		if got := w.Stats().Unexpected; got > window {
			t.Fatalf("%d messages are kept", got)
		}
	}
	r.done(sends...)
}

// TestWindowInFragments: one message of more fragments than the window arrives, because what was
// consumed of it is given back before its end.
func TestWindowInFragments(t *testing.T) {
	for _, window := range []int{1, 2, 3} {
		r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: window, EagerLimit: 1 << 20})
		for _, first := range []string{"send", "recv"} {
			src, dst := pattern(200000, 1), make([]byte, 200000)
			var s, d *tagged.Request
			if first == "send" {
				s = r.send(a, 1, src)
				r.settle()
			}
			d = r.recv(b.Worker(), 1, tagged.Exact, dst)
			if first == "recv" {
				s = r.send(a, 1, src)
			}
			r.done(s, d)
			if d.Err() != nil || !bytes.Equal(src, dst) {
				t.Fatalf("window %d, %s first: %v", window, first, d.Err())
			}
		}
	}
}

// TestNoDeadlock: two ends send each other messages of all kinds with the smallest of everything,
// and each receives only what the other has sent long before.
func TestNoDeadlock(t *testing.T) {
	cfg := tagged.Config{
		MaxUnexpected: 1, Chunk: 5000, Window: 1, EagerLimit: 3000,
		Transport: transport.Config{BufferSize: 512, BounceBuffers: 1, AMBuffers: 1, MaxOutstanding: 1,
			QP: ibverbx.Config{QPsPerDevice: 2}},
	}
	r, a, b := pair(t, 1, cfg)
	const n = 60
	length := func(i int) int { return []int{0, 8, 2500, 20000, 400}[i%5] }
	var all []*tagged.Request
	bufs := map[*tagged.Endpoint][][]byte{}
	for i := range n {
		for _, e := range []*tagged.Endpoint{a, b} {
			send := e.Send
			if i%4 == 0 {
				send = e.SendSync
			}
			req, err := send(uint64(i), pattern(length(i), i))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, req)
		}
	}
	r.settle()
	for i := range n {
		for _, e := range []*tagged.Endpoint{a, b} {
			buf := make([]byte, length(i))
			bufs[e] = append(bufs[e], buf)
			all = append(all, r.recv(e.Worker(), uint64(i), tagged.Exact, buf))
		}
	}
	r.done(all...)
	for e, list := range bufs {
		for i, buf := range list {
			if !bytes.Equal(buf, pattern(length(i), i)) {
				t.Fatalf("%s: message %d differs", e.Name(), i)
			}
		}
	}
}

// TestManyGoroutines: many goroutines send and receive on the same endpoints, in the blocking way.
func TestManyGoroutines(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 16})
	ctx := background(r)
	rounds := 200
	if testing.Short() {
		rounds = 30
	}
	var wg sync.WaitGroup
	fail := make(chan error, 64)
	for g := range 8 {
		for _, ends := range [][2]*tagged.Endpoint{{a, b}, {b, a}} {
			tag := uint64(g)
			wg.Go(func() {
				for i := range rounds {
					if err := ends[0].SendWait(ctx, tag, pattern(i*g*37, i)); err != nil {
						fail <- err
						return
					}
				}
			})
			wg.Go(func() {
				buf := make([]byte, rounds*g*37)
				for i := range rounds {
					info, err := ends[1].Worker().RecvWait(ctx, tag, tagged.Exact, buf)
					if err != nil || !bytes.Equal(buf[:info.Length], pattern(i*g*37, i)) {
						fail <- fmt.Errorf("tag %d, message %d: %+v, %w", tag, i, info, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	close(fail)
	for err := range fail {
		t.Error(err)
	}
}

// TestAllocations: once warm nothing is allocated, on any path, also by calls that wait.
func TestAllocations(t *testing.T) {
	if raceEnabled {
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

// TestReadsNeedNoCredit: a peer whose program keeps every buffer for active messages holds up what
// this end sends, and nothing that this end receives: a long message that is announced is read, be
// it before or after sends have queued up for want of a credit, or the program's own requests.
func TestReadsNeedNoCredit(t *testing.T) {
	for _, c := range []struct{ posted, program bool }{{false, false}, {true, false}, {false, true},
		{true, true}} {
		cfg := tagged.Config{Chunk: 10000, Window: 2, Transport: transport.Config{KeepAlive: -1,
			MaxOutstanding: 40}}
		r := newRig(t, 2, 1, cfg)
		var kept []*transport.Message
		for _, w := range r.workers {
			if err := w.Transport().Handle(
				1, func(m *transport.Message) { m.Keep(); kept = append(kept, m) }); err != nil {
				t.Fatal(err)
			}
		}
		a, b := r.connect(0, 1)
		w := a.Worker()
		dst := make([]byte, 100000)
		var d *tagged.Request
		if c.posted {
			d = r.recv(w, 1, tagged.Exact, dst)
		}
		for a.Transport().Stats().Credits != 0 {
			if err := a.Transport().AMShort(1, nil, []byte("kept")); err != nil &&
				!errors.Is(err, transport.ErrNoResource) {
				t.Fatal(err)
			}
			r.settle()
		}
		own := &transport.Pending{Func: func(_ *transport.Pending,
			turn *transport.Endpoint) transport.Outcome {
			if turn.AMShort(1, nil, []byte("own")) != nil {
				return transport.PendingNoResource
			}
			return transport.PendingDone
		}}
		if c.program {
			if err := a.Transport().AMShort(1, nil, nil); !errors.Is(err, transport.ErrNoResource) {
				t.Fatal(err)
			}
			if err := a.Transport().Pending(own); err != nil {
				t.Fatal(err)
			}
		}
		short := r.send(a, 2, []byte("waits for a credit"))
		long := r.send(b, 1, pattern(len(dst), 3))
		r.settle()
		if !c.posted {
			d = r.recv(w, 1, tagged.Exact, dst)
		}
		r.settle()
		r.until(func() bool { r.settle(); return d.Done() })
		if d.Err() != nil || !bytes.Equal(dst, pattern(len(dst), 3)) {
			t.Fatalf("%+v: %v", c, d.Err())
		}
		if short.Done() || long.Done() {
			t.Fatalf("%+v: a message has gone out without a credit: %t, %t", c, short.Done(), long.Done())
		}
		got := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, 100))
		for _, m := range kept {
			m.Release()
		}
		r.done(short, long, got)
		r.settle()
		for _, m := range kept[min(len(kept), w.Config().Transport.AMBuffers):] {
			m.Release()
		}
	}
}

// TestBatchThatIsRefused: short sends that were put into a batch which the NIC refused go out whole
// all the same, when one is cancelled so that the first goes alone.
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

// TestRegionInUse: a region cannot be closed while a message is read from it.
func TestRegionInUse(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	mem := pattern(100000, 1)
	region, err := a.Worker().Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	s := r.send(a, 1, mem)
	if err := region.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatal(err)
	}
	r.done(r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 100000)), s)
	if err := region.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFree: a request that is freed before it is done goes on, and is given back when it is;
// freeing one twice panics.
func TestFree(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	buf := make([]byte, 8)
	r.recv(b.Worker(), 1, tagged.Exact, buf).Free()
	r.send(a, 1, []byte("freed"))
	r.until(func() bool { return b.Worker().Stats().SpareRequests == 1 })
	if string(buf[:5]) != "freed" {
		t.Errorf("%q", buf)
	}
	d := r.recv(b.Worker(), 1, tagged.Exact, buf)
	d.Cancel()
	d.Free()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Free()
}
