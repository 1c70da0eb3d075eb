package crc

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// No byte is read before the slice or behind it: there are pages that nobody may read.
func TestGuardPages(t *testing.T) {
	page := os.Getpagesize()
	all, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(all) }()
	readable := all[page : 2*page]
	copy(readable, randomBytes(page))
	for _, forbidden := range [][]byte{all[:page], all[2*page:]} {
		if err := unix.Mprotect(forbidden, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	for n := range min(page, 1100) + 1 {
		for _, p := range [][]byte{readable[:n], readable[page-n:]} {
			want := reference(5, p)
			for _, w := range ways() {
				if got := w.run(5, p); got != want {
					t.Fatalf("%s: %d bytes: %08x, want %08x", w.name, n, got, want)
				}
			}
		}
	}
}
