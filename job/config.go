package job

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"ibverbx/verbs"
)

// Config describes the job that this process is part of. The zero value uses the environment.
type Config struct {
	// Size is the number of processes in the job, and Rank is the number of this one, from 0 on. If
	// Size is 0 both come from the environment.
	Rank, Size int
	// Address is where rank 0 listens, HOST:PORT, as the others reach it; empty takes the address
	// from the environment or PMIx. Rank 0 listens at that port on all addresses of its host, or
	// only on the loopback interface if Address names that. A job of one process needs none. With a
	// Store only rank 0 may need one: see there.
	Address string
	// Store, if not nil, is where rank 0 leaves its address and the others find it. They then
	// connect to rank 0 as without a store. The job needs a name that no other current job in that
	// store has; an entry left by an earlier run does no harm.
	//
	// Rank 0 listens at a free port, at the address from which it reaches the store. If that is the
	// loopback interface, all processes must be on this host. If the store does not tell that
	// address, it is that of the default route. Address, or IBVERBX_ADDRESS, overrides it: HOST or
	// HOST:PORT as the others reach it, the name of an interface of this host instead of HOST, or
	// just :PORT. An address from a launcher does not count.
	Store Store
	// Job distinguishes this job from others that may use the same port: all its processes must
	// have the same. Empty takes the name from the environment, which may have none. With a Store
	// you need one. Rank 0 does not reveal the name to those who connect, and only those who know
	// it can join. But a name that is easy to guess keeps nobody out, and anyone who reads the
	// traffic can join: see TLS.
	Job string

	// Wait is how long Join waits for the other processes; 0 means 5 minutes. A process that is
	// connected to rank 0 waits two seconds more for its answer.
	Wait time.Duration
	// Patience is the silence after which a process is taken for dead; 0 means 10 seconds. Any byte
	// that comes from it ends the silence. A process whose connection ends is dead at once.
	Patience time.Duration
	// MaxValue bounds a value of the store, and a contribution to AllGather, in bytes; 0 means 1
	// MiB. MaxStore bounds all keys and values together, each with 128 bytes more, and values that
	// were replaced while answers with them wait to be sent; 0 means 64 MiB. The limits of rank 0
	// apply.
	MaxValue, MaxStore int
	// TLS makes the processes use TLS, and decides which may join: rank 0 needs Certificates,
	// ClientAuth and ClientCAs; the others need RootCAs and Certificates. Package rendezvous
	// explains what it protects.
	TLS *tls.Config
	// Logger is where Join logs the processes that it waits for, and rank 0 those that it turns
	// away; at level Debug also that rank 0 knows this process and will tell the others if it dies.
	// Nil is slog.Default.
	Logger *slog.Logger
}

// The defaults.
const (
	defaultWait     = 5 * time.Minute
	defaultPatience = 10 * time.Second
	defaultMaxValue = 1 << 20
	defaultMaxStore = 64 << 20
)

// maxSize is the most processes of a job.
const maxSize = 1 << 16

// withDefaults returns c with defaults in place of zero fields, or an error that names the wrong
// field.
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
	case c.MaxValue < 0 || c.MaxValue > maxMaxValue || c.MaxStore < 0:
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

// checkAddress returns an error unless addr is a valid address of rank 0.
func checkAddress(addr, from string) error {
	host, port, err := net.SplitHostPort(addr)
	if err == nil && host != "" {
		if n, err := net.LookupPort("tcp", port); err == nil && n != 0 {
			return nil
		}
	}
	return invalid("%s %.200q: must be HOST:PORT, as the others reach rank 0", from, addr)
}

// checkStored returns an error if a place cannot be used with a store: it needs a name of the job,
// and an address that may be partial.
func checkStored(p *Place, from string) error {
	if p.Job == "" {
		return fmt.Errorf("job: %w: %s: the job has no name, by which its processes find each other in "+
			"Config.Store: set %s for all %d processes, or Config.Job", ErrNoJob, p.Source, EnvJob, p.Size)
	}
	if _, _, err := splitAddress(p.Address); err != nil {
		return invalid("%s %.200q: must be HOST, HOST:PORT or :PORT: %w", from, p.Address, err)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("job: config: %w: "+format, append([]any{verbs.ErrInvalid}, args...)...)
}
