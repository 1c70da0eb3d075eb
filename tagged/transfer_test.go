package tagged_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

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

// Over a single queue pair, which fragments nothing, a long message is read in pieces that the port
// carries.
func TestChunksFitThePort(t *testing.T) {
	const longest = 64 << 10
	cfg := tagged.Config{Transport: transport.Config{QP: ibverbx.Config{QPsPerDevice: 1}}}
	fabric := soft.Config{Devices: 2, Device: soft.DeviceConfig{MaxMsgSize: longest}}
	r := newRigOver(t, fabric, 2, cfg, func(d *soft.Device) verbs.Device { return d })
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

// TestReadsNeedNoCredit: a peer whose program keeps every buffer for active messages holds up what
// this end sends, and nothing that this end receives: a long message that was announced is read,
// whether or not sends, or the program's own requests, wait for a credit.
func TestReadsNeedNoCredit(t *testing.T) {
	for _, c := range []struct{ posted, program bool }{{false, false}, {true, false}, {false, true},
		{true, true}} {
		cfg := tagged.Config{Chunk: 10000, Window: 2, Transport: transport.Config{KeepAlive: -1,
			MaxOutstanding: 40}}
		r := newRig(t, 2, 1, cfg)
		var kept []*transport.Message
		keep := func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
		for _, w := range r.workers {
			if err := w.Transport().Handle(1, keep); err != nil {
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
		own := &transport.Pending{}
		own.Func = func(_ *transport.Pending, headView *transport.Endpoint) transport.Outcome {
			if headView.AMShort(1, nil, []byte("own")) != nil {
				return transport.PendingNoResource
			}
			return transport.PendingDone
		}
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

// TestClaim: a claimed message is received by nobody else, whatever its kind, and later by its
// claim, once; what is not received is gone with the worker.
func TestClaim(t *testing.T) {
	cfg := tagged.Config{EagerLimit: 4000, Transport: transport.Config{BufferSize: 1024}}
	r, a, b := pair(t, 1, cfg)
	w := b.Worker()
	var sent []*tagged.Request
	for tag, n := range []int{0, 10, 3000, 50000} {
		s, err := a.SendSync(uint64(tag), pattern(n, tag))
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, s)
	}
	r.until(func() bool { _, found := w.Probe(3, tagged.Exact); return found })
	var claimed []*tagged.Message
	for tag := range sent {
		claim := w.Claim
		if tag%2 == 1 {
			claim = b.Claim
		}
		m, ok := claim(uint64(tag), tagged.Exact)
		if !ok || m.Info().Tag != uint64(tag) || m.Info().Source != b {
			t.Fatalf("message %d: %v", tag, m)
		}
		claimed = append(claimed, m)
	}
	if _, ok := w.Claim(0, tagged.Any); ok || w.Stats().Unexpected != 0 {
		t.Error("a message could be claimed twice")
	}
	if _, ok := b.Probe(0, tagged.Any); ok {
		t.Error("a claimed message is found")
	}
	r.send(a, 7, []byte("later"))
	d := r.recv(w, 0, tagged.Any, make([]byte, 5))
	r.done(d)
	if d.Info().Tag != 7 || d.Err() != nil {
		t.Errorf("a receive of any message has %v, %v", d.Info(), d.Err())
	}
	for tag, m := range claimed {
		if sent[tag].Done() {
			t.Errorf("synchronous send %d is done before its message is received", tag)
		}
		buf := make([]byte, m.Info().Length)
		d, err := m.Recv(buf)
		if err != nil {
			t.Fatal(err)
		}
		r.done(d, sent[tag])
		err = errors.Join(d.Err(), sent[tag].Err())
		if err != nil || !bytes.Equal(buf, pattern(len(buf), tag)) {
			t.Errorf("message %d: %v", tag, err)
		}
		if _, err := m.Recv(buf); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a second receive: %v", err)
		}
	}
	r.send(a, 8, make([]byte, 3000))
	r.until(func() bool { _, found := w.Claim(8, tagged.Exact); return found })
}

// TestClaimAndThePeerEnds: a claimed message that is here whole can be received when its sender is
// gone; one that was only announced ends with the error.
func TestClaimAndThePeerEnds(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	w := b.Worker()
	r.send(a, 1, []byte("whole"))
	r.send(a, 2, make([]byte, 50000))
	r.until(func() bool { _, found := w.Probe(2, tagged.Exact); return found })
	whole, _ := w.Claim(1, tagged.Exact)
	announced, _ := w.Claim(2, tagged.Exact)
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { return b.Err() != nil })
	if err := b.Abort(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 50000)
	d, err := whole.Recv(buf)
	if err != nil || d.Err() != nil || string(buf[:5]) != "whole" {
		t.Error(err, d.Err())
	}
	if d, err = announced.Recv(buf); err != nil || !errors.Is(d.Err(), tagged.ErrPeerFailed) &&
		!errors.Is(d.Err(), tagged.ErrPeerClosed) {
		t.Error(err, d.Err())
	}
	ctx := timeout(t, time.Minute)
	if _, err := w.ProbeWait(ctx, 1, tagged.Exact); !errors.Is(err, tagged.ErrNoPeer) {
		t.Errorf("a probe when no peer is left: %v", err)
	}
	if _, err := w.ClaimWait(ctx, 1, tagged.Exact); !errors.Is(err, tagged.ErrNoPeer) {
		t.Errorf("a claim when no peer is left: %v", err)
	}
	if _, err := b.ProbeWait(ctx, 1, tagged.Exact); !errors.Is(err, tagged.ErrPeerFailed) &&
		!errors.Is(err, tagged.ErrPeerClosed) {
		t.Errorf("a probe of a peer that is gone: %v", err)
	}
}

// TestProbeWait: it waits for a message, which stays; when its context ends it says who has not
// sent one.
func TestProbeWait(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	result := make(chan error)
	for _, probe := range []func(context.Context, uint64, uint64) (tagged.Info, error){b.ProbeWait,
		b.Worker().ProbeWait} {
		go func() {
			info, err := probe(ctx, 1, tagged.Exact)
			if err == nil && info.Length != 5 {
				err = fmt.Errorf("it has found %v", info)
			}
			result <- err
		}()
	}
	r.send(a, 2, []byte("no"))
	r.send(a, 1, []byte("probe"))
	if err := errors.Join(<-result, <-result); err != nil {
		t.Error(err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.ProbeWait(over, 1, tagged.Exact); err != nil {
		t.Errorf("what is there is found: %v", err)
	}
	if _, err := b.ProbeWait(over, 3, tagged.Exact); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "has sent no such message") {
		t.Error(err)
	}
	var none context.Context
	if _, err := b.ProbeWait(none, 3, tagged.Exact); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}

// TestRecvAlloc: it allocates what the message needs, and nothing for one that is longer than it
// may be, which is gone.
func TestRecvAlloc(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	for _, n := range []int{0, 1, 5000, 100000} {
		r.send(a, 1, pattern(n, n))
		r.send(a, 1, pattern(n, n))
		for _, recv := range []func(context.Context, uint64, uint64, int) ([]byte, tagged.Info, error){
			b.RecvAlloc, b.Worker().RecvAlloc} {
			buf, info, err := recv(ctx, 1, tagged.Exact, n)
			if err != nil || info.Length != n || info.Source != b || !bytes.Equal(buf, pattern(n, n)) {
				t.Errorf("%d bytes: %v, %v", n, info, err)
			}
		}
		if n == 0 {
			continue
		}
		r.send(a, 2, pattern(n, n))
		if _, _, err := b.RecvAlloc(ctx, 2, tagged.Exact, -1); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("at most -1 bytes: %v", err) // and the message stays
		}
		if buf, info, err := b.RecvAlloc(ctx, 2, tagged.Exact, n-1); !errors.Is(err, tagged.ErrTruncated) ||
			len(buf) != 0 || info.Length != n {
			t.Errorf("%d bytes where one less is allowed: %v, %v", n, info, err)
		}
	}
	if info, found := b.Probe(0, tagged.Any); found {
		t.Errorf("%v is left", info)
	}
}

// TestSendRecv: peers that all send long messages to each other at once do not wait for each other;
// a send that fails takes its receive back.
func TestSendRecv(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	const long = 50000
	result := make(chan error)
	for i, e := range []*tagged.Endpoint{a, b} {
		var from *tagged.Endpoint // any
		if i == 0 {
			from = e
		}
		go func() {
			in := make([]byte, long)
			info, err := e.SendRecv(ctx, uint64(i), pattern(long, i), from, uint64(1-i), in)
			if err == nil && (info.Length != long || string(in) != string(pattern(long, 1-i))) {
				err = fmt.Errorf("received %v", info)
			}
			result <- err
		}()
	}
	if err := errors.Join(<-result, <-result); err != nil {
		t.Fatal(err)
	}
	same := make([]byte, 8)
	if _, err := a.SendRecv(ctx, 1, same[:5], nil, 2, same[4:]); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("out and in share a byte: %v", err)
	}
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SendRecv(ctx, 1, nil, nil, 2, nil); !errors.Is(err, tagged.ErrNoPeer) {
		t.Error(err)
	}
	r.connect(0, 1)
	if _, err := a.SendRecv(ctx, 1, nil, nil, 2, nil); !errors.Is(err, tagged.ErrCanceled) {
		t.Error(err)
	}
	_, back := r.connect(0, 1)
	r.send(back, 2, []byte("5 by."))
	r.until(func() bool { _, found := a.Worker().Probe(2, tagged.Exact); return found })
	in := make([]byte, 5)
	info, err := a.SendRecv(ctx, 1, nil, nil, 2, in)
	if !errors.Is(err, tagged.ErrCanceled) || info.Length != 5 || string(in) != "5 by." {
		t.Errorf("the send failed, and the receive did not: %v, %q, %v", info, in, err)
	}
	if s := a.Worker().Stats(); s.Posted != 0 {
		t.Errorf("%d receives are posted", s.Posted)
	}
}
