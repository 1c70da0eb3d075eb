package ibverbx

import (
	"fmt"
	"time"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// Scheme is how a virtual queue pair over several queue pairs notifies its peer that a
// WRITE_WITH_IMM has arrived.
type Scheme uint8

const (
	// DQPLB numbers every fragment of a WRITE_WITH_IMM; the receiver puts them in order. There is
	// no wait for a round trip, and a notification never overtakes data. It is the default.
	//
	// SEND carries no number: it waits for the acknowledgement of earlier data, and has Spray's
	// limit.
	DQPLB Scheme = iota
	// Spray sends fragments as plain writes and, once all of them and all earlier data are
	// acknowledged, one zero-byte WRITE_WITH_IMM on a queue pair of its own, the notify QP, with
	// the user's immediate.
	//
	// An acknowledgement proves that data has reached the peer's NIC; a message on another queue
	// pair does not by itself push that data on into the peer's memory (IBTA o9-20 orders
	// operations of one queue pair). On hosts where PCIe writes of several NICs, or with relaxed
	// ordering, may pass each other, use DQPLB.
	//
	// A receiver whose posted receives all wait for notifications does not notice that the first
	// data queue pair has failed until that is used again: SENDs use it, and would consume a
	// receive that is posted to detect the failure.
	Spray
)

// String returns the scheme's name on the wire and on the command line.
func (s Scheme) String() string {
	switch s {
	case DQPLB:
		return "dqplb"
	case Spray:
		return "spray"
	}
	return fmt.Sprintf("scheme %d", uint8(s))
}

// ParseScheme parses the name of a scheme.
func ParseScheme(name string) (Scheme, error) {
	switch name {
	case "dqplb":
		return DQPLB, nil
	case "spray":
		return Spray, nil
	}
	return 0, fmt.Errorf("ibverbx: %w: scheme %.40q: have dqplb, spray", verbs.ErrInvalid, name)
}

// MarshalText returns the scheme's name.
func (s Scheme) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the form of MarshalText. An invalid name changes nothing.
func (s *Scheme) UnmarshalText(text []byte) error {
	scheme, err := ParseScheme(string(text))
	if err != nil {
		return err
	}
	*s = scheme
	return nil
}

// Limits of the implementation.
const (
	// MaxRails is the most data queue pairs of one virtual queue pair.
	MaxRails = 128
	// maxSpares is the most queue pairs that carry no data, beside the notify QP.
	maxSpares = 2*verbs.MaxDevices - 1
	// maxMessage is the longest message of a queue pair in bytes (the InfiniBand transport allows
	// 2^31).
	maxMessage = 1 << 31
	// maxQueue is the most work requests that a queue of a queue pair is asked to hold: more than
	// any NIC has (mlx5 has 2^15), and few enough to be added up.
	maxQueue = 1 << 20
	// maxPieces is the longest scatter list that a queue pair is asked for. NICs take some dozens.
	maxPieces = 1 << 12
	// maxFailoverTimeout is the longest Config.FailoverTimeout.
	maxFailoverTimeout = time.Hour
	// maxInline is the longest inline request that a queue pair is asked for, in bytes. NICs take
	// some hundred.
	maxInline = 1 << 20
)

// defaultMsgCnt is the default of [Config.MaxMsgCntPerQP].
const defaultMsgCnt = 128

// None stands for zero in fields of [Config] and [ConnConfig], and of the configurations of the
// packages above, in which 0 means the default. Depending on the field it means no pause, no
// retries, no limit, or never; each field that takes it says which.
const None = -1

// Config configures a [VirtualQP]. The zero value works: in every field 0 means the default. [None]
// means none, in the fields that name it.
type Config struct {
	// Scheme is how notifications travel over several queue pairs; the default is [DQPLB].
	Scheme Scheme
	// Balance is how the queue pair for the next fragment is chosen; the default is [RoundRobin].
	Balance Balance
	// Failover lets the connection continue when a queue pair or a NIC fails, as long as another
	// one is left at both ends. It is in force if both ends set it and there are several queue
	// pairs; Stats.Failover is then true. See the package comment.
	Failover bool
	// FailoverTimeout is how long the peer may take to report what has arrived on a queue pair that
	// has failed; after that the connection fails. The peer must poll in that time, and its report
	// may have to wait for another failing queue pair, so it must not be less than the time after
	// which a NIC gives up on its peer: (Conn.RetryCount + 1) times Conn.Timeout. Time in which
	// this end does not poll hardly counts. 0 means four times that, the most that a NIC may take,
	// and at least 10 seconds.
	FailoverTimeout time.Duration
	// PortTimeout is how long the NIC may report the port of this end as down
	// ([verbs.EventPortErr]) before its queue pairs are taken out of service, if Failover is in
	// force and queue pairs elsewhere can replace them. 0 means 50 ms: shorter flaps of a link take
	// no queue pair out of service. While a port is down for less than that, Wait polls each
	// millisecond. [None] ignores the reports. Any other failure between the ends is noticed by
	// retries: Conn.Timeout and Conn.RetryCount.
	PortTimeout time.Duration
	// Failback is the pause after which a queue pair that has failed is connected anew. If it
	// works, it gets work again; the pause doubles each time, up to 64 times, until it has carried
	// its share, or has been in service for 64 times Failback. One of the ends, chosen by the
	// cards, decides when. Both ends must poll, or sleep in Wait or on Events. No queue pair is
	// tried while its port is down. If the port is up and the peer's address is not found, the
	// kernel may block the call that tries for a second or more. 0 means a second. If one of the
	// ends sets [None], none is tried.
	Failback time.Duration
	// Timing keeps histograms of one send request in 64: how long it took, how long it waited for
	// room, how long it is. [Stats].Timing has them. They take 4 KiB.
	Timing bool
	// Trace records each step of all requests in a ring of the virtual CQ, which keeps the last
	// 4096 and takes 128 KiB: see [VirtualCQ.Trace]. The last ones before a failure are in
	// [FailedError].Recent. While package runtime/trace is on, posts and completions are regions,
	// and the requests that Timing would time are tasks.
	Trace bool
	// Events are called when the connection is made, loses a queue pair, or fails.
	Events Events
	// FragmentSize is the length in bytes of the pieces into which long messages are cut; 0 means
	// 512 KiB: large enough that the cost of a work request vanishes, small enough that four queue
	// pairs share one message of a few MiB. It is lowered to the longest message that every port
	// carries ([verbs.PortAttr].MaxMsgSize).
	FragmentSize uint32
	// MaxMsgCntPerQP is how many messages a physical queue pair carries at a time; 0 means 128, and
	// at most 2^20. It is lowered to what the queue pair was created with, less two for messages of
	// its own with Failover. [None] is no limit, like -1 in the C++ original; [Domain.NewQP] then
	// creates queue pairs as deep as the NICs and the room in the virtual CQ allow, which is seldom
	// worth its memory.
	MaxMsgCntPerQP int
	// Credits is how many receives a DQPLB receiver keeps posted on each data queue pair; 0 means
	// twice MaxMsgCntPerQP; at most 2^20. It is lowered to what the queue pair was created with.
	// The peer may have more messages in flight than that; its NIC then retries (RNR) until there
	// is room.
	Credits int
	// MaxBanked is how many notifications a DQPLB receiver keeps for receives that the program has
	// not posted yet; 0 means 4096, and at most 2^27. At the limit it withholds credits, which
	// slows the sender down and loses nothing.
	MaxBanked int
	// Linger is how long requests that were posted before a failed one may continue; after that
	// they are flushed, too. They may be waiting for a receive that the peer will never post,
	// because it has failed as well. 0 means a second, and [None] no time at all.
	Linger time.Duration
	// QPsPerDevice is how many data queue pairs [Domain.NewQP] creates on each NIC; 0 means 4.
	QPsPerDevice int
	// MaxSGE is how many pieces of memory one fragment may have, and MaxInline how many bytes an
	// inline request, on queue pairs that [Domain.NewQP] creates; 0 means 4 and 64.
	MaxSGE, MaxInline int
	// MaxRecvSGE is how many pieces of memory one receive may have; 0 means as many as MaxSGE.
	MaxRecvSGE int
	// NoNotifyQP leaves out the notify queue pair. Requests that need it are refused: in Spray
	// WRITE_WITH_IMM and receives without memory, in DQPLB SEND and receives with memory.
	NoNotifyQP bool
	// Conn holds the attributes of the connection.
	Conn ConnConfig
	// Testing holds fields that only tests and simulations set.
	Testing Testing
}

// Testing holds settings for tests and simulations of a [VirtualQP]. Programs leave it zero.
type Testing struct {
	// Clock is the time by which Linger, the times of failover and, with [ByAbility], the speed of
	// queue pairs are measured, and by which [VirtualQP.Drain] of a single queue pair gives up on
	// completions; nil means [time.Now]. A simulation gives a clock of its own, so that a run
	// depends on nothing but its seed. Virtual queue pairs of one virtual CQ must have the same
	// clock. It does not govern sleeping: the calls that sleep ([VirtualCQ.Wait],
	// [VirtualQP.Drain], Close and Reset) do so by the wall clock.
	Clock func() time.Time
	// FirstNumber is the DQPLB number from which this end counts when it connects; below 2^24-1, 0
	// by default. It is in force if both ends set it. Numbers wrap after 16.7 million messages:
	// begin shortly before to test that.
	FirstNumber uint32
}

// withDefaults returns c with zero fields replaced.
//
// Some defaults depend on the devices; with none they are those of software NICs.
func (c Config) withDefaults(devices []verbs.Device) Config {
	if c.FragmentSize == 0 {
		c.FragmentSize = 512 << 10
	}
	switch c.MaxMsgCntPerQP {
	case 0:
		c.MaxMsgCntPerQP = defaultMsgCnt
	case None:
		c.MaxMsgCntPerQP = maxQueue
	}
	if c.Credits == 0 {
		c.Credits = min(2*min(c.MaxMsgCntPerQP, maxQueue), maxQueue)
	}
	if c.MaxBanked == 0 {
		c.MaxBanked = 4096
	}
	if c.Linger == 0 {
		c.Linger = time.Second
	}
	if c.PortTimeout == 0 {
		c.PortTimeout = 50 * time.Millisecond
	}
	if c.Failback == 0 {
		c.Failback = time.Second
	}
	if c.QPsPerDevice == 0 {
		c.QPsPerDevice = 4
	}
	if c.MaxRecvSGE == 0 {
		c.MaxRecvSGE = c.MaxSGE
	}
	c.Conn = c.Conn.withDefaults(devices)
	if c.FailoverTimeout == 0 {
		c.FailoverTimeout = min(max(10*time.Second, 4*c.Conn.givesUpAfter()), maxFailoverTimeout)
	}
	return c
}

// Validate checks the configuration as [Domain.NewQP] does over this many devices. Its error
// matches verbs.ErrInvalid and names the field. It queries no device: NewQP also refuses what the
// devices cannot do.
func (c Config) Validate(devices int) error {
	c = c.withDefaults(nil)
	if err := c.validate(); err != nil {
		return err
	}
	if total := c.QPsPerDevice * devices; total > MaxRails {
		return configError("QPsPerDevice %d on each of %d devices: %d data queue pairs: must be at most %d",
			c.QPsPerDevice, devices, total, MaxRails)
	}
	return nil
}

// validate checks a configuration whose defaults have been filled in.
func (c *Config) validate() error {
	switch {
	case c.Scheme > Spray:
		return configError("Scheme %d: have DQPLB (%d) and Spray (%d)", c.Scheme, DQPLB, Spray)
	case c.Balance > ByAbility:
		return configError("Balance %d: have RoundRobin (%d) and ByAbility (%d)", c.Balance, RoundRobin,
			ByAbility)
	case c.FragmentSize > maxMessage:
		return configError("FragmentSize %d: a message carries at most %d bytes", c.FragmentSize, maxMessage)
	case c.FailoverTimeout < 0:
		return configError("FailoverTimeout %v: must be positive, or 0 for the default", c.FailoverTimeout)
	case c.FailoverTimeout > maxFailoverTimeout:
		return configError("FailoverTimeout %v: must be at most an hour", c.FailoverTimeout)
	case c.Failover && c.FailoverTimeout < min(c.Conn.givesUpAfter(), maxFailoverTimeout):
		return configError("FailoverTimeout %v: a NIC takes %v to give up its peer (Conn.Timeout %d, "+
			"RetryCount %d): must not be less", c.FailoverTimeout, c.Conn.givesUpAfter(), c.Conn.Timeout,
			c.Conn.RetryCount)
	case c.PortTimeout > time.Hour:
		return configError("PortTimeout %v: must be at most an hour, 0 for 50ms, or -1 for never",
			c.PortTimeout)
	case c.Failback > time.Hour:
		return configError("Failback %v: must be at most an hour, 0 for 1s, or -1 for never",
			c.Failback)
	case c.Failover && c.Conn.Access&verbs.AccessRemoteWrite == 0:
		return configError("Conn.Access %v: Failover needs remote write for its own messages", c.Conn.Access)
	case c.Testing.FirstNumber >= dqplb.Mod:
		return configError("Testing.FirstNumber %d: must be below 2^24-1", c.Testing.FirstNumber)
	}
	for _, f := range [...]struct {
		name    string
		v, most int
		says    string // text after the bounds
	}{
		{"MaxMsgCntPerQP", c.MaxMsgCntPerQP, maxQueue,
			", 0 for 128, or -1 for as many as the queue pair holds"},
		{"Credits", c.Credits, maxQueue, ", or 0 for twice MaxMsgCntPerQP"},
		{"MaxBanked", c.MaxBanked, wrid.MaxOutstanding, ", or 0 for 4096"},
		{"MaxSGE", c.MaxSGE, maxPieces, ", or 0 for 4"},
		{"MaxRecvSGE", c.MaxRecvSGE, maxPieces, ", or 0 for MaxSGE"},
		{"MaxInline", c.MaxInline, maxInline, " bytes, or 0 for 64"},
		{"QPsPerDevice", c.QPsPerDevice, MaxRails, ", or 0 for 4"},
	} {
		if f.v < 0 || f.v > f.most {
			return configError("%s %d: must be 1 to %d%s", f.name, f.v, f.most, f.says)
		}
	}
	return c.Conn.validate()
}

func configError(format string, args ...any) error {
	return fmt.Errorf("ibverbx: config: %w: "+format, append([]any{verbs.ErrInvalid}, args...)...)
}

// clock returns the clock of the configuration.
func (c *Config) clock() func() time.Time {
	if c.Testing.Clock != nil {
		return c.Testing.Clock
	}
	return time.Now
}

// Balance is how a virtual queue pair over several queue pairs chooses the one that carries the
// next fragment. Each end chooses for what it sends and reads; the peer's choice does not matter.
type Balance uint8

const (
	// RoundRobin gives each queue pair a fragment in turn, and skips full ones. It is the default,
	// and right if all are equally fast.
	RoundRobin Balance = iota
	// ByAbility gives a fragment to the queue pair that will finish it first, by the bytes that it
	// has outstanding and its measured speed. A NIC that is, or becomes, slower than the others
	// gets only what it can carry, and does not hold up the rest.
	//
	// Speed is measured with fragments of 16 KiB or more (or of [Config.FragmentSize], if that is
	// less). While all queue pairs are within a third of each other, they take turns as in
	// RoundRobin. A slow one gets a fragment now and then, which shows if it has recovered.
	// [RailStats.Rate] is the measured speed.
	//
	// It reads [Testing.Clock] when such a fragment completes.
	ByAbility
)

// String returns the name on the command line.
func (b Balance) String() string {
	switch b {
	case RoundRobin:
		return "round-robin"
	case ByAbility:
		return "ability"
	}
	return fmt.Sprintf("balance %d", uint8(b))
}

// ParseBalance parses the name of a balance.
func ParseBalance(name string) (Balance, error) {
	switch name {
	case "round-robin":
		return RoundRobin, nil
	case "ability":
		return ByAbility, nil
	}
	return 0, fmt.Errorf("ibverbx: %w: balance %.40q: have round-robin, ability", verbs.ErrInvalid, name)
}

// MarshalText returns the name.
func (b Balance) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses the form of MarshalText. An invalid name changes nothing.
func (b *Balance) UnmarshalText(text []byte) error {
	balance, err := ParseBalance(string(text))
	if err != nil {
		return err
	}
	*b = balance
	return nil
}
