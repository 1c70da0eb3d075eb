package tagged_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
)

// lengths cross every border: inline, one fragment, several, rendezvous, several chunks.
var lengths = []int{0, 1, 8, 95, 96, 97, 104, 105, 200, 4096, 8159, 8160, 8161, 8192, 16383, 16384, 16385,
	100000, 1 << 20, 3<<20 + 5}

// fabrics are the ways in which two workers can be connected.
var fabrics = []struct{ nics, qps int }{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 4}}

func withQPs(qps int) tagged.Config {
	return tagged.Config{Transport: transport.Config{QP: ibverbx.Config{QPsPerDevice: qps,
		MaxMsgSize: 64 << 10}}}
}

// TestContract1EveryLengthOverEveryRail: small messages are pushed out as fragments, large ones are
// read over every rail; what lacks resources is queued and finished.
func TestContract1EveryLengthOverEveryRail(t *testing.T) {
	for _, f := range fabrics {
		t.Run(fmt.Sprintf("%d NICs, %d queue pairs each", f.nics, f.qps), func(t *testing.T) {
			r, a, b := pair(t, f.nics, withQPs(f.qps))
			for _, n := range lengths {
				for _, unexpected := range []bool{false, true} {
					src, dst := pattern(n, n), make([]byte, n)
					var s, d *tagged.Request
					if unexpected {
						s = r.send(a, 5, src)
						r.settle()
						d = r.recv(b.Worker(), 5, tagged.Exact, dst)
					} else {
						d = r.recv(b.Worker(), 5, tagged.Exact, dst)
						s = r.send(a, 5, src)
					}
					r.done(s, d)
					want := tagged.Info{Tag: 5, Length: n, Source: b}
					if err := d.Err(); err != nil || d.Info() != want || !bytes.Equal(src, dst) {
						t.Fatalf("%d bytes, unexpected %t: %v, %+v", n, unexpected, err, d.Info())
					}
				}
			}
			long := uint64(0)
			for _, n := range lengths {
				if n > tagged.DefaultEagerLimit {
					long += 2
				}
			}
			if got := a.Worker().Stats().Announced; got != long {
				t.Errorf("%d messages were announced: want %d, those above the limit", got, long)
			}
		})
	}
}

// TestContract1RegisteredMemory: memory inside a region is used as it is, other memory is
// registered for the one message.
func TestContract1RegisteredMemory(t *testing.T) {
	r, a, b := pair(t, 2, tagged.Config{})
	const n = 100 << 10
	src, dst := pattern(3*n, 1), make([]byte, 3*n)
	var regions []*tagged.Region
	for w, mem := range map[*tagged.Worker][]byte{a.Worker(): src, b.Worker(): dst} {
		reg, err := w.Register(mem)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, reg)
		if _, err := w.Register(mem[n : n+1]); err == nil {
			t.Error("a region that overlaps was taken")
		}
	}
	exchange := func(src, dst []byte) {
		d := r.recv(b.Worker(), 1, tagged.Exact, dst)
		r.done(r.send(a, 1, src), d)
		if d.Err() != nil || !bytes.Equal(src, dst) {
			t.Fatal(d.Err())
		}
	}
	exchange(src[n+1:2*n], dst[n+1:2*n])
	if x, y := a.Worker().Stats().Registered, b.Worker().Stats().Registered; x != 0 || y != 0 {
		t.Errorf("%d and %d registrations for memory inside a region", x, y)
	}
	exchange(pattern(n, 9), make([]byte, n))
	if x, y := a.Worker().Stats().Registered, b.Worker().Stats().Registered; x != 1 || y != 1 {
		t.Errorf("%d and %d registrations for one message: want one on each side", x, y)
	}
	for _, reg := range regions {
		if err := reg.Close(); err != nil {
			t.Error(err)
		}
		if err := reg.Close(); !errors.Is(err, tagged.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestContract2SendOrder: eager and rendezvous with one tag match in the order of the sends and of
// the receives.
func TestContract2SendOrder(t *testing.T) {
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

// TestContract2Unexpected: 1,000 messages of two senders that nobody waits for are probed, and
// received in reverse by wildcards.
func TestContract2Unexpected(t *testing.T) {
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

// TestContract3SendCompletion: what Send has done with is reusable at once; a synchronous send
// waits for the match.
func TestContract3SendCompletion(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	buf := []byte("first")
	if req := r.send(a, 1, buf); req != nil {
		t.Fatal("a short message on an idle endpoint was not done at once")
	}
	copy(buf, "later")
	got := make([]byte, 5)
	r.done(r.recv(b.Worker(), 1, tagged.Exact, got))
	if string(got) != "first" {
		t.Fatalf("%q", got)
	}
	for _, n := range []int{0, 8, 12000, 200000} {
		req, err := a.SendSync(2, pattern(n, 3))
		if err != nil || req == nil {
			t.Fatal(req, err)
		}
		r.settle()
		if req.Done() {
			t.Fatalf("%d bytes: a synchronous send is done before the match", n)
		}
		d := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, n))
		r.done(req, d)
		if req.Err() != nil || d.Err() != nil {
			t.Fatal(req.Err(), d.Err())
		}
		early := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, n))
		if err := a.SendSyncWait(background(r), 2, pattern(n, 3)); err != nil {
			t.Fatal(err)
		}
		r.done(early) // matched, and perhaps still arriving when the sender heard of it
	}
}

// TestContract4Truncation: the receiver gets ErrTruncated and the length, not one byte is written,
// and the sender succeeds.
func TestContract4Truncation(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	for _, n := range []int{1, 100, 8000, 16000, 17000, 1 << 20} {
		for _, unexpected := range []bool{false, true} {
			for _, sync := range []bool{false, true} {
				dst := make([]byte, n-1)
				var d *tagged.Request
				if !unexpected {
					d = r.recv(b.Worker(), 1, tagged.Exact, dst)
				}
				send := a.Send
				if sync {
					send = a.SendSync
				}
				s, err := send(1, pattern(n, 5))
				if err != nil {
					t.Fatal(err)
				}
				if unexpected {
					r.settle()
					d = r.recv(b.Worker(), 1, tagged.Exact, dst)
				}
				r.done(s, d)
				if s != nil && s.Err() != nil {
					t.Errorf("%d bytes: the sender fails: %v", n, s.Err())
				}
				if !errors.Is(d.Err(), tagged.ErrTruncated) || d.Info().Length != n ||
					!bytes.Equal(dst, make([]byte, n-1)) {
					t.Errorf("%d bytes: %v, %+v", n, d.Err(), d.Info())
				}
			}
		}
	}
	r.settle()
	if s := b.Stats(); s.Reading != 0 || b.Err() != nil {
		t.Errorf("%+v, %v", s, b.Err())
	}
}

// TestContract5Cancel: a receive that nothing matched, and a send of which nothing has gone out,
// can be cancelled; others complete.
func TestContract5Cancel(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 2})
	for _, mask := range []uint64{tagged.Exact, 0xff} {
		d := r.recv(b.Worker(), 1, mask, make([]byte, 8))
		if !d.Cancel() || !d.Done() || !errors.Is(d.Err(), tagged.ErrCanceled) || d.Cancel() {
			t.Fatalf("%v", d.Err())
		}
	}
	r.send(a, 1, []byte("one"))
	r.send(a, 1, []byte("two"))
	third, fourth := r.send(a, 1, []byte("three")), r.send(a, 1, []byte("four"))
	long := r.send(a, 1, make([]byte, 100000))
	r.settle()
	if third.Done() || !third.Cancel() || !errors.Is(third.Err(), tagged.ErrCanceled) {
		t.Fatal("a send that waits for the window was not cancelled")
	}
	var got []string
	for range 3 {
		buf := make([]byte, 8)
		d := r.recv(b.Worker(), 1, tagged.Exact, buf)
		r.done(d)
		got = append(got, string(buf[:d.Info().Length]))
	}
	if fmt.Sprint(got) != "[one two four]" || fourth.Cancel() {
		t.Fatal(got)
	}
	r.until(func() bool { return b.Worker().Stats().Unexpected == 1 })
	if long.Cancel() {
		t.Fatal("a message that was announced was cancelled")
	}
	d := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 100000))
	r.done(d, long)
	if d.Err() != nil || long.Err() != nil || d.Cancel() {
		t.Fatal(d.Err(), long.Err())
	}
}

// TestContract5CancelRace: a receive that is cancelled while its message arrives ends in exactly
// one way, and so does the message.
func TestContract5CancelRace(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	for _, w := range r.workers {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := background(r)
	canceled := 0
	for i := range 300 {
		buf := []byte{0}
		d := r.recv(b.Worker(), 1, tagged.Exact, buf)
		result := make(chan bool)
		go func() { result <- d.Cancel() }()
		if err := a.SendWait(ctx, 1, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if <-result {
			canceled++
			if !errors.Is(d.Err(), tagged.ErrCanceled) || buf[0] != 0 {
				t.Fatal(d.Err(), buf)
			}
			if _, err := b.Worker().RecvWait(ctx, 1, tagged.Exact, buf); err != nil {
				t.Fatal(err)
			}
		} else if err := d.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if buf[0] != byte(i) {
			t.Fatalf("round %d: % x", i, buf)
		}
	}
	t.Logf("%d of 300 were cancelled", canceled)
}

// TestContract6Pieces: messages of no bytes, and pieces of any number and length on both sides.
func TestContract6Pieces(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	for _, n := range []int{0, 50, 7000, 16000, 40000} {
		for _, from := range []int{1, 2, 4, 5, 40} {
			for _, to := range []int{1, 3, 4, 5, 40} {
				src, dst := pattern(n, 2), make([]byte, n)
				d := r.recv(b.Worker(), 1, tagged.Exact, cut(dst, to)...)
				r.done(r.send(a, 1, cut(src, from)...), d)
				if d.Err() != nil || d.Info().Length != n || !bytes.Equal(src, dst) {
					t.Fatalf("%d bytes from %d pieces into %d: %v", n, from, to, d.Err())
				}
			}
		}
	}
	d := r.recv(b.Worker(), 2, tagged.Exact)
	r.done(r.send(a, 2), d)
	if d.Err() != nil || d.Info().Length != 0 {
		t.Errorf("no pieces: %v", d.Err())
	}
}

// cut cuts b into pieces of different lengths, with empty ones between them.
func cut(b []byte, pieces int) [][]byte {
	var out [][]byte
	for i := pieces; i > 0; i-- {
		n := len(b)
		if i > 1 {
			n = n / i / (1 + i%2)
		}
		out = append(out, b[:n], nil)
		b = b[n:]
	}
	return out
}

// TestContract8Contexts: a wait whose context ends says so, and says whose the buffer is.
func TestContract8Contexts(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 2})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var interrupted *tagged.InterruptedError

	// Nothing has matched: cancelled, the buffer is the caller's.
	if _, err := b.Worker().RecvWait(over, 1, tagged.Exact, make([]byte, 8)); !errors.Is(
		err, context.Canceled) || errors.As(err, &interrupted) {
		t.Fatal(err)
	}
	if n := b.Worker().Stats().Posted; n != 0 {
		t.Fatalf("%d receives are left", n)
	}
	// A request of one's own goes on.
	d := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 8))
	if err := d.Wait(over); !errors.As(err, &interrupted) || interrupted.Req != d ||
		!errors.Is(err, context.Canceled) || d.Done() {
		t.Fatal(err)
	}
	r.send(a, 1, []byte("x"))
	r.done(d)
	if err := d.Wait(over); err != nil {
		t.Fatal(err) // it is done: the context does not matter
	}
	// With a context that has ended nothing is sent.
	interrupted = nil
	if err := a.SendWait(over, 2, make([]byte, 50000)); !errors.Is(err, context.Canceled) ||
		errors.As(err, &interrupted) {
		t.Fatal(err)
	}
	// A long send is out: it cannot be taken back.
	soon, cease := context.WithTimeout(context.Background(), time.Millisecond)
	defer cease()
	err := a.SendWait(soon, 2, make([]byte, 50000))
	if !errors.As(err, &interrupted) || interrupted.Req.Done() {
		t.Fatal(err)
	}
	r.done(r.recv(b.Worker(), 2, tagged.Exact, make([]byte, 50000)), interrupted.Req)
	// A send that waits for the window is taken back.
	r.send(a, 3, []byte("x"))
	r.send(a, 3, []byte("y"))
	short, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	interrupted = nil
	if err := a.SendWait(short, 3, []byte("z")); !errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &interrupted) {
		t.Fatal(err)
	}
	if s := a.Stats(); s.Queued != 0 {
		t.Fatalf("%+v", s)
	}
	// What is there is received whatever the context says.
	r.settle()
	if _, err := b.Worker().RecvWait(over, 3, tagged.Exact, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
}

// background is a context that ends only if the test hangs; other workers than the one that waits
// make progress by themselves.
func background(r *rig) context.Context {
	for _, w := range r.workers {
		if err := w.Start(); err != nil {
			r.t.Fatal(err)
		}
	}
	return timeout(r.t, 20*time.Second)
}
