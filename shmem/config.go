package shmem

import (
	"context"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// Config configures a PE. Everything but Rank must be the same on all PEs.
type Config struct {
	// Rank is this PE's number, from 0 on, and Size the number of PEs; 0 means 1. A job has methods
	// of these names.
	Rank, Size int
	// Exchange is an all-gather among the PEs: each passes some bytes, a few hundred for each PE,
	// and receives those of all in the order of their numbers, its own among them. All PEs call it
	// twice during Join. It can use anything that carries bytes: TCP, files, a job launcher. It may
	// be nil for a single PE.
	Exchange func(ctx context.Context, mine []byte) ([][]byte, error)
	// HeapSize is the size of each PE's symmetric heap in bytes; 0 means 64 MiB. It is registered
	// with the NICs. What the package needs for itself comes on top: 128 KiB a PE, 4 MiB at most
	// for up to 2048 PEs.
	HeapSize int
	// Background starts a goroutine that makes progress, so that operations behind a fence are sent
	// without a call of this PE. It costs switches to that goroutine; programs that call Quiet or
	// wait do not need it. With Transport.QP.Failover it is always started, unless Transport.Idle
	// is set: after the loss of a NIC both PEs of a connection must make progress.
	Background bool
	// RegisterFrom is the length in bytes from which on a Put or Get registers memory outside of
	// the heap for the call instead of copying it through registered buffers; 0 means 256 KiB,
	// [ibverbx.None] never.
	RegisterFrom int
	// Step is how long a PE that waits sleeps between looks at its heap, after it has polled for
	// Transport.Spin: writes by others raise no event. 0 means 50 µs. The steps grow up to 1 ms; in
	// a barrier and other collective calls the PE then sleeps, and the PEs that it waits for wake
	// it.
	Step time.Duration
	// Transport configures the endpoints. Where it is zero: MaxEndpoints is what the PEs need,
	// AMBuffers 1, since active messages only wake PEs that sleep, Spin 50 µs, and KeepAlive 100
	// ms, so that a PE that waits for others notices their failure; QP.Conn.Access is everything,
	// because every PE may write, read and do atomics in the heap of every other.
	Transport transport.Config
}

const (
	defaultHeapSize = 64 << 20
	// defaultRegisterFrom: to copy 256 KiB takes some 45 µs, as long as a real NIC takes to pin so
	// many pages. Software NICs register in a microsecond, so there registration pays from 8 KiB
	// on.
	defaultRegisterFrom = 256 << 10
	defaultKeepAlive    = 100 * time.Millisecond
	defaultStep         = 50 * time.Microsecond
	// defaultSpin outlasts the usual wait in a barrier: writes by others raise no event, and a
	// sleep costs 50 µs at the very least. A barrier of 2 PEs takes 5 µs with it, and 25 with the
	// transport's 20.
	defaultSpin = 50 * time.Microsecond
	// maxPEs is the most PEs.
	maxPEs = 1 << 16
)

func (c Config) withDefaults() Config {
	if c.Size == 0 {
		c.Size = 1
	}
	if c.HeapSize == 0 {
		c.HeapSize = defaultHeapSize
	}
	if c.RegisterFrom == 0 {
		c.RegisterFrom = defaultRegisterFrom
	}
	if c.Step == 0 {
		c.Step = defaultStep
	}
	if c.Transport.MaxEndpoints == 0 {
		c.Transport.MaxEndpoints = c.Size + 1 // two of them for this PE itself
	}
	if c.Transport.KeepAlive == 0 && c.Transport.Idle == nil {
		c.Transport.KeepAlive = defaultKeepAlive
	}
	if c.Transport.QP.Conn.Access == 0 {
		c.Transport.QP.Conn.Access = verbs.AccessAll
	}
	if c.Transport.Spin == 0 {
		c.Transport.Spin = defaultSpin
	}
	if c.Transport.AMBuffers == 0 {
		c.Transport.AMBuffers = 1
	}
	if c.Transport.QP.Failover && c.Transport.Idle == nil {
		c.Background = true
	}
	return c
}

func (c *Config) validate() error {
	const op = "config"
	switch {
	case c.Size < 1 || c.Size > maxPEs:
		return invalid(op, "Size %d: must be 1 to %d", c.Size, maxPEs)
	case c.Rank < 0 || c.Rank >= c.Size:
		return invalid(op, "Rank %d: of %d PEs the ranks are 0 to %d", c.Rank, c.Size, c.Size-1)
	case c.HeapSize < blockAlign || int64(c.HeapSize) > 1<<46:
		return invalid(op, "HeapSize %d: must be %d bytes to 64 TiB", c.HeapSize, blockAlign)
	case c.Exchange == nil && c.Size > 1:
		return invalid(op, "Exchange is nil: %d PEs need it to find each other", c.Size)
	case c.Step < 0:
		return invalid(op, "Step %v: must not be negative", c.Step)
	case c.Transport.MaxEndpoints < c.Size+1:
		return invalid(op, "Transport.MaxEndpoints %d: %d PEs need %d", c.Transport.MaxEndpoints, c.Size,
			c.Size+1)
	}
	return nil
}
