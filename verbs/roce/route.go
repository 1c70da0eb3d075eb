package roce

import (
	"encoding/binary"
	"net/netip"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
)

// route is the host's path to a peer.
type route struct {
	to  destination // the caller keeps or closes it
	mtu verbs.MTU   // the largest path MTU that fits; 0 if none does
	// sameHost says that the peer's address is one of this host.
	sameHost bool
	err      error // why there is none
}

// route finds the path to a peer. Call it without the lock.
func (d *Device) route(to verbs.GID, way udp.Way) route {
	port := uint16(Port)
	if d.cfg.Port != 0 {
		port = d.cfg.Port
	}
	dest, err := d.link.NewDestination(addressOf(to, port), way)
	if err != nil {
		return route{err: err}
	}
	path, err := d.link.MTU(dest.Addr())
	if err != nil {
		dest.Close()
		return route{err: err}
	}
	return route{to: dest, mtu: path.Verbs(headerRoom), sameHost: path.SameHost}
}

// close closes a destination that nobody has kept.
func (r *route) close() {
	if r.to != nil {
		r.to.Close()
	}
}

// wayOf returns how the packets of a queue pair travel under the given address handle. It locks.
//
// They leave from the queue pair's source port, so that networks and hosts that spread traffic by
// ports spread queue pairs. The port stays as long as the connection, because the peer recognises
// the queue pair by it. A NIC on another port than RoCEv2's sends from that one, by which peers
// tell it from the other processes of its host.
func (q *QP) wayOf(attr *verbs.QPAttr, mask verbs.QPAttrMask) udp.Way {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	ah := &attr.AH
	way := udp.Way{TrafficClass: ah.TrafficClass, HopLimit: ah.HopLimit, FlowLabel: ah.FlowLabel}
	switch {
	case d.local.Port() != Port:
	case q.path.to != nil:
		way.SourcePort = q.path.to.Source().Port()
	default:
		peer := q.core.Attr.DestQPNum
		if mask&verbs.QPAttrDestQPNum != 0 {
			peer = attr.DestQPNum
		}
		way.SourcePort = sourcePort(ah.FlowLabel, q.core.Num, peer)
	}
	return way
}

// sourcePort is the UDP source port of RoCEv2 packets, as the kernel chooses it for NICs
// (rdma_get_udp_sport of include/rdma/ib_verbs.h): the flow label folded into the dynamic ports, or
// without a label the queue pair numbers, in either order.
func sourcePort(label, local, remote uint32) uint16 {
	const labels, low, first = 1<<20 - 1, 1<<14 - 1, 0xc000
	if label &= labels; label == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		label = uint32(v) & labels
	}
	return first | uint16(label&low^label>>14)
}

// A GID is an IP address, and RoCEv2 has one UDP port. If that port is taken, as in the second
// process of a host, a NIC over IPv4 uses another, and its GID has a form of this package's own: a
// unique local address of IPv6 (RFC 4193) with a fixed global identifier, which contains the port
// and the IPv4 address:
//
//	fd69:6276:7278:0:PORT:ffff:A.B.C.D
//
// verbs.GID.UDPAddr reads it.
const portGIDPrefix = "\xfdibvrx\x00\x00"

// gidOf is the GID of a socket's address.
func gidOf(at netip.AddrPort) verbs.GID {
	gid := verbs.GID(at.Addr().As16())
	if at.Port() != Port && at.Addr().Is4() {
		copy(gid[:], portGIDPrefix)
		binary.BigEndian.PutUint16(gid[8:], at.Port())
	}
	return gid
}

// addressOf returns the socket's address that a GID stands for. A plain IPv4 address means RoCEv2's
// port; an IPv6 address means the given port, which all ends share.
func addressOf(gid verbs.GID, port uint16) netip.AddrPort {
	if at, ok := gid.UDPAddr(); ok {
		return at
	}
	addr := netip.AddrFrom16(gid).Unmap()
	if addr.Is4() {
		port = Port
	}
	return netip.AddrPortFrom(addr, port)
}
