//go:build linux

package tagged_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ibverbx/tagged"
	"ibverbx/verbs"
)

// gpu is device memory: a file, which software NICs take for a dma-buf. The program never maps it.
type gpu struct {
	t      testing.TB
	file   *os.File
	region *tagged.Region
}

// newGPU registers n bytes of device memory with a worker, at an address that is none of this
// process's.
func newGPU(t testing.TB, w *tagged.Worker, use tagged.Use, n int) *gpu {
	t.Helper()
	const offset, iova = 4096, 0x5000_0000_0000
	f, err := os.Create(filepath.Join(t.TempDir(), "gpu"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(int64(offset + n)); err != nil {
		t.Fatal(err)
	}
	g := &gpu{t: t, file: f}
	if g.region, err = w.RegisterDMABuf(use, int(f.Fd()), offset, uint64(n), iova); err != nil {
		t.Fatal(err)
	}
	if g.region.Bytes() != nil || g.region.MR().Len() != uint64(n) || g.region.MR().Addr() != iova {
		t.Errorf("a region of %d bytes at %#x, %d of them the processor's", g.region.MR().Len(),
			g.region.MR().Addr(), len(g.region.Bytes()))
	}
	return g
}

func (g *gpu) write(off int, b []byte) {
	if _, err := g.file.WriteAt(b, int64(4096+off)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gpu) read(off, n int) []byte {
	b := make([]byte, n)
	if _, err := g.file.ReadAt(b, int64(4096+off)); err != nil {
		g.t.Fatal(err)
	}
	return b
}

// Messages go from device memory into device memory, and between it and memory of the process,
// whatever their length, and whether the message comes first or its receive.
func TestDeviceMemory(t *testing.T) {
	const size = 2 << 20
	for _, nics := range []int{1, 2} {
		for _, recvFirst := range []bool{true, false} {
			for _, n := range []int{0, 1, 100, 17 << 10, 700000} {
				r, a, b := pair(t, nics, tagged.Config{Chunk: 100000})
				from := newGPU(t, a.Worker(), tagged.ForSends, size)
				into := newGPU(t, b.Worker(), tagged.ForReceives, size)
				want := pattern(n, 3)
				from.write(50, want)
				host := make([]byte, n)
				send := func() []*tagged.Request {
					var reqs []*tagged.Request
					for tag := range uint64(2) {
						req, err := a.SendRegion(tag, from.region, 50, n)
						if err != nil {
							t.Fatal(err)
						}
						reqs = append(reqs, req)
					}
					if n > 16<<10 { // longer than EagerLimit
						reqs = append(reqs, r.send(a, 2, want))
					}
					return reqs
				}
				recv := func() []*tagged.Request {
					first, err := b.Worker().RecvRegion(0, tagged.Exact, into.region, 99, n+1)
					if err != nil {
						t.Fatal(err)
					}
					reqs := []*tagged.Request{first, r.recv(b.Worker(), 1, tagged.Exact, host)}
					if n > 16<<10 {
						second, err := b.RecvRegion(2, tagged.Exact, into.region, size-n, n)
						if err != nil {
							t.Fatal(err)
						}
						reqs = append(reqs, second)
					}
					return reqs
				}
				var reqs []*tagged.Request
				if recvFirst {
					reqs = append(recv(), send()...)
				} else {
					reqs = send()
					r.settle()
					reqs = append(reqs, recv()...)
				}
				r.done(reqs...)
				for i, req := range reqs {
					if req.Err() != nil || req != nil && req.Info().Length != n {
						t.Errorf("%d NICs, %d bytes: request %d: %+v %v", nics, n, i, req.Info(), req.Err())
					}
				}
				if !bytes.Equal(into.read(99, n), want) || !bytes.Equal(host, want) {
					t.Errorf("%d NICs, %d bytes: not what was sent", nics, n)
				}
				if into.read(98, 1)[0] != 0 || into.read(99+n, 1)[0] != 0 {
					t.Errorf("%d NICs, %d bytes: memory beside the message was written to", nics, n)
				}
				if n > 16<<10 && !bytes.Equal(into.read(size-n, n), want) {
					t.Errorf("%d NICs, %d bytes from memory of the process: not what was sent", nics, n)
				}
				if s := a.Worker().Stats(); n < 16<<10 && s.Registered != 0 {
					t.Errorf("%d registrations", s.Registered)
				}
				for _, g := range []*gpu{from, into} {
					if err := g.region.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		}
	}
}

// A message that its sender has copied has no way into device memory: the receive says so, and the
// connection goes on.
func TestCopiedMessageIntoDeviceMemory(t *testing.T) {
	for _, recvFirst := range []bool{true, false} {
		for _, n := range []int{100, 10000} { // of one fragment, and of several
			r, a, b := pair(t, 1, tagged.Config{})
			into := newGPU(t, b.Worker(), tagged.ForReceives, 1<<20)
			var d *tagged.Request
			recv := func(n int) {
				var err error
				if d, err = b.Worker().RecvRegion(1, tagged.Exact, into.region, 0, n); err != nil {
					t.Fatal(err)
				}
			}
			if recvFirst {
				recv(n)
			}
			s := r.send(a, 1, pattern(n, 1))
			if !recvFirst {
				r.settle()
				recv(n)
			}
			r.done(s, d)
			if !errors.Is(d.Err(), tagged.ErrDeviceMemory) || d.Info().Length != n || s.Err() != nil {
				t.Errorf("%d bytes: receive %v, send %v", n, d.Err(), s.Err())
			}
			recv(n - 1)
			s = r.send(a, 1, pattern(n, 1))
			r.done(s, d)
			if !errors.Is(d.Err(), tagged.ErrTruncated) {
				t.Errorf("%d bytes into one less: %v", n, d.Err())
			}
			recv(0)
			s = r.send(a, 1)
			r.done(s, d)
			if d.Err() != nil || !bytes.Equal(into.read(0, n), make([]byte, n)) {
				t.Errorf("no bytes: %v", d.Err())
			}
			if err := into.region.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A region that a request uses cannot be closed, until the request is cancelled or done.
func TestDeviceMemoryInUse(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	from := newGPU(t, a.Worker(), tagged.ForSends, 8192)
	into := newGPU(t, b.Worker(), tagged.ForReceives, 8192)
	s, err := a.SendRegion(1, from.region, 0, 8192)
	if err != nil {
		t.Fatal(err)
	}
	d, err := b.Worker().RecvRegion(2, tagged.Exact, into.region, 0, 8192)
	if err != nil {
		t.Fatal(err)
	}
	r.settle()
	for _, g := range []*gpu{from, into} {
		if err := g.region.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close of a region in use: %v", err)
		}
	}
	if !d.Cancel() {
		t.Error("a receive that nothing has matched was not cancelled")
	}
	short, err := b.Worker().RecvRegion(1, tagged.Exact, into.region, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	r.done(s, short)
	if !errors.Is(short.Err(), tagged.ErrTruncated) || s.Err() != nil {
		t.Errorf("8192 bytes into 100: %v, send %v", short.Err(), s.Err())
	}
	for _, g := range []*gpu{from, into} {
		if err := g.region.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := a.SendRegion(1, from.region, 0, 8); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("send from a closed region: %v", err)
	}
	if _, err := b.RecvRegion(1, tagged.Exact, into.region, 0, 8); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("receive into a closed region: %v", err)
	}
}

// A worker's end, and a peer's, give regions back.
func TestDeviceMemoryAtTheEnd(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	from := newGPU(t, a.Worker(), tagged.ForSends, 1<<20)
	into := newGPU(t, b.Worker(), tagged.ForReceives, 1<<20)
	s, err := a.SendRegion(1, from.region, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	d, err := b.RecvRegion(2, tagged.Exact, into.region, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	r.done(s, d)
	if s.Err() == nil || d.Err() == nil {
		t.Errorf("after an abort: send %v, receive %v", s.Err(), d.Err())
	}
	if err := from.region.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.Worker().RecvRegion(2, tagged.Exact, into.region, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	// The rig closes the worker, and with it the request and the region.
}

func TestRegionRefused(t *testing.T) {
	_, a, b := pair(t, 1, tagged.Config{})
	sends, recvs := newGPU(t, a.Worker(), tagged.ForSends, 8192), newGPU(t, a.Worker(), tagged.ForReceives,
		8192)
	other := newGPU(t, b.Worker(), tagged.ForSends|tagged.ForReceives, 8192)
	for _, c := range []struct {
		name       string
		send, recv *tagged.Region
		off, n     int
	}{
		{"of no region", nil, nil, 0, 8},
		{"of another worker", other.region, other.region, 0, 8},
		{"for the other use", recvs.region, sends.region, 0, 8},
		{"beyond the end", sends.region, recvs.region, 8190, 3},
		{"far beyond the end", sends.region, recvs.region, 1 << 62, 8},
		{"before the start", sends.region, recvs.region, -1, 8},
		{"of less than nothing", sends.region, recvs.region, 8, -1},
	} {
		if _, err := a.SendRegion(1, c.send, c.off, c.n); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("send %s: %v", c.name, err)
		}
		if _, err := a.Worker().RecvRegion(1, tagged.Exact, c.recv, c.off, c.n); !errors.Is(err,
			verbs.ErrInvalid) {
			t.Errorf("receive %s: %v", c.name, err)
		}
	}
	if _, err := a.Worker().RecvRegion(tagged.MaxTag+1, tagged.Exact, recvs.region, 0, 8); !errors.Is(err,
		verbs.ErrInvalid) {
		t.Errorf("receive with a tag of collective calls: %v", err)
	}
	if _, err := a.Worker().RegisterDMABuf(0, int(sends.file.Fd()), 0, 4096, 0); !errors.Is(err,
		verbs.ErrInvalid) {
		t.Errorf("register for nothing: %v", err)
	}
	if _, err := a.Worker().RegisterDMABuf(tagged.ForSends, -1, 0, 4096, 0); !errors.Is(err,
		verbs.ErrInvalid) {
		t.Errorf("register no file: %v", err)
	}
	if s := a.Worker().Stats(); s.Requests != 0 {
		t.Errorf("%d requests after refusals", s.Requests)
	}
}

// Regions over memory of the process work with the same calls.
func TestSendRegionOfTheProcess(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	for _, n := range []int{0, 100, 100000} {
		src, dst := pattern(200000, n), make([]byte, 200000)
		from, err := a.Worker().RegisterFor(tagged.ForSends, src)
		if err != nil {
			t.Fatal(err)
		}
		into, err := b.Worker().RegisterFor(tagged.ForReceives, dst)
		if err != nil {
			t.Fatal(err)
		}
		d, err := b.RecvRegion(1, tagged.Exact, into, 77, n)
		if err != nil {
			t.Fatal(err)
		}
		s, err := a.SendRegion(1, from, 33, n)
		if err != nil {
			t.Fatal(err)
		}
		r.done(s, d)
		if d.Err() != nil || !bytes.Equal(dst[77:77+n], src[33:33+n]) {
			t.Errorf("%d bytes: %v", n, d.Err())
		}
		for _, region := range []*tagged.Region{from, into} {
			if err := region.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
