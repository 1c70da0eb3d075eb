//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// Arena is memory outside of the Go heap, on huge pages where the host has some: a NIC translates
// one address in place of 512, and the garbage collector does not look at it. Register it, whole or
// in parts, on any device of the provider.
type Arena struct {
	_     guard.NoCopy
	p     *Provider
	mem   mapping
	size  int
	huge  bool
	users int // regions over it; guarded by the provider's lock
}

// hugePage is the size of the huge pages that arenas ask for. Both amd64, and arm64 with the usual
// pages of 4 KiB, have it.
const hugePage = 2 << 20

// NewArena maps size bytes of zeroed memory. From 2 MiB on it takes huge pages that the host has
// reserved (vm.nr_hugepages; Linux 5.14 or later), and else asks for transparent ones.
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
			// A cgroup may refuse pages that mmap has reserved, by a SIGBUS at the first touch,
			// which ends the process. Populating asks now.
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

// Bytes is the memory. It is the caller's until Close, and must not be touched after. Of a closed
// arena it is nil.
func (a *Arena) Bytes() []byte {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.mem.b == nil {
		return nil
	}
	return a.mem.b[:a.size:a.size]
}

// HugePages reports whether the arena lies on reserved huge pages. On others the kernel may still
// have put transparent ones.
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

// useArena returns the arena in which buf lies, with its region counted, or nil.
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
