package perftest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ibverbx"
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

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{WriteBW, ReadBW, SendBW, WriteLat, ReadLat, SendLat} }

// opcode returns the opcode of its messages.
func (k Kind) opcode() verbs.Opcode {
	switch k {
	case ReadBW, ReadLat:
		return verbs.OpRDMARead
	case SendBW, SendLat:
		return verbs.OpSend
	}
	return verbs.OpRDMAWrite
}

// access returns the rights that its queue pairs and their memory grant.
func (k Kind) access() verbs.AccessFlags {
	switch k.opcode() {
	case verbs.OpRDMARead:
		return verbs.AccessLocalWrite | verbs.AccessRemoteRead
	case verbs.OpSend:
		return verbs.AccessLocalWrite
	}
	return verbs.AccessLocalWrite | verbs.AccessRemoteWrite
}

// Latency reports whether it measures latencies, not bandwidths.
func (k Kind) Latency() bool { return strings.HasSuffix(string(k), "_lat") }

// Halved reports whether its latencies are halves of a round trip.
func (k Kind) Halved() bool { return k == WriteLat || k == SendLat }

// Limits.
const (
	maxBytes    = 1 << 30   // of a message
	maxMemory   = 4 << 30   // of an end
	maxMessages = 100000000 // of a queue pair
	maxPage     = 1 << 16   // of either host
)

// Config describes a test. Both ends need the same Kind, QPs, Messages and Size, except that the
// server's Messages do not matter if only the client acts (WriteBW, ReadBW, ReadLat).
type Config struct {
	Kind     Kind
	QPs      int  // 0 is 1
	Messages int  // on each queue pair; 0 is 5000 of WriteBW, else 1000
	Size     int  // bytes of a message; 0 is 65536, or 2 of latencies
	TxDepth  int  // sends outstanding on a queue pair; 0 is 128
	RxDepth  int  // receives posted to a queue pair; 0 is 512
	Gbits    bool // reports travel in Gbit/s instead of MiB/s: the same at both ends
	// Conn has the connection settings of the queue pairs. Its defaults are perftest's: timeout
	// code 14, 7 retries, and as many outstanding reads as the NIC allows.
	Conn ibverbx.ConnConfig
	// Peer is the address from which the peer connects, if messages must go to no other: its GID
	// must be that of this address. Loopback addresses stand for each other. The zero value allows
	// any.
	Peer netip.Addr
	// Timeout bounds each message of the conversation, and the time without a completion; 0 is 30
	// s.
	Timeout time.Duration
}

// Validate fills in the defaults and returns what is not possible. No number may be negative.
func (c *Config) Validate() error {
	if !slices.Contains(Kinds(), c.Kind) {
		return fmt.Errorf("%.30q is not among the tests that can be measured here: have %v", c.Kind, Kinds())
	}
	lat, messages, size := c.Kind.Latency(), 1000, 65536
	if c.Kind == WriteBW {
		messages = 5000
	}
	if lat {
		size = 2
	}
	c.QPs, c.Messages, c.Size = cmp.Or(c.QPs, 1), cmp.Or(c.Messages, messages), cmp.Or(c.Size, size)
	c.TxDepth, c.RxDepth = cmp.Or(c.TxDepth, 128), cmp.Or(c.RxDepth, 512)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	switch {
	case c.Size > maxBytes:
		return fmt.Errorf("--size %d: must be 1 to %d", c.Size, maxBytes)
	case lat && c.QPs > 1:
		return fmt.Errorf("--qp %d with %s: latencies are measured on one queue pair", c.QPs, c.Kind)
	case lat && c.Messages < 2:
		return fmt.Errorf("--iters %d with %s: a latency is the time between two messages", c.Messages,
			c.Kind)
	case 2*c.QPs > maxMemory/max(c.Size, maxPage):
		return fmt.Errorf("--qp %d with --size %d: takes more than 4 GiB of memory", c.QPs, c.Size)
	}
	return nil
}

// sends returns how many sends, writes or reads a queue pair has outstanding: no more than there
// are.
func (c *Config) sends() int {
	if c.Kind.Latency() {
		return 1
	}
	return min(c.TxDepth, c.Messages)
}

// receives returns how many receives a queue pair holds.
func (c *Config) receives() int {
	if c.Kind.opcode() != verbs.OpSend {
		return 1 // a queue pair has room for at least one
	}
	return min(c.RxDepth, c.Messages)
}

// checkAddress reports whether the peer's GID is that of the address from which it must connect.
// Loopback addresses all belong to this host.
func (c *Config) checkAddress(gid verbs.GID) error {
	want, got := c.Peer.Unmap().WithZone(""), netip.AddrFrom16(gid).Unmap()
	if at, ok := gid.UDPAddr(); ok {
		got = at.Addr()
	}
	if !want.IsValid() || got == want || got.IsLoopback() && want.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: the peer is connected from %v, and its GID is that of %v, where this end does "+
		"not send on its word alone: choose another GID at the peer with -x, or name this end's NIC with "+
		"--device to send there", ErrMismatch, want, got)
}

// unit returns the bytes a second in the unit of reports.
func (c *Config) unit() float64 {
	if c.Gbits {
		return 1e9 / 8
	}
	return 1 << 20
}
