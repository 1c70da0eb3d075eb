package udp

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// setOptions sets the options of a new socket, before it is bound.
func (c *Conn) setOptions(fd int, cfg Config) error {
	for _, option := range required(cfg.Local.Addr()) {
		if err := unix.SetsockoptInt(fd, option.level, option.name, option.value); err != nil {
			return &Error{Op: "listen", Local: cfg.Local, Errno: err, Detail: "socket option " + option.text}
		}
	}
	for _, option := range wanted(cfg.Local.Addr()) {
		_ = unix.SetsockoptInt(fd, option.level, option.name, option.value)
	}
	c.hopLimit = hopLimit(fd, cfg.Local.Addr())
	c.recvBuffer = setBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, bufferSize)
	c.sendBuffer = setBuffer(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, bufferSize)
	if !cfg.DisableGSO {
		_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT) // Linux 4.18
		c.gso = err == nil
	}
	if !cfg.DisableGRO {
		c.gro = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil // Linux 5.0
	}
	return nil
}

type sockopt struct {
	level, name, value int
	text               string
}

// required returns the options without which peers would drop the socket's packets.
func required(local netip.Addr) []sockopt {
	if local.Is4() {
		return []sockopt{
			// Unconnected and with this option, Linux sends identification 0 and DF. Unlike
			// IP_PMTUDISC_DO, it does not obey "fragmentation needed", which anybody can send.
			{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER"},
		}
	}
	return []sockopt{
		{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
		{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER"},
		{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX"},
	}
}

// wanted returns the options for ECN reports and flow labels, without which the socket still works.
func wanted(local netip.Addr) []sockopt {
	if local.Is4() {
		return []sockopt{{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "IP_RECVTOS"}}
	}
	return []sockopt{
		{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"},
		{unix.IPPROTO_IPV6, ipv6FlowinfoSend, 1, "IPV6_FLOWINFO_SEND"},
	}
}

// ipv6FlowinfoSend is IPV6_FLOWINFO_SEND of linux/in6.h: packets carry the flow label of the
// address.
const ipv6FlowinfoSend = 33

// hopLimit returns the default hop limit of packets.
func hopLimit(fd int, local netip.Addr) uint8 {
	level, name := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	if local.Is4() {
		level, name = unix.IPPROTO_IP, unix.IP_TTL
	}
	hops, _ := unix.GetsockoptInt(fd, level, name)
	return uint8(hops)
}

// setBuffer asks for a buffer, with privilege if the host's limit (net.core.rmem_max, wmem_max) is
// lower, and returns what was granted. The kernel doubles the number, for its own bookkeeping.
func setBuffer(fd, name, force, size int) int {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, size)
	granted, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name)
	if granted/2 < size && unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		granted, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, name)
	}
	return granted / 2
}

// domain returns the address family of the socket.
func domain(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// sockaddr returns the address in the kernel's form.
func sockaddr(to netip.AddrPort, scope uint32) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16(), ZoneId: scope}
}

// scopeOf returns the number of the interface of a link-local IPv6 address, 0 for any other
// address. Without a zone it must be an address of this host, on only one interface.
func scopeOf(addr netip.Addr) (uint32, error) {
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		return 0, nil
	}
	if addr.Zone() != "" {
		return zoneIndex(addr.Zone())
	}
	list, err := LocalAddresses()
	if err != nil {
		return 0, err
	}
	var scope uint32
	var found string
	for _, local := range list {
		switch {
		case local.Addr.WithZone("") != addr:
		case found != "":
			return 0, fmt.Errorf("interfaces %s and %s both have the address: write %s%%%s or %s%%%s",
				found, local.Interface, addr, found, addr, local.Interface)
		default:
			found, scope = local.Interface, uint32(local.Index)
		}
	}
	if found == "" {
		return 0, errors.New("no interface has this link-local address")
	}
	return scope, nil
}

// zoneIndex returns the number of an interface that is given by name or number.
func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifc, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("there is no interface %q", zone)
	}
	return uint32(ifc.Index), nil
}

// linkSpeed is the speed of an interface in Mbit/s; 0 if it is not known.
func linkSpeed(name string) int {
	text, err := os.ReadFile("/sys/class/net/" + name + "/speed")
	if err != nil {
		return 0
	}
	speed, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return 0
	}
	return max(0, speed) // -1 is "not known"
}

// rocePort is the UDP port of RoCEv2.
const rocePort = 4791

// listenError explains why a socket could not be opened or bound.
func listenError(local netip.AddrPort, errno error, sysfs fs.FS) error {
	e := &Error{Op: "listen", Local: local, Errno: errno}
	switch {
	case errors.Is(errno, unix.EADDRINUSE):
		e.Err, e.Detail = ErrPortTaken, portTaken(local.Port(), sysfs)
	case errors.Is(errno, unix.EADDRNOTAVAIL):
		e.Err = ErrNotLocal
		e.Detail = "no interface of this network namespace has it (an IPv6 address that was just added " +
			"takes a second or two)"
	case errors.Is(errno, unix.EACCES), errors.Is(errno, unix.EPERM):
		e.Err = ErrPermission
		e.Detail = "ports below 1024 take privilege (net.ipv4.ip_unprivileged_port_start), and a sandbox " +
			"may refuse sockets"
	case errors.Is(errno, unix.EAFNOSUPPORT):
		e.Err, e.Detail = ErrFamily, "this system has no IPv4"
		if !local.Addr().Is4() {
			e.Detail = "this system has no IPv6 (it may be off in the kernel's command line)"
		}
	case errors.Is(errno, unix.EMFILE), errors.Is(errno, unix.ENFILE):
		e.Detail = "each local address needs three descriptors: see the limit of open files (ulimit -n)"
	}
	return e
}

// portTaken explains which program may have a port, and what to do.
func portTaken(port uint16, sysfs fs.FS) string {
	const choose = "between two ends of this library another port will do: the same one at both"
	if port != rocePort {
		return fmt.Sprintf("another process of this network namespace has UDP port %d; %s", port, choose)
	}
	if _, err := fs.Stat(sysfs, "module/rdma_rxe"); err != nil {
		return "another process of this network namespace has UDP port 4791, that of RoCEv2 (the kernel's " +
			"rdma_rxe, which would take it too, is not loaded); " + choose
	}
	return "the kernel's rdma_rxe is loaded and takes UDP port 4791, that of RoCEv2, for itself, unless " +
		"another process of this network namespace has it; use the rxe device, or another network " +
		"namespace; " + choose
}
