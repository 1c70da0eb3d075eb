package roce

import (
	"net/netip"
	"time"

	"ibverbx/verbs/roce/internal/udp"
)

// link carries the packets of a NIC: a UDP socket, or in tests a simulated network, in which
// nothing happens by itself.
type link interface {
	NewDestination(to netip.AddrPort, way udp.Way) (destination, error)
	MTU(to netip.AddrPort) (udp.PathMTU, error)
	NewBatch() batch
	WaitReadable(deadline time.Time) error
	WaitWritable(deadline time.Time) error
	Yield()
	Stats() udp.Stats
	Close() error
}

// destination is a peer's address on a link; see [udp.Destination].
type destination interface {
	Addr() netip.AddrPort
	Source() netip.AddrPort
	Segments() bool
	Send(packets []udp.Packet, segment bool) (int, error)
	SetECT(on bool)
	Close()
}

// batch takes the packets that have arrived on a link; see [udp.Batch].
type batch interface {
	Recv() (int, error)
	Received() []udp.Datagram
	More() bool
}

// socket is the link of every NIC outside of tests.
type socket struct{ *udp.Conn }

func (s socket) NewDestination(to netip.AddrPort, way udp.Way) (destination, error) {
	return s.Conn.NewDestination(to, way)
}

func (s socket) NewBatch() batch { return s.Conn.NewBatch(0, 0) }

// alarm goes off once, at the time to which it was last set: a [time.Timer] with a function.
type alarm interface {
	Reset(after time.Duration) bool
	Stop() bool
}
