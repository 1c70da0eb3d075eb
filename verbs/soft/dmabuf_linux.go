package soft

import (
	"fmt"
	"os"
	"syscall"

	"ibverbx/verbs"
)

// RegisterDMABuf makes memory known to the NIC by a file descriptor, as [verbs.DMABufRegistrar]
// says. The NIC maps it: the descriptor may be any that can be mapped and says its size, a memfd or
// a plain file as well as the dma-buf of an exporter that lets the processor in (udmabuf does, most
// GPUs do not). So a program for memory of GPUs is tested without one. Whoever makes the file
// shorter meanwhile ends the process, as with any mapped file.
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.AccessFlags) (verbs.MR, error) {
	const op = "register dma-buf"
	invalid := func(format string, args ...any) (verbs.MR, error) {
		return nil, p.dev.err(op, verbs.ErrInvalid, fmt.Sprintf(format, args...))
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
	m := &MR{pd: p, buf: mapped[within:], mapped: mapped, addr: iova, access: access}
	if err := p.open(op, m); err != nil {
		_ = unmap(mapped)
		return nil, err
	}
	return m, nil
}

// unmap undoes the mapping of a dma-buf.
func unmap(b []byte) error { return syscall.Munmap(b) }
