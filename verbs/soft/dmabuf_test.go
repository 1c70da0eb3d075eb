//go:build linux

package soft

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ibverbx/verbs"
)

// newFile is an open file of n bytes.
func newFile(t *testing.T, n int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDMABuf: a region over a file descriptor is read and written at its iova, and the file has
// what was written. The descriptor may be closed as soon as the region is registered.
func TestDMABuf(t *testing.T) {
	const offset, length, iova = 4096 + 100, 20000, 0x7f00_0000_0000 + 100
	_, a, b := pair(t, Config{}, endConfig{})
	f := newFile(t, offset+length+1000)
	registrar := b.pd.(verbs.DMABufRegistrar)
	mr, err := registrar.RegisterDMABuf(int(f.Fd()), offset, length, iova, verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	if mr.Addr() != iova || mr.Len() != length {
		t.Errorf("region at %#x of %d bytes", mr.Addr(), mr.Len())
	}
	path := f.Name()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("device"), 1000)
	copy(a.buf, want)
	a.post(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL: a.sge(0, len(want)), RemoteAddr: iova + 50, RKey: mr.RKey()})
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[offset+50:offset+50+len(want)], want) || got[offset+49] != 0 ||
		got[offset+50+len(want)] != 0 {
		t.Error("the file does not have what was written")
	}
	// One byte further than the region.
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL: a.sge(0, 8), RemoteAddr: iova + length - 7, RKey: mr.RKey()})
	awaitStatus(t, a.cq, 2, verbs.StatusRemAccessErr)
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
	if err := mr.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Error(err)
	}
}

func TestDMABufRefused(t *testing.T) {
	_, _, b := pair(t, Config{}, endConfig{})
	f := newFile(t, 10000)
	readOnly, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = readOnly.Close() }()
	registrar := b.pd.(verbs.DMABufRegistrar)
	for _, c := range []struct {
		name                 string
		fd                   int
		offset, length, iova uint64
		access               verbs.AccessFlags
	}{
		{"no bytes", int(f.Fd()), 0, 0, 0, verbs.AccessAll},
		{"beyond the end", int(f.Fd()), 4096, 5905, 4096, verbs.AccessAll},
		{"far beyond the end", int(f.Fd()), 4096, 1<<64 - 4000, 4096, verbs.AccessAll},
		{"iova beyond the address space", int(f.Fd()), 0, 4096, 1<<64 - 4096, verbs.AccessAll},
		{"iova within another place of a page", int(f.Fd()), 10, 4096, 4096, verbs.AccessAll},
		{"rights that need another", int(f.Fd()), 0, 4096, 0, verbs.AccessRemoteWrite},
		{"no descriptor", -1, 0, 4096, 0, verbs.AccessAll},
		{"no such descriptor", 1 << 20, 0, 4096, 0, verbs.AccessAll},
		{"read only, to be written to", int(readOnly.Fd()), 0, 4096, 0, verbs.AccessAll},
	} {
		if _, err := registrar.RegisterDMABuf(c.fd, c.offset, c.length, c.iova, c.access); !errors.Is(err,
			verbs.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	mr, err := registrar.RegisterDMABuf(int(readOnly.Fd()), 0, 4096, 0, verbs.AccessRemoteRead)
	if err != nil {
		t.Fatalf("read only, to be read: %v", err)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
	if err := b.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("close with a queue pair: %v", err)
	}
}
