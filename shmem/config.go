package shmem

import (
	"context"
	"fmt"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// Config configures a PE. Everything but Rank must be the same on all PEs.
type Config struct {
	// Rank is this PE's number, counted from 0. Size is the number of PEs; 0 means 1. A job has
	// methods of these names.
	Rank, Size int
	// Exchange is an all-gather among the PEs: each passes some bytes, a few hundred for each PE,
	// or none, and receives those of all PEs in order of rank, its own included. Join calls it
	// twice, also if this PE cannot join. It can use anything that carries bytes: TCP, files, a job
	// launcher. It may be nil for a single PE.
	Exchange func(ctx context.Context, mine []byte) ([][]byte, error)
	// HeapSize is the size of each PE's symmetric heap in bytes; 0 means 64 MiB. It is registered
	// with the NICs. The package needs more memory for itself: 1 MiB for each PE, at most 4 MiB
	// for up to 1024 PEs.
	HeapSize int
	// Background starts a goroutine that makes progress, so that operations behind a fence are sent
	// without a call of this PE. It costs switches to that goroutine; programs that call Quiet or
	// wait do not need it. With Transport.QP.Failover it is always started, unless Transport.Idle
	// is set: after the loss of a NIC both PEs of a connection must make progress.
	Background bool
	// RegisterFrom is the least length in bytes at which a Put or Get registers memory outside the
	// heap for the call instead of copying through registered buffers. 0 means 256 KiB,
	// [ibverbx.None] never.
	RegisterFrom int
	// Step is how long a waiting PE sleeps between looks at its heap, after it has polled for
	// Transport.Spin: writes by others raise no event. 0 means 50 µs. The steps grow up to 1 ms; in
	// a barrier and other collective calls the PE then sleeps, and the PEs that it waits for wake
	// it.
	Step time.Duration
	// Transport configures the endpoints. The defaults of this package: MaxEndpoints is what the
	// PEs need; AMBuffers is 1, since active messages only wake sleeping PEs; Spin is 50 µs;
	// KeepAlive is 100 ms, so that a waiting PE notices when others fail; QP.Conn.Access is all
	// rights, because every PE may write, read and do atomics in the heap of every other.
	Transport transport.Config
}

const (
	defaultHeapSize = 64 << 20
	// Copying 256 KiB takes some 45 µs, about as long as a real NIC takes to pin as many pages.
	// Software NICs register in a microsecond, so with them registration pays from 8 KiB.
	defaultRegisterFrom = 256 << 10
	defaultKeepAlive    = 100 * time.Millisecond
	defaultStep         = 50 * time.Microsecond
	// defaultSpin outlasts the usual wait in a barrier: writes by others raise no event, and a
	// sleep costs at least 50 µs. A barrier of 2 PEs takes 5 µs with it, and 25 µs with the
	// transport's 20 µs.
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
		c.Transport.MaxEndpoints = c.Size + 1 // one for each other PE, two for this one
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

// validatePlace checks what a PE needs to tell the others that it cannot join.
func (c *Config) validatePlace() error {
	switch {
	case c.Size < 1 || c.Size > maxPEs:
		return badConfig("Size %d: must be 1 to %d", c.Size, maxPEs)
	case c.Rank < 0 || c.Rank >= c.Size:
		return badConfig("Rank %d: of %d PEs the ranks are 0 to %d", c.Rank, c.Size, c.Size-1)
	case c.Exchange == nil && c.Size > 1:
		return badConfig("Exchange is nil: %d PEs need it to find each other", c.Size)
	}
	return nil
}

// validate checks the rest.
func (c *Config) validate() error {
	switch {
	case c.HeapSize < blockAlign || int64(c.HeapSize) > 1<<46:
		return badConfig("HeapSize %d: must be %d bytes to 64 TiB", c.HeapSize, blockAlign)
	case c.Step < 0:
		return badConfig("Step %v: must not be negative", c.Step)
	case c.Transport.MaxEndpoints < c.Size+1:
		return badConfig("Transport.MaxEndpoints %d: %d PEs need %d", c.Transport.MaxEndpoints, c.Size,
			c.Size+1)
	}
	return nil
}

func badConfig(format string, args ...any) error {
	return fmt.Errorf("config: %w: %s", verbs.ErrInvalid, fmt.Sprintf(format, args...))
}
