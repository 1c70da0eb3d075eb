//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// This file and crossing_asm.go are the package's gate to unsafe. Everything that C reads or writes
// is in mappings made here, which the Go runtime neither moves nor frees. So addresses can be
// numbers, and no Go pointer is ever passed.

// mapping is mapped memory, outside the Go heap.
type mapping struct {
	b    []byte
	next int // offset of the first byte that carve has not handed out
}

// mapMemory maps zeroed memory. flags may ask for huge pages.
func mapMemory(size, flags int) (mapping, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
	return mapping{b: b}, err
}

// unmap returns the memory to the kernel; it must not be used afterwards.
func (m *mapping) unmap() error {
	if m.b == nil {
		return nil
	}
	err := unix.Munmap(m.b)
	m.b = nil
	return err
}

// cacheLine is the alignment of carve, so that two arrays share no cache line.
const cacheLine = 64

// carved returns the bytes of a mapping that carve uses for n values of T.
func carved[T any](n int) int {
	var t T
	return (n*int(unsafe.Sizeof(t)) + cacheLine - 1) &^ (cacheLine - 1)
}

// carve returns n values of T from a mapping, after those carved before. The mapping must be large
// enough.
func carve[T any](m *mapping, n int) []T {
	b := m.b[m.next : m.next+carved[T](n)]
	m.next += len(b)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// address returns the address of a value in mapped memory, or of memory for a NIC.
func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// object is a structure that C owns. addr came from C, so the garbage collector knows nothing of
// it.
func object[T any](addr uintptr) *T {
	// This converts the variable, not its value: go vet would take that for arithmetic on a Go
	// pointer.
	return (*T)(*(*unsafe.Pointer)(unsafe.Pointer(&addr)))
}

// goString returns a copy of a string that C owns.
func goString(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	n := 0
	for *object[byte](addr + uintptr(n)) != 0 {
		n++
	}
	return string(unsafe.Slice(object[byte](addr), n))
}

// pointerSize is the size of a C pointer in bytes.
const pointerSize = unsafe.Sizeof(uintptr(0))

// sizeOf returns the size of a T in bytes.
func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// Arena is memory outside the Go heap, on huge pages if the host has some: a NIC then translates
// one address instead of 512, and the garbage collector does not scan it. Register it, whole or in
// parts, on any device of the provider.
type Arena struct {
	_     guard.NoCopy
	p     *Provider
	mem   mapping
	size  int
	huge  bool
	users int // regions over it; guarded by the provider's lock
}

// hugePage is the size of the huge pages that arenas ask for. amd64 has them, and arm64 with the
// usual pages of 4 KiB.
const hugePage = 2 << 20

// NewArena maps size bytes of zeroed memory. From 2 MiB it uses huge pages that the host has
// reserved (vm.nr_hugepages; Linux 5.14 or later), or else asks for transparent ones.
func (p *Provider) NewArena(size int) (*Arena, error) {
	const op = "new arena"
	if size < 1 {
		return nil, &verbs.OpError{Op: op, Err: verbs.ErrInvalid, Detail: fmt.Sprintf("%d bytes", size)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, &verbs.OpError{Op: op, Err: verbs.ErrClosed, Detail: "the provider is closed"}
	}
	a := &Arena{p: p, size: size}
	if err := a.mapPages(); err != nil {
		return nil, &verbs.OpError{Op: op, Err: fmt.Errorf("%w: %w", verbs.ErrNoMemory, err),
			Detail: fmt.Sprintf("%d bytes", size)}
	}
	p.arenas = append(p.arenas, a)
	return a, nil
}

func (a *Arena) mapPages() (err error) {
	if a.size >= hugePage {
		const reserved = unix.MAP_HUGETLB | 21<<unix.MAP_HUGE_SHIFT // pages of 2^21 bytes
		if a.mem, err = mapMemory((a.size+hugePage-1)&^(hugePage-1), reserved); err == nil {
			// A cgroup may refuse pages that mmap has reserved, by a SIGBUS at the first access,
			// which ends the process. Populating finds out now.
			if err = unix.Madvise(a.mem.b, unix.MADV_POPULATE_WRITE); err == nil {
				a.huge = true
				return nil
			}
			_ = a.mem.unmap()
		}
	}
	if a.mem, err = mapMemory(a.size, 0); err == nil {
		// Only a hint: kernels without transparent huge pages refuse it.
		_ = unix.Madvise(a.mem.b, unix.MADV_HUGEPAGE)
	}
	return err
}

// Bytes returns the memory, or nil if the arena is closed. Do not access the memory after Close.
func (a *Arena) Bytes() []byte {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.mem.b == nil {
		return nil
	}
	return a.mem.b[:a.size:a.size]
}

// HugePages reports whether the arena is on reserved huge pages. If not, the kernel may still have
// given it transparent ones.
func (a *Arena) HugePages() bool { return a.huge }

// Close unmaps the memory. It returns [verbs.ErrBusy] while memory regions over it are open.
func (a *Arena) Close() error {
	const op = "close arena"
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	i := slices.Index(a.p.arenas, a)
	switch {
	case i < 0:
		return &verbs.OpError{Op: op, Err: verbs.ErrClosed}
	case a.users > 0:
		return &verbs.OpError{Op: op, Err: verbs.ErrBusy,
			Detail: fmt.Sprintf("%d memory regions over it are open", a.users)}
	}
	if err := a.mem.unmap(); err != nil {
		return &verbs.OpError{Op: op, Err: err}
	}
	a.p.arenas = slices.Delete(a.p.arenas, i, i+1)
	return nil
}

// useArena returns the arena that contains buf, and counts its new region; nil if there is none.
func (p *Provider) useArena(buf []byte) *Arena {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := address(&buf[0])
	for _, a := range p.arenas {
		if base := address(&a.mem.b[0]); start >= base && start < base+uintptr(len(a.mem.b)) {
			a.users++
			return a
		}
	}
	return nil
}

// drop undoes useArena.
func (a *Arena) drop() {
	if a == nil {
		return
	}
	a.p.mu.Lock()
	a.users--
	a.p.mu.Unlock()
}
