package job

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"ibverbx/verbs"
)

// Config says which job this process is part of. The zero value looks for it in the environment.
type Config struct {
	// Size is how many processes the job has, and Rank which of them this one is, from 0 on. Where
	// Size is 0 both come from the environment.
	Rank, Size int
	// Address is where rank 0 listens, HOST:PORT, as the others reach it; empty takes what the
	// environment says. Rank 0 listens at that port on all addresses of its host, or on the
	// loopback interface alone if Address names that. A job of one process needs none.
	Address string
	// Job tells this job from others that may use the same port: all its processes must have the
	// same. Empty takes what the environment says, which may be nothing. It is no secret: see TLS.
	Job string

	// Wait is how long Join waits for the other processes; 0 means 5 minutes.
	Wait time.Duration
	// Patience is after how long a silence a process is taken for dead; 0 means 10 seconds. One
	// whose connection ends is dead at once.
	Patience time.Duration
	// MaxValue bounds a value of the store, and what a process passes to AllGather, in bytes; 0
	// means 1 MiB. MaxStore bounds all keys and values together; 0 means 64 MiB. Those of rank 0
	// count.
	MaxValue, MaxStore int
	// TLS has the processes talk over TLS, and decides who may be one of them: rank 0 needs
	// Certificates, and ClientAuth and ClientCAs; the others RootCAs and Certificates. Package
	// rendezvous says what it protects.
	TLS *tls.Config
	// Logger is where Join logs for whom it waits; nil is slog.Default.
	Logger *slog.Logger
}

// The defaults.
const (
	defaultWait     = 5 * time.Minute
	defaultPatience = 10 * time.Second
	defaultMaxValue = 1 << 20
	defaultMaxStore = 64 << 20
)

// maxSize is how many processes a job may have.
const maxSize = 1 << 16

// withDefaults returns c with zero fields replaced, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Size < 0 || c.Size > maxSize:
		return c, invalid("Size %d: must be 1 to %d, or 0 to look in the environment", c.Size, maxSize)
	case c.Size == 0 && c.Rank != 0:
		return c, invalid("Rank %d without Size", c.Rank)
	case c.Size > 0 && (c.Rank < 0 || c.Rank >= c.Size):
		return c, invalid("Rank %d: of %d processes the ranks are 0 to %d", c.Rank, c.Size, c.Size-1)
	case c.Wait < 0 || c.Patience < 0:
		return c, invalid("Wait %v, Patience %v: must not be negative", c.Wait, c.Patience)
	case c.MaxValue < 0 || c.MaxValue > 1<<28 || c.MaxStore < 0:
		return c, invalid("MaxValue %d, MaxStore %d: must be at least 1 byte, and MaxValue at most 256 MiB",
			c.MaxValue, c.MaxStore)
	}
	if c.Wait == 0 {
		c.Wait = defaultWait
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.MaxValue == 0 {
		c.MaxValue = defaultMaxValue
	}
	if c.MaxStore == 0 {
		c.MaxStore = defaultMaxStore
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// checkAddress says what is wrong with an address.
func checkAddress(addr, from string) error {
	host, port, err := net.SplitHostPort(addr)
	if err == nil && host != "" {
		if n, err := net.LookupPort("tcp", port); err == nil && n != 0 {
			return nil
		}
	}
	return invalid("%s %.200q: must be HOST:PORT, as the others reach rank 0", from, addr)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("job: config: %w: "+format, append([]any{verbs.ErrInvalid}, args...)...)
}
