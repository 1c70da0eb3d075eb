//go:build linux

package api_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// memoryFile is an open file of n bytes, which software NICs take for a dma-buf.
func memoryFile(t *testing.T, n int64) *os.File {
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

// To work requests a dma-buf is memory like any other, over every NIC of the domain.
func TestDMABufOverAllNICs(t *testing.T) {
	const offset, length = 4096, 8192
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		f := memoryFile(t, offset+length)
		mr, err := l.B.Domain().RegisterDMABuf(int(f.Fd()), offset, length, 0x1000, verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		if mr.Bytes() != nil || mr.Len() != length || mr.Addr() != 0x1000 {
			t.Errorf("%d bytes at %#x, of which %d can be seen", mr.Len(), mr.Addr(), len(mr.Bytes()))
		}
		vqptest.FillRandom(l.A.Buf[:800], 5)
		wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 800)
		wr.Remote = vqptest.ThroughJSON(t, mr.Remote()).Slice(100, 800)
		l.A.Send(t, wr)
		vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
		got := make([]byte, 800)
		if _, err := f.ReadAt(got, offset+100); err != nil || !bytes.Equal(got, l.A.Buf[:800]) {
			t.Errorf("the file has other bytes, %v", err)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Impossible descriptions of dma-bufs are refused, and leave nothing behind.
func TestImpossibleDMABufs(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	dom, err := ibverbx.NewDomain(fabric.Device(0), fabric.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	fd := int(memoryFile(t, 4096).Fd())
	for _, c := range []struct {
		fd                   int
		offset, length, iova uint64
		says                 string
	}{
		{-1, 0, 4096, 0, "file descriptor -1"},
		{fd, math.MaxUint64, 1, 0, "offset 18446744073709551615"},
		{fd, 2, math.MaxUint64 - 1, 0, "offset 2"},
		{fd, 0, 2, math.MaxUint64 - 1, "iova"},
		{fd, 0, 0, 0, ""}, {fd, 0, 8192, 0, ""},
	} {
		if _, err := dom.RegisterDMABuf(c.fd, c.offset, c.length, c.iova, verbs.AccessAll); !errors.Is(err,
			verbs.ErrInvalid) || !strings.Contains(err.Error(), c.says) ||
			!strings.HasPrefix(err.Error(), "ibverbx: register ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// The last byte of the address space can be registered.
	if mr, err := dom.RegisterDMABuf(fd, 0, 4095, math.MaxUint64-4095, verbs.AccessAll); err != nil {
		t.Error(err)
	} else if err := mr.Close(); err != nil {
		t.Error(err)
	}
	if n := fabric.Objects().MRs; n != 0 {
		t.Errorf("%d regions are left", n)
	}
	if _, err := dom.RegisterDMABuf(0, 0, 4096, 0, verbs.AccessRemoteWrite); err == nil {
		t.Error("remote write without local write")
	}
	if err := errors.Join(dom.Close()); err != nil {
		t.Error(err)
	}
	f := &unreliable.Calls{At: -1}
	plain, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if dom, err = ibverbx.NewDomain(unreliable.New(plain.Device(0), f)); err != nil {
		t.Fatal(err)
	}
	if _, err := dom.RegisterDMABuf(fd, 0, 4096, 0, verbs.AccessAll); !errors.Is(
		err, verbs.ErrNotSupported) ||
		!strings.Contains(err.Error(), "soft0") {
		t.Errorf("a NIC without dma-bufs: %v", err)
	}
	if err := errors.Join(dom.Close(), plain.Close()); err != nil {
		t.Error(err)
	}
}
