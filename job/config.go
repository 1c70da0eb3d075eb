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
	// environment says, or PMIx. Rank 0 listens at that port on all addresses of its host, or on
	// the loopback interface alone if Address names that. A job of one process needs none. With a
	// Store only rank 0 needs it, if at all: see there.
	Address string
	// Store, if not nil, is where rank 0 leaves its address, and the others find it, for all else
	// to be as without: they connect to rank 0. The job needs a name then, which no other job that
	// the store knows has at the same time; an entry that an earlier run has left does no harm.
	//
	// Rank 0 listens at a port of its own choice, at the address by which it reaches the store:
	// where that is the loopback interface, all processes must be on this host. Of a store that
	// does not tell, it is the address by which this host reaches the world. Address, or
	// IBVERBX_ADDRESS, decides where that is wrong: HOST or HOST:PORT as the others reach it, the
	// name of an interface of this host in place of HOST, or :PORT. What a launcher says otherwise
	// does not count.
	Store Store
	// Job tells this job from others that may use the same port: all its processes must have the
	// same. Empty takes what the environment says, which may be nothing. It is no secret: see TLS.
	// With a Store there must be one.
	Job string

	// Wait is how long Join waits for the other processes; 0 means 5 minutes. Who has met rank 0
	// waits for its word for two seconds more.
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
	// Logger is where Join logs for whom it waits, and rank 0 whom it turns away; at level Debug
	// also that rank 0 knows this process, and will tell the others if it dies. Nil is
	// slog.Default.
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

// checkStored says what is wrong with a place where there is a store.
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
