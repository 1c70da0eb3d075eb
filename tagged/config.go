package tagged

import (
	"cmp"
	"context"
	"fmt"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// Masks for receives.
const (
	Exact = ^uint64(0) // one tag
	Any   = uint64(0)  // every tag
)

// MaxTag is the largest tag of a message that is of no [Team]. Those above it are of teams and of
// collective calls, and no mask of another receive matches them.
const MaxTag = 0xfd<<56 - 1

// FirstAMID is the first of the ids of active messages that this package uses on its transport
// worker, up to [transport.MaxAMID]. The program may use those below: see [Worker.Transport].
const FirstAMID transport.AMID = 56

// Config configures a [Worker]. The zero value works.
type Config struct {
	// Rank is this process's number among those that [Join], counted from 0, and Size how many
	// there are; 0 means 1. A job has methods of these names. NewWorker takes neither, nor the next
	// two.
	Rank, Size int
	// Exchange is an all-gather among the ranks: each passes some bytes, about 660 for each
	// endpoint that it makes in Join, and receives those of all ranks in order of rank, its own
	// included. Join calls it twice. It may be nil for a single rank.
	Exchange func(ctx context.Context, mine []byte) ([][]byte, error)
	// OnDemand makes most endpoints as they are used: see the package comment. It must be the same
	// on all ranks. It starts the goroutine of [Worker.Start], unless Transport.Idle is set.
	OnDemand bool
	// Transport configures the underlying transport worker.
	Transport transport.Config
	// EagerLimit is the length in bytes of the longest message that is copied; the receiver reads
	// longer ones from the sender's memory. 0 means DefaultEagerLimit; with [ibverbx.None] only
	// empty messages are copied.
	EagerLimit int
	// Chunk is how many bytes of a long message one read fetches; 0 means DefaultChunk. The largest
	// message that the NICs' ports carry limits it.
	Chunk int
	// Window is the most reads that each endpoint has in flight, for all its long messages
	// together, which take turns; 0 means 8. The limit keeps the queues short for short messages.
	Window int
	// MaxUnexpected is how many eager fragments and announcements of long messages this end keeps
	// for each peer while no receive has matched them; 0 means 1024, at most 65535. Each takes at
	// most the memory of a transport buffer. At the limit the peer's sends wait.
	MaxUnexpected int
	// MaxLeftover is how many eager fragments this end keeps, for all closed endpoints together, of
	// complete messages that have not been received. If there are more, the oldest messages are
	// dropped. 0 means as many as MaxUnexpected, [ibverbx.None] none.
	MaxLeftover int
	// RelaxedOrdering registers the memory of long messages with verbs.AccessRelaxedOrdering, if
	// the NICs have it. Some hosts are then much faster. This package relies on completions, so its
	// promises still hold; a program that polls memory that it has registered here must not set it.
	RelaxedOrdering bool
	// MaxRequests is how many freed requests are kept for reuse; 0 means 4096. It is at most 1<<30.
	MaxRequests int
}

// EndpointConfig configures an [Endpoint]. The zero value works.
type EndpointConfig struct {
	// Name identifies the peer in errors; "" means "endpoint 3", by the endpoint's number.
	Name string
	// Value is for the program's use; [Endpoint.Value] returns it.
	Value any
	// OnError is called once, inside progress and with no lock held, when the peer fails or closes.
	// By then its sends have completed with the same error; a receive whose message was arriving
	// may complete a little later.
	OnError func(ep *Endpoint, err error)
}

// Defaults, measured on software NICs with BenchmarkLength and BenchmarkChunk. Copying a message
// takes 1.6 µs at 8 KiB, 3.2 µs at 16 KiB and 5 µs at 32 KiB; announcing and reading it from
// registered memory takes 2.3 µs, 2.7 µs and 3 µs. Messages of 1 MiB run at 0.78 to 0.81 of copy()
// in chunks of 512 KiB, a fragment of the usual size, and at 0.70 to 0.73 in chunks of 128 KiB.
const (
	DefaultEagerLimit = 16 << 10
	DefaultChunk      = 512 << 10
)

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.EagerLimit, DefaultEagerLimit)
	def(&c.Chunk, DefaultChunk)
	def(&c.Window, 8)
	def(&c.MaxUnexpected, 1024)
	def(&c.MaxLeftover, c.MaxUnexpected)
	def(&c.MaxRequests, 4096)
	c.EagerLimit, c.MaxLeftover = max(c.EagerLimit, 0), max(c.MaxLeftover, 0)
	return c
}

// validate checks a configuration whose defaults are filled in, except the transport's.
func (c *Config) validate() error {
	for _, f := range [...]struct {
		name           string
		v, least, most int
	}{
		{"EagerLimit", c.EagerLimit, 0, 1 << 30},
		{"Chunk", c.Chunk, 1, 1 << 30},
		{"Window", c.Window, 1, 1 << 16},
		{"MaxUnexpected", c.MaxUnexpected, 1, maxWindow},
		{"MaxRequests", c.MaxRequests, 1, 1 << 30},
		{"Transport.BufferSize", cmp.Or(c.Transport.BufferSize, leastBuffer), leastBuffer, 1 << 30},
	} {
		if f.v < f.least || f.v > f.most {
			return fmt.Errorf("tagged: config: %w: %s %d: must be %d to %d", verbs.ErrInvalid, f.name, f.v,
				f.least, f.most)
		}
	}
	return nil
}
