package perftest

import (
	"fmt"
	"net/netip"

	"ibverbx/verbs"
)

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
