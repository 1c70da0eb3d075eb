package udp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// MTU returns the MTU from the local address to another: that of the outgoing interface, or less if
// the route has its own. It sends nothing to the network.
//
// It does not ask for the path MTU that the network has reported (IP_MTU of a connected socket):
// the kernel accepts that from any ICMP message with the right addresses and ports in it.
func (c *Conn) MTU(to netip.AddrPort) (PathMTU, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	scope, err := c.check("path mtu", to)
	if err != nil {
		return PathMTU{}, err
	}
	ip, sameHost, err := way(c.local.Addr(), to.Addr(), scope)
	if err != nil {
		e := &Error{Op: "path mtu", Local: c.local, Remote: to, Errno: err}
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			e.Err, e.Detail = ErrUnreachable, "no route from the local address"
		}
		return PathMTU{}, e
	}
	path := pathMTU(ip, !to.Addr().Is4())
	path.SameHost = sameHost
	return path, nil
}

// way asks the kernel for the MTU between two addresses, and whether the second is one of this host
// (rtnetlink(7)).
func way(from, to netip.Addr, scope uint32) (mtu int, sameHost bool, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = unix.Close(fd) }()
	route, err := ask(fd, unix.RTM_GETROUTE, routeRequest(from, to, scope, 0))
	if err != nil {
		return 0, false, err
	}
	link, err := ask(fd, unix.RTM_GETLINK, linkRequest(route.number(unix.RTA_OIF)))
	if err != nil {
		return 0, false, err
	}
	mtu = int(link.number(unix.IFLA_MTU))
	// The resolved route may have an MTU that the network has reported. Its entry in the routing
	// table has the administrator's.
	entry, err := ask(fd, unix.RTM_GETROUTE, routeRequest(from, to, scope, unix.RTM_F_FIB_MATCH))
	if own := entry.metric(unix.RTAX_MTU); err == nil && own != 0 {
		mtu = min(mtu, int(own))
	}
	return mtu, route.kind() == unix.RTN_LOCAL, nil
}

// routeRequest is a struct rtmsg of linux/rtnetlink.h and its attributes.
func routeRequest(from, to netip.Addr, scope, flags uint32) []byte {
	family := byte(unix.AF_INET)
	if !to.Is4() {
		family = unix.AF_INET6
	}
	bits := byte(to.BitLen())
	b := append([]byte{family, bits, bits, 0, 0, 0, 0, 0}, binary.NativeEndian.AppendUint32(nil, flags)...)
	b = appendAttribute(b, unix.RTA_DST, to.AsSlice())
	b = appendAttribute(b, unix.RTA_SRC, from.AsSlice())
	if scope != 0 {
		b = appendAttribute(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, scope))
	}
	return b
}

// linkRequest is a struct ifinfomsg of an interface.
func linkRequest(index uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], index)
	return b
}

// appendAttribute appends an attribute whose value has a multiple of four bytes.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

// answer is one of rtnetlink: a fixed head, and attributes.
type answer struct {
	head []byte
	attributes
}

// kind returns the kind of a route, rtm_type of struct rtmsg: RTN_LOCAL if it leads to this host.
func (a *answer) kind() byte {
	if len(a.head) < unix.SizeofRtMsg {
		return unix.RTN_UNSPEC
	}
	return a.head[7]
}

type attributes []syscall.NetlinkRouteAttr

// ask sends rtnetlink a request whose answer is one message, available at once.
func ask(fd int, kind uint16, request []byte) (answer, error) {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(request)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // number and sender: the socket has one question at a time
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := unix.Sendto(fd, append(b, request...), 0, kernel); err != nil {
		return answer{}, err
	}
	room := make([]byte, 1<<15)
	n, _, err := unix.Recvfrom(fd, room, 0)
	if err != nil {
		return answer{}, err
	}
	messages, err := syscall.ParseNetlinkMessage(room[:n])
	switch {
	case err != nil:
		return answer{}, err
	case len(messages) == 0:
		return answer{}, unix.EBADMSG
	case messages[0].Header.Type == unix.NLMSG_ERROR:
		return answer{}, refusal(messages[0].Data)
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(&messages[0])
	return answer{messages[0].Data, attrs}, err
}

// refusal returns the error of an NLMSG_ERROR, which begins with the negative errno.
func refusal(data []byte) error {
	if len(data) < 4 {
		return unix.EBADMSG
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
}

// number returns the value of an attribute; 0 if there is none.
func (a attributes) number(kind uint16) uint32 {
	for i := range a {
		if a[i].Attr.Type == kind && len(a[i].Value) >= 4 {
			return binary.NativeEndian.Uint32(a[i].Value)
		}
	}
	return 0
}

// metric returns a metric of a route; 0 if it has none.
func (a attributes) metric(kind uint16) uint32 {
	for i := range a {
		if a[i].Attr.Type != unix.RTA_METRICS {
			continue
		}
		for v := a[i].Value; len(v) >= unix.SizeofRtAttr+4; {
			length := int(binary.NativeEndian.Uint16(v))
			if binary.NativeEndian.Uint16(v[2:]) == kind {
				return binary.NativeEndian.Uint32(v[unix.SizeofRtAttr:])
			}
			v = v[min(max((length+3)&^3, unix.SizeofRtAttr), len(v)):]
		}
	}
	return 0
}
