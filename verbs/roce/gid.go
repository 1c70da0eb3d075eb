package roce

import (
	"encoding/binary"
	"net/netip"

	"ibverbx/verbs"
)

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
