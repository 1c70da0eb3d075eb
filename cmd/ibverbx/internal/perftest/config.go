package perftest

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"ibverbx/verbs"
)

// Kind is a kind of test, by the name of perftest's tool.
type Kind string

// The kinds that this package has.
const (
	WriteBW  Kind = "ib_write_bw"
	ReadBW   Kind = "ib_read_bw"
	SendBW   Kind = "ib_send_bw"
	WriteLat Kind = "ib_write_lat"
	ReadLat  Kind = "ib_read_lat"
	SendLat  Kind = "ib_send_lat"
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{WriteBW, ReadBW, SendBW, WriteLat, ReadLat, SendLat} }

// shape is what a kind of test does.
type shape struct {
	opcode  verbs.Opcode
	latency bool
	access  verbs.AccessFlags // that the queue pair and its memory grant
}

// shape is the kind's. The kind was checked.
func (k Kind) shape() shape {
	s := shape{opcode: verbs.OpRDMAWrite, latency: strings.HasSuffix(string(k), "_lat"),
		access: verbs.AccessLocalWrite}
	switch k {
	case WriteBW, WriteLat:
		s.access |= verbs.AccessRemoteWrite
	case ReadBW, ReadLat:
		s.opcode = verbs.OpRDMARead
		s.access |= verbs.AccessRemoteRead
	case SendBW, SendLat:
		s.opcode = verbs.OpSend
	}
	return s
}

// Latency says whether latencies are measured, and not bandwidths.
func (k Kind) Latency() bool { return k.shape().latency }

// Halved says whether its latencies are halves of a round trip.
func (k Kind) Halved() bool { return k == WriteLat || k == SendLat }

// Limits.
const (
	maxBytes    = 1 << 30   // of a message
	maxMemory   = 4 << 30   // of an end
	maxMessages = 100000000 // of a queue pair
	maxQPs      = 16384
	maxDepth    = 16384
	allBytes    = 8 << 20 // the largest of all sizes
)

// Config says what to do. Both ends have to be given the same Kind, QPs, Messages, Size, All and
// Bidirectional; only where the client alone acts (WriteBW and ReadBW one way, ReadLat) the
// server's Messages do not matter.
type Config struct {
	Kind          Kind
	QPs           int  // 0 is 1
	Messages      int  // on each queue pair; 0 is 5000 of WriteBW, else 1000
	Size          int  // bytes of a message; 0 is 65536, or 2 of latencies
	All           bool // sizes 2 to 8 MiB in steps of two, in place of Size
	Bidirectional bool
	TxDepth       int  // sends outstanding on a queue pair; 0 is 128
	RxDepth       int  // receives posted to a queue pair; 0 is 512
	Gbits         bool // reports travel in Gbit/s, and not in MiB/s: the same at both ends
	Conn          Conn
	// Peer is the address from which the peer comes, where messages are to go to no other: its GID
	// has to be that of this address. Loopback addresses stand for each other. The zero value
	// allows any.
	Peer netip.Addr
	// Timeout bounds each message of the conversation, and how long nothing may complete;
	// 0 is 30 s.
	Timeout time.Duration
}

// Conn is what queue pairs are connected with. The zero value is perftest's choice.
type Conn struct {
	Port         uint8     // 0 is the NIC's own choice
	GIDIndex     *int      // nil is the best entry of the GID table
	MTU          verbs.MTU // 0 is the port's
	TrafficClass uint8
	SL           uint8
	Timeout      *uint8 // code of verbs.AckTimeout; nil is 14
	RetryCount   *uint8 // nil is 7
	RNRRetry     *uint8 // nil is 7, for ever
	Reads        uint8  // outstanding on a queue pair; 0 is 1, or what the NIC allows where it reads
}

// Validate fills in the defaults and says what is not possible.
func (c *Config) Validate() error {
	if err := checkKind(c.Kind); err != nil {
		return err
	}
	lat := c.Kind.Latency()
	for _, d := range []struct {
		n     *int
		usual int
	}{{&c.QPs, 1}, {&c.Messages, 1000}, {&c.Size, 65536}, {&c.TxDepth, 128}, {&c.RxDepth, 512}} {
		if *d.n == 0 {
			*d.n = d.usual
			if d.n == &c.Messages && c.Kind == WriteBW {
				*d.n = 5000
			}
			if d.n == &c.Size && lat {
				*d.n = 2
			}
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.All {
		c.Size = allBytes
	}
	switch {
	case c.QPs < 1 || c.QPs > maxQPs:
		return fmt.Errorf("--qp %d: must be 1 to %d", c.QPs, maxQPs)
	case lat && c.QPs > 1:
		return fmt.Errorf("--qp %d with %s: latencies are measured on one queue pair", c.QPs, c.Kind)
	case lat && c.Bidirectional:
		return fmt.Errorf("--bidirectional with %s: latencies are measured one message at a time", c.Kind)
	case c.Messages < 1 || c.Messages > maxMessages:
		return fmt.Errorf("--iters %d: must be 1 to %d", c.Messages, maxMessages)
	case lat && c.Messages < 2:
		return fmt.Errorf("--iters %d with %s: a latency is the time between two messages", c.Messages,
			c.Kind)
	case c.Size < 1 || c.Size > maxBytes:
		return fmt.Errorf("--size %d: must be 1 to %d", c.Size, maxBytes)
	case c.TxDepth < 1 || c.TxDepth > maxDepth:
		return fmt.Errorf("--tx-depth %d: must be 1 to %d", c.TxDepth, maxDepth)
	case c.RxDepth < 1 || c.RxDepth > maxDepth:
		return fmt.Errorf("--rx-depth %d: must be 1 to %d", c.RxDepth, maxDepth)
	case c.Timeout < 0:
		return fmt.Errorf("--timeout %v: must be positive", c.Timeout)
	case 2*c.QPs > maxMemory/c.Size:
		return fmt.Errorf("--qp %d with --size %d: takes more than 4 GiB of memory", c.QPs, c.Size)
	}
	return nil
}

// others are tools of perftest that this package has not.
const others = " ib_atomic_bw ib_atomic_lat raw_ethernet_bw raw_ethernet_lat raw_ethernet_burst_lat " +
	"raw_ethernet_fs_rate run_perftest_loopback "

// checkKind says whether a kind is one of this package's.
func checkKind(k Kind) error {
	names := ""
	for _, have := range Kinds() {
		if k == have {
			return nil
		}
		names += " " + string(have)
	}
	if strings.Contains(others, " "+string(k)+" ") {
		return fmt.Errorf("%s is not among the tests that can be measured here: have%s", k, names)
	}
	return fmt.Errorf("%.30q is no test of perftest's: have%s", string(k), names)
}

// sizes are the message sizes in their order.
func (c *Config) sizes() (sizes []int) {
	if !c.All {
		return []int{c.Size}
	}
	for z := 2; z <= allBytes; z *= 2 {
		sizes = append(sizes, z)
	}
	return sizes
}

// sends is how many sends, writes or reads a queue pair has outstanding: no more than there are.
func (c *Config) sends() int {
	if c.Kind.Latency() {
		return 1
	}
	return min(c.TxDepth, c.Messages)
}

// receives is how many receives a queue pair holds.
func (c *Config) receives() int {
	if c.Kind.shape().opcode != verbs.OpSend {
		return 1 // a queue pair has room for one at least
	}
	return min(c.RxDepth, c.Messages)
}

// portGIDPrefix begins the GIDs of NICs of package roce that have another UDP port than 4791. Their
// IPv4 address is the last 4 bytes, as in an IPv4 address mapped into IPv6.
const portGIDPrefix = "\xfdibvrx\x00\x00"

// addressOf is the IP address that a GID stands for.
func addressOf(gid verbs.GID) netip.Addr {
	if string(gid[:8]) == portGIDPrefix && gid[10] == 0xff && gid[11] == 0xff {
		return netip.AddrFrom4([4]byte(gid[12:]))
	}
	return netip.AddrFrom16(gid).Unmap()
}

// checkAddress says whether the peer's GID is that of the address from which it has to come. Those
// of loopback are all of this host.
func (c *Config) checkAddress(gid verbs.GID) error {
	want, got := c.Peer.Unmap().WithZone(""), addressOf(gid)
	if !want.IsValid() || got == want || got.IsLoopback() && want.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: the peer is connected from %v, and its GID is that of %v, where this end does "+
		"not send on its word alone: choose another GID at the peer with -x, or name this end's NIC with "+
		"--device to send there", ErrMismatch, want, got)
}
