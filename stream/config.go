package stream

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/verbs"
)

// ErrProtocol is the reason of a link that has ended because the peer
// has broken the protocol of streams.
var ErrProtocol = errors.New("protocol violation by the peer")

// ErrNoRDMA is the error of Dial if no NIC joins the two processes, and Config.Fallback is not set
// at both ends.
var ErrNoRDMA = errors.New("no RDMA with the peer")

// Config configures [Listen] and [Dial]. The zero value works.
type Config struct {
	// Host is the NICs to use; nil opens those of this host, once a process. All users of a Host
	// share its links, memory and goroutines. Close it after the last connection, and not before.
	Host *nics.Host
	// TLS protects the TCP connection over which the two processes meet, and the bytes of streams
	// that TCP carries; nil means plain TCP. RDMA traffic is not encrypted: see package rendezvous.
	TLS *tls.Config
	// Timeout bounds each step of making a link; 0 means 30 seconds.
	Timeout time.Duration
	// Memory bounds in bytes what the streams of a Host have promised their peers; 0 means 256 MiB.
	// The first Listen or Dial with a Host decides. At least 1 MiB.
	Memory int64
	// Spin is how long a call that waits makes progress in place before it sleeps; 0 means 50 µs,
	// [ibverbx.None] not at all.
	Spin time.Duration
	// IdleLinks is how long Dial's end keeps a link without streams; 0 means a minute.
	IdleLinks time.Duration
	// Backlog bounds the streams that wait for Accept; 0 means 1024. Further ones are refused.
	Backlog int
	// Fallback allows TCP to carry streams: see the package comment. Both ends must allow it.
	Fallback bool
	// Patience is how long a peer may be silent before its link is given up, with all streams: a
	// process that is stopped, or a host that is gone. 0 means 2 minutes over a software NIC, which
	// answers only while its process runs, and otherwise some 30 seconds
	// ([ibverbx.PatienceFabric]), in which a lost one of several NICs is replaced. The end of the
	// process, or of its TCP connection, is noticed at once. The first Listen or Dial with a Host
	// decides. At most an hour.
	Patience time.Duration
	// Proof bounds the time in which a new link must carry a word in both directions; 0 means 2
	// seconds.
	Proof time.Duration
	// Logger gets a line at INFO once a peer with which TCP carries the streams, and one at DEBUG
	// for each link; nil means slog.Default.
	Logger *slog.Logger
}

const (
	defaultMemory  = 256 << 20
	leastMemory    = 1 << 20
	defaultSpin    = 50 * time.Microsecond
	defaultBacklog = 1024
	defaultProof   = 2 * time.Second
	defaultTimeout = 30 * time.Second
	softPatience   = 2 * time.Minute
	maxPatience    = time.Hour
	// maxBacklog bounds Config.Backlog.
	maxBacklog = 1 << 20
)

// withDefaults returns c with defaults in place of zero fields, or an error that names the wrong
// field.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Memory != 0 && c.Memory < leastMemory:
		return c, fmt.Errorf("stream: config: %w: Memory %d: must be %d at least, or 0 for %d",
			verbs.ErrInvalid, c.Memory, leastMemory, defaultMemory)
	case c.Backlog < 0 || c.Backlog > maxBacklog:
		return c, fmt.Errorf("stream: config: %w: Backlog %d: must be 1 to %d, or 0 for %d",
			verbs.ErrInvalid, c.Backlog, maxBacklog, defaultBacklog)
	case c.Patience < 0 || c.Patience > maxPatience:
		return c, fmt.Errorf("stream: config: %w: Patience %v: must be %v at most, or 0 for the default",
			verbs.ErrInvalid, c.Patience, maxPatience)
	case c.Timeout < 0 || c.IdleLinks < 0 || c.Proof < 0 || c.Spin < 0 && c.Spin != ibverbx.None:
		return c, fmt.Errorf("stream: config: %w: Timeout %v, IdleLinks %v, Proof %v, Spin %v: must not be "+
			"negative", verbs.ErrInvalid, c.Timeout, c.IdleLinks, c.Proof, c.Spin)
	}
	c.Memory = cmp.Or(c.Memory, defaultMemory)
	c.Backlog = cmp.Or(c.Backlog, defaultBacklog)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.IdleLinks = cmp.Or(c.IdleLinks, time.Minute)
	c.Proof = cmp.Or(c.Proof, defaultProof)
	c.Spin = cmp.Or(c.Spin, defaultSpin)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// Carrier is what carries a stream.
type Carrier struct {
	Kind   string   `json:"kind"`             // "rdma" or "tcp"
	NICs   []string `json:"nics,omitempty"`   // of this end
	Reason string   `json:"reason,omitempty"` // why TCP carries it
}

// Counters counts the streams of this process since it started.
type Counters struct {
	RDMA uint64 `json:"rdma"` // streams that RDMA carries or has carried
	TCP  uint64 `json:"tcp"`  // streams that TCP carries or has carried
}

// counters are those of the process.
//
//nolint:gochecknoglobals // unique in the process
var counters struct{ rdma, tcp atomic.Uint64 }

// Counts returns the counters of this process.
func Counts() Counters { return Counters{counters.rdma.Load(), counters.tcp.Load()} }
