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
