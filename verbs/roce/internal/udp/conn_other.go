//go:build !linux

package udp

import (
	"net/netip"
	"os"
	"runtime"
	"time"

	"ibverbx/verbs"
)

// Conn is a UDP socket. On this system there is none.
type Conn struct{ _ struct{} }

// Listen says that this system is not supported.
func Listen(cfg Config) (*Conn, error) {
	cfg, err := cfg.validated(os.Getenv)
	if err != nil {
		return nil, err
	}
	return nil, &Error{Op: "listen", Local: cfg.Local, Err: verbs.ErrNotSupported,
		Detail: "RoCEv2 in user space needs Linux, this is " + runtime.GOOS + "/" + runtime.GOARCH +
			": here nothing controls the identification of IP packets, which peers check"}
}

// LocalAddr is never reached, as there is no Conn.
func (*Conn) LocalAddr() netip.AddrPort { return netip.AddrPort{} }

// Close is never reached, as there is no Conn.
func (*Conn) Close() error { return nil }

// Stats is never reached, as there is no Conn.
func (*Conn) Stats() Stats { return Stats{} }

// MTU is never reached, as there is no Conn.
func (*Conn) MTU(netip.AddrPort) (PathMTU, error) { return PathMTU{}, verbs.ErrNotSupported }

// WaitReadable is never reached, as there is no Conn.
func (*Conn) WaitReadable(time.Time) error { return verbs.ErrNotSupported }

// WaitWritable is never reached, as there is no Conn.
func (*Conn) WaitWritable(time.Time) error { return verbs.ErrNotSupported }

// Destination is a peer's address.
type Destination struct{ _ struct{} }

// NewDestination is never reached, as there is no Conn.
func (*Conn) NewDestination(netip.AddrPort, Way) (*Destination, error) {
	return nil, verbs.ErrNotSupported
}

// Addr is never reached, as there is no Destination.
func (*Destination) Addr() netip.AddrPort { return netip.AddrPort{} }

// Source is never reached, as there is no Destination.
func (*Destination) Source() netip.AddrPort { return netip.AddrPort{} }

// SetECT is never reached, as there is no Destination.
func (*Destination) SetECT(bool) {}

// Close is never reached, as there is no Destination.
func (*Destination) Close() {}

// Segments is never reached, as there is no Destination.
func (*Destination) Segments() bool { return false }

// Send is never reached, as there is no Destination.
func (*Destination) Send([]Packet, bool) (int, error) { return 0, verbs.ErrNotSupported }

// Batch is memory to receive into.
type Batch struct {
	Datagrams []Datagram
}

// NewBatch is never reached, as there is no Conn.
func (*Conn) NewBatch(_, _ int) *Batch { return nil }

// Recv is never reached, as there is no Batch.
func (*Batch) Recv() (int, error) { return 0, verbs.ErrNotSupported }

// Received is never reached, as there is no Batch.
func (*Batch) Received() []Datagram { return nil }

// linkSpeed is the speed of an interface in Mbit/s, which is not known.
func linkSpeed(string) int { return 0 }

// More is never reached, as there is no Batch.
func (*Batch) More() bool { return false }

// Yield is never reached, as there is no Conn.
func (*Conn) Yield() {}
