package udp

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// MTU asks the kernel what fits the way from the local address to another: the MTU of the route's
// link, or less if the network has said so. It sends nothing.
func (c *Conn) MTU(to netip.AddrPort) (PathMTU, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	scope, err := c.check("path mtu", to)
	if err != nil {
		return PathMTU{}, err
	}
	// Only a connected socket knows its route; this one's must stay unconnected.
	v4 := to.Addr().Is4()
	fd, err := unix.Socket(domain(to.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(c.local.Addr(), 0), c.scope))
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(to, scope))
	}
	var ip int
	if err == nil && v4 {
		ip, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
	} else if err == nil {
		ip, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
	}
	if err != nil {
		e := &Error{Op: "path mtu", Local: c.local, Remote: to, Errno: err}
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			e.Err, e.Detail = ErrUnreachable, "no route from the local address"
		}
		return PathMTU{}, e
	}
	return pathMTU(ip, !v4), nil
}
