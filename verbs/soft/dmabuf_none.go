//go:build !linux

package soft

import "ibverbx/verbs"

// RegisterDMABuf is refused: only Linux has dma-bufs.
func (p *PD) RegisterDMABuf(_ int, _, _, _ uint64, _ verbs.AccessFlags) (verbs.MR, error) {
	return nil, p.dev.err("register dma-buf", verbs.ErrNotSupported, "needs Linux")
}

// unmap undoes the mapping of a dma-buf.
func unmap([]byte) error { return nil }
