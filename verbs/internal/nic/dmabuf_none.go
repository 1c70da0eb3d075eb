//go:build !linux

package nic

import "ibverbx/verbs"

// RegisterDMABuf returns an error: only Linux has dma-bufs.
func (*MR) RegisterDMABuf(p *PD, _ int, _, _, _ uint64, _ verbs.AccessFlags) error {
	return p.dev.Err("register dma-buf", verbs.ErrNotSupported, "needs Linux")
}

// unmap undoes the mapping of a dma-buf.
func unmap([]byte) error { return nil }
