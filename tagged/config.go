package tagged

import (
	"cmp"
	"fmt"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// Masks for receives.
const (
	Exact = ^uint64(0) // one tag
	Any   = uint64(0)  // every tag
)

// FirstAMID is the first of the ids of active messages that this package uses on its transport
// worker, up to [transport.MaxAMID]. The program may use those below: see [Worker.Transport].
const FirstAMID transport.AMID = 56

// Config configures a [Worker]. The zero value works.
type Config struct {
	// Transport configures the transport worker beneath.
	Transport transport.Config
	// EagerLimit is the length in bytes of the longest message that is copied; longer ones are read
	// by the receiver from the sender's memory. 0 means DefaultEagerLimit, [ibverbx.None] only
	// messages of no bytes.
	EagerLimit int
	// Chunk is how many bytes of a long message one read fetches; 0 means DefaultChunk. It is at
	// most what the NICs' ports carry in one message.
	Chunk int
	// Window is how many reads each endpoint has in flight at most, for all its long messages
	// together, which take turns; 0 means 8. The limit keeps the queues short for short messages.
	Window int
	// MaxUnexpected is how many eager fragments and announcements of long messages this end keeps
	// for each peer while no receive has matched them; 0 means 1024, at most 65535. Each takes the
	// memory of a transport buffer at most. When the number is reached the peer's sends wait.
	MaxUnexpected int
	// MaxLeftover is how many eager fragments this end keeps, for all closed endpoints together, of
	// messages that have arrived whole and that nobody has received. If there are more, the oldest
	// messages are dropped. 0 means as many as MaxUnexpected, [ibverbx.None] none.
	MaxLeftover int
	// RelaxedOrdering registers the memory of long messages with verbs.AccessRelaxedOrdering, if
	// the NICs have it. Some hosts are then much faster. The promises of this package depend on
	// completions and hold; a program that polls memory that it has registered here must not set
	// it.
	RelaxedOrdering bool
	// MaxRequests is how many requests are kept for use again after Free; 0 means 4096. It is
	// at most 1<<30.
	MaxRequests int
}

// EndpointConfig configures an [Endpoint]. The zero value works.
type EndpointConfig struct {
	// Name identifies the peer in errors; "" means "endpoint 3", by the endpoint's number.
	Name string
	// Value is the program's; [Endpoint.Value] returns it.
	Value any
	// OnError is called once, inside progress and with no lock held, when the peer fails or closes.
	// Its sends have completed with the same error then; a receive whose message was arriving may
	// complete a little later.
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

// validate returns an error if a configuration with its defaults filled in is wrong. The
// transport's defaults are not filled in yet.
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
