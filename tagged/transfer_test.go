package tagged_test

import (
	"bytes"
	"errors"
	"fmt"
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
