package nic

import (
	"fmt"
	"os"
	"syscall"

	"ibverbx/verbs"
)

// RegisterDMABuf maps a file descriptor and registers its memory, as [verbs.DMABufRegistrar] says:
// a dma-buf, or anything else that can be mapped and has a size. It locks.
func (m *MR) RegisterDMABuf(p *PD, fd int, offset, length, iova uint64, access verbs.AccessFlags) error {
	const op = "register dma-buf"
	invalid := func(format string, args ...any) error {
		return p.dev.Err(op, verbs.ErrInvalid, fmt.Sprintf(format, args...))
	}
	page := uint64(os.Getpagesize())
	switch {
	case length == 0:
		return invalid("no bytes")
	case iova+length < iova:
		return invalid("%d bytes at %#x go beyond the address space", length, iova)
	case iova%page != offset%page:
		return invalid("iova %#x and offset %#x: must lie at the same place of a page", iova, offset)
	case !access.Valid():
		return invalid("access %v: remote write and remote atomic need local write", access)
	}
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return invalid("file descriptor %d: %v", fd, err)
	}
	if size := uint64(stat.Size); offset > size || length > size-offset {
		return invalid("%d bytes from offset %d of %d", length, offset, size)
	}
	prot := syscall.PROT_READ
	if access&verbs.AccessLocalWrite != 0 {
		prot |= syscall.PROT_WRITE
	}
	within := offset % page
	mapped, err := syscall.Mmap(fd, int64(offset-within), int(length+within), prot, syscall.MAP_SHARED)
	if err != nil {
		return invalid("file descriptor %d cannot be mapped: %v", fd, err)
	}
	m.pd, m.buf, m.mapped, m.addr, m.access = p, mapped[within:], mapped, iova, access
	if err := m.open(op); err != nil {
		_ = unmap(mapped)
		return err
	}
	return nil
}

// unmap undoes the mapping of a dma-buf.
func unmap(b []byte) error { return syscall.Munmap(b) }
