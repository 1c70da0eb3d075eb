package nic

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"ibverbx/verbs"
)

// A dma-buf is what its file descriptor maps: the bytes from an offset on, under an address of the
// caller's choice at the same place of a page.
func TestDMABuf(t *testing.T) {
	r := newRig(t)
	page := uint64(os.Getpagesize())
	content := make([]byte, 3*page)
	for i := range content {
		content[i] = byte(i * 7)
	}
	path := filepath.Join(t.TempDir(), "buffer")
	must(t, os.WriteFile(path, content, 0o600))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	readable, err := os.Open(path)
	must(t, err)
	defer readable.Close()
	fd := int(file.Fd())

	iova := page<<20 + 24
	for _, c := range []struct{ offset, length uint64 }{{24, 100}, {page + 24, 2*page - 24}} {
		var m MR
		must(t, m.RegisterDMABuf(&r.pd, fd, c.offset, c.length, iova, verbs.AccessAll))
		if m.Addr() != iova || m.Len() != c.length {
			t.Errorf("%d bytes at %#x, want %d at %#x", m.Len(), m.Addr(), c.length, iova)
		}
		b, ok := r.qp.LocalSlice(m.LKey(), iova, c.length, verbs.AccessLocalWrite)
		if !ok || !bytes.Equal(b, content[c.offset:c.offset+c.length]) {
			t.Errorf("from %d: other bytes, %t", c.offset, ok)
		}
		b[0]++
		content[c.offset]++
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
			t.Errorf("from %d: what is written does not arrive, %v", c.offset, err)
		}
		mapped := len(m.mapped)
		must(t, m.Close())
		if mapped != int(c.offset%page+c.length) {
			t.Errorf("%d bytes mapped for %d", mapped, c.length)
		}
	}
	var m MR
	must(t, m.RegisterDMABuf(&r.pd, int(readable.Fd()), 0, 3*page, 0, 0)) // nobody writes to it
	must(t, m.Close())
	for _, c := range []struct {
		what                 string
		fd                   int
		offset, length, iova uint64
		access               verbs.AccessFlags
		says                 string
	}{
		{"no bytes", fd, 0, 0, 0, 0, "no bytes"},
		{"around the end", fd, 0, page, -page, 0, "beyond the address space"},
		{"another place of the page", fd, 8, 100, 16, 0, "must lie at the same place of a page"},
		{"access", fd, 0, 8, 0, verbs.AccessRemoteWrite, "need local write"},
		{"no file", 1 << 20, 0, 8, 0, 0, "file descriptor 1048576"},
		{"offset", fd, 4 * page, 8, 0, 0, "8 bytes from offset"},
		{"length", fd, page, 2*page + 1, 0, 0, "bytes from offset"},
		{"may not be written", int(readable.Fd()), 0, 8, 0, verbs.AccessAll, "cannot be mapped"},
	} {
		refused(t, c.what, m.RegisterDMABuf(&r.pd, c.fd, c.offset, c.length, c.iova, c.access),
			verbs.ErrInvalid,
			c.says)
	}
	r.dev.Gone = true
	refused(t, "gone", m.RegisterDMABuf(&r.pd, fd, 0, 8, 0, 0), verbs.ErrDeviceGone, "")
	if r.open.MRs != 1 {
		t.Errorf("%d regions are open", r.open.MRs)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for line := range bytes.Lines(maps) {
		if bytes.Contains(line, []byte(path)) {
			t.Errorf("still mapped: %s", line)
		}
	}
}
