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
	"ibverbx/verbs/soft"
)

// lengths are around every limit: inline, one fragment, several, rendezvous, several chunks.
var lengths = []int{0, 1, 8, 95, 96, 97, 104, 105, 200, 4096, 8159, 8160, 8161, 8192, 16383, 16384, 16385,
	100000, 1 << 20, 3<<20 + 5}

// fabrics are the ways in which two workers can be connected.
var fabrics = []struct{ nics, qps int }{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 4}}

func withQPs(qps int) tagged.Config {
	return tagged.Config{Transport: transport.Config{QP: ibverbx.Config{QPsPerDevice: qps,
		FragmentSize: 64 << 10}}}
}

// TestEveryLengthOverEveryRail: short messages go out as fragments, long ones are read over every
// rail; what lacks resources is queued and completes.
func TestEveryLengthOverEveryRail(t *testing.T) {
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

// TestPieces: messages of no bytes, and pieces of any number and length on both sides.
func TestPieces(t *testing.T) {
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

// TestManyNICs: where the description of four pieces on many NICs is too long for a message, they
// go through one buffer.
func TestManyNICs(t *testing.T) {
	cfg := tagged.Config{Transport: transport.Config{BufferSize: 512, QP: ibverbx.Config{QPsPerDevice: 1}}}
	r, a, b := pair(t, 25, cfg)
	src, dst := pattern(100000, 1), make([]byte, 100000)
	d := r.recv(b.Worker(), 1, tagged.Exact, dst)
	r.done(r.send(a, 1, cut(src, 4)...), d)
	if d.Err() != nil || !bytes.Equal(src, dst) || a.Worker().Stats().Staged != 1 {
		t.Errorf("%v, %+v", d.Err(), a.Worker().Stats())
	}
}

// TestTruncation: the receiver gets ErrTruncated and the length, no byte is written, and the sender
// succeeds.
func TestTruncation(t *testing.T) {
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

// Over a single queue pair, which fragments nothing, a long message is read in pieces that the port
// carries.
func TestChunksFitThePort(t *testing.T) {
	const longest = 64 << 10
	f, err := soft.New(soft.Config{Devices: 2, Device: soft.DeviceConfig{MaxMsgSize: longest}})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fabric: f, nics: 1}
	for range 2 {
		r.addWorker(tagged.Config{Transport: transport.Config{QP: ibverbx.Config{QPsPerDevice: 1}}})
	}
	t.Cleanup(r.close)
	a, b := r.connect(0, 1)
	src, dst := pattern(300000, 1), make([]byte, 300000)
	d := r.recv(b.Worker(), 5, tagged.Exact, dst)
	r.done(r.send(a, 5, src), d)
	if err := d.Err(); err != nil || !bytes.Equal(src, dst) {
		t.Errorf("%v, %+v", err, d.Info())
	}
	if got := b.Worker().Config().Chunk; got != longest {
		t.Errorf("a read fetches %d bytes, want %d", got, longest)
	}
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

// TestTraffic: both ends of a connection count messages and bytes, whoever moved them: copied,
// batched, in fragments, or read by the receiver.
func TestTraffic(t *testing.T) {
	for _, receiveFirst := range []bool{false, true} {
		r, a, b := pair(t, 2, tagged.Config{EagerLimit: 40000, MaxUnexpected: 40})
		_, other := r.connect(0, 1)
		messages, bytes := uint64(0), uint64(0)
		lengths := []int{0, 8, 3000, 39000, 100000, 1 << 20}
		for range 20 {
			lengths = append(lengths, 16) // more than fit at a time: the last ones wait, and go in batches
		}
		var reqs []*tagged.Request
		receive := func() {
			for _, n := range lengths {
				reqs = append(reqs, r.recv(b.Worker(), uint64(n), tagged.Exact, make([]byte, n)))
			}
		}
		if receiveFirst {
			receive()
		}
		for i, n := range lengths {
			send := a.Send
			if i%3 == 1 {
				send = a.SendSync
			}
			req, err := send(uint64(n), pattern(n, i))
			if err != nil {
				t.Fatal(err)
			}
			reqs = append(reqs, req)
			messages, bytes = messages+1, bytes+uint64(n)
		}
		if !receiveFirst {
			r.settle()
			receive()
		}
		r.done(reqs...)
		sent, received := a.Stats(), b.Stats()
		if sent.Sent != messages || sent.SentBytes != bytes || sent.Received != 0 || sent.ReceivedBytes != 0 {
			t.Errorf("%d messages of %d bytes were sent: %+v", messages, bytes, sent)
		}
		if received.Received != messages || received.ReceivedBytes != bytes || received.Sent != 0 ||
			received.SentBytes != 0 {
			t.Errorf("%d messages of %d bytes were received: %+v", messages, bytes, received)
		}
		if s := other.Stats(); s.Sent+s.SentBytes+s.Received+s.ReceivedBytes != 0 {
			t.Errorf("another endpoint: %+v", s)
		}
		if s := r.workers[0].Stats(); s.Transport.AMSent == 0 || sent.Transport.Limit == 0 {
			t.Errorf("the transport beneath: %+v, %+v", s.Transport, sent.Transport)
		}
	}
}

// TestManyGoroutines: many goroutines send and receive on the same endpoints, with calls that wait.
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
