package udp

import (
	"net/netip"

	"ibverbx/verbs"
)

const (
	// MaxSegments is the most packets that travel as one burst (UDP_MAX_SEGMENTS of Linux 4.18).
	MaxSegments = 64

	// MaxBurst is the most bytes of UDP payload that travel as one burst: the limit of an IP
	// packet's length field, less the headers of IPv6.
	MaxBurst = 65535 - 40 - 8
)

// Packet is one datagram to send, gathered from up to three pieces, any of them empty. Pieces that
// lie side by side in memory cost less: a header and its payload, or a trailer and the header of
// the packet after it.
type Packet struct {
	Header, Payload, Trailer []byte
}

// Len is the datagram's length in bytes.
func (p *Packet) Len() int { return len(p.Header) + len(p.Payload) + len(p.Trailer) }

// Burst returns how many packets from the first on leave as one burst where bursts are possible:
// all of one length, except that the last may be shorter, at most [MaxSegments] and [MaxBurst]. It
// is at least 1 unless there are none. [Destination.Send] divides its packets in this way.
func Burst(packets []Packet) int {
	if len(packets) == 0 {
		return 0
	}
	size := packets[0].Len()
	if size == 0 {
		return 1
	}
	total := size
	for n := 1; n < min(len(packets), MaxSegments); n++ {
		length := packets[n].Len()
		switch {
		case length == 0 || length > size || total+length > MaxBurst:
			return n
		case length < size:
			return n + 1
		}
		total += length
	}
	return min(len(packets), MaxSegments)
}

// Datagram is one datagram received.
type Datagram struct {
	// Data is memory of the batch, valid until its next Recv.
	Data []byte
	// From is the source. It has no zone: a link-local source is on the interface of the socket's
	// own address. It is cheap to compare, and as the key of a map.
	From netip.AddrPort
	// Index is the place in the burst that the kernel handed over, and Bundle the length of that
	// burst; 0 and 1 for a datagram by itself.
	Index, Bundle uint8
	// ECN is the field of the IP header by which routers report congestion (RFC 3168).
	ECN uint8
}

// The values of the ECN field.
const (
	NotECT = 0 // the sender does not understand CE
	ECT1   = 1
	ECT0   = 2 // the sender understands CE
	CE     = 3 // congestion experienced
	ecn    = 3 // the field, in the traffic class
)

// Way says how packets travel to a destination. The zero Way has the kernel's defaults and the port
// of the Conn.
type Way struct {
	// SourcePort is the port that packets leave from, by which routers and NICs spread traffic. The
	// port of the Conn takes its place if the kernel does not grant it.
	SourcePort uint16
	// TrafficClass has the DSCP in its upper six bits (IP_TOS, IPV6_TCLASS). Its lower two are
	// ignored.
	TrafficClass uint8
	// HopLimit is how many routers a packet may pass; 0 means the host's default.
	HopLimit uint8
	// FlowLabel is the label of IPv6, which the kernel derives from the ports if it is 0.
	FlowLabel uint32
}

// Stats are a socket's counters, and the settings that the kernel granted.
type Stats struct {
	RecvBuffer, SendBuffer int  // granted bytes, in the unit of the request
	GSO, GRO               bool // in use

	RecvDropped   uint64 // datagrams or bursts that found the receive buffer full
	RecvTruncated uint64 // datagrams longer than a buffer of the batch, dropped
	SendDropped   uint64 // packets that found a queue of the host full (ENOBUFS), lost as on the wire
	GSORefused    uint64 // destinations that no longer get bursts
}

// PathMTU is the size of datagrams that fit the path to a destination, in bytes.
type PathMTU struct {
	IP      int // the largest IP packet
	Payload int // the largest UDP payload
	// SameHost says that the address is one of this host, so that packets to it do not leave the
	// kernel. It is false for the address of another network namespace of the machine.
	SameHost bool
}

// pathMTU returns the PathMTU of IP packets of so many bytes.
func pathMTU(ip int, v6 bool) PathMTU {
	headers := 20 + 8
	if v6 {
		headers = 40 + 8
	}
	return PathMTU{IP: ip, Payload: max(0, min(ip, 65535)-headers)}
}

// Verbs returns the largest MTU of package verbs that fits with so many bytes of headers and
// trailers in the UDP payload, 0 if none does.
func (p PathMTU) Verbs(headers int) verbs.MTU {
	for mtu := verbs.MTU4096; mtu >= verbs.MTU256; mtu-- {
		if mtu.Bytes()+headers <= p.Payload {
			return mtu
		}
	}
	return 0
}
