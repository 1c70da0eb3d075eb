package roce

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// Anybody can send "fragmentation needed" with the addresses and ports of two NICs in it, and the
// kernel believes it. A connection that is up goes on with its path MTU, and new ones come up.
func TestForgedPathMTU(t *testing.T) {
	switch inside, done, err := enterNamespace(t); {
	case done:
		return
	case !inside:
		t.Skipf("no network namespace to send raw packets in: %v", err)
	}
	for name, addrs := range map[string][3]string{
		"IPv4": {"127.0.0.1", "127.0.0.2", "198.51.100.9"},
		"IPv6": {"::1", secondLoopback, "2001:db8::9"},
	} {
		t.Run(name, func(t *testing.T) {
			p := openNICs(t, Config{}, addrs[0], addrs[1])
			const size = 1 << 16
			pair := newNodes(t, p.Device(0), p.Device(1), size)
			a, b := pair[0], pair[1]
			a.post(t, a.write(b, 1, size))
			a.succeed(t)
			forgeTooBig(t, a.dev.local, b.dev.local)
			if learned := cachedMTU(t, a.dev.local, b.dev.local); learned > 1280 {
				t.Fatalf("the kernel did not believe it: it still has %d bytes for the way", learned)
			}
			a.post(t, a.write(b, 2, size))
			a.succeed(t)
			if c := a.dev.Counters(); c.Unsendable != 0 {
				t.Errorf("the socket refused %d packets", c.Unsendable)
			}
			must(t, a.dev.CheckPath(1, b.dev.gid))
			again, peer := a.newQP(t), b.newQP(t)
			defer again.Close()
			defer peer.Close()
			if err := verbstest.Connect(again, peer, verbstest.ConnectConfig{Port: 1}); err != nil {
				t.Errorf("a new connection: %v", err)
			}
			late := openNICs(t, Config{Port: 4790}, addrs[0]).Device(0)
			if attr, err := late.QueryPort(1); err != nil || attr.ActiveMTU != verbs.MTU4096 {
				t.Errorf("a new NIC: %v, %v", attr.ActiveMTU, err)
			}
			// What the host's administrator says of a route holds, whatever the network says.
			far := netip.AddrPortFrom(netip.MustParseAddr(addrs[2]), Port)
			ip := exec.Command("ip", "route", "add", addrs[2], "dev", "lo", "mtu", "2000")
			if out, err := ip.CombinedOutput(); err != nil {
				t.Skipf("%v: %v: %s", ip, err, out)
			}
			for range 2 {
				path, err := a.dev.link.MTU(far)
				if must(t, err); path.IP != 2000 || path.SameHost {
					t.Errorf("a route of 2000 bytes to another host: %+v", path)
				}
				forgeTooBig(t, a.dev.local, far)
			}
		})
	}
}

// forgeTooBig sends the ICMP message that a router sends when a packet between two sockets does not
// fit its next link.
func forgeTooBig(t *testing.T, from, to netip.AddrPort) {
	t.Helper()
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	var packet []byte
	if from.Addr().Is4() {
		packet = append(packet, 3, 4, 0, 0, 0, 0)           // fragmentation needed, RFC 1191
		packet = binary.BigEndian.AppendUint16(packet, 600) // the next link's MTU
		packet = append(packet, 0x45, 0, 16, 60, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	} else {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
		packet = append(packet, 2, 0, 0, 0)                  // packet too big, RFC 4443
		packet = binary.BigEndian.AppendUint32(packet, 1280) // the least of IPv6
		packet = append(packet, 0x60, 0, 0, 0, 16, 40, unix.IPPROTO_UDP, 64)
	}
	packet = append(packet, from.Addr().AsSlice()...)
	packet = append(packet, to.Addr().AsSlice()...)
	packet = binary.BigEndian.AppendUint16(packet, from.Port())
	packet = binary.BigEndian.AppendUint16(packet, to.Port())
	packet = append(packet, 16, 40, 0, 0) // UDP's length, and no checksum
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	must(t, err)
	defer unix.Close(fd)
	// The kernel fills in ICMPv6's checksum itself.
	if from.Addr().Is4() {
		binary.BigEndian.PutUint16(packet[2:], internetChecksum(packet))
		must(t, unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: from.Addr().As4()}))
	} else {
		must(t, unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: from.Addr().As16()}))
	}
}

// internetChecksum is that of RFC 1071, over an even number of bytes.
func internetChecksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// cachedMTU is what the kernel's cache of routes has for a way.
func cachedMTU(t *testing.T, from, to netip.AddrPort) int {
	t.Helper()
	family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU
	var local, remote unix.Sockaddr
	if from.Addr().Is4() {
		local = &unix.SockaddrInet4{Addr: from.Addr().As4()}
		remote = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU
		local = &unix.SockaddrInet6{Addr: from.Addr().As16()}
		remote = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, local))
	must(t, unix.Connect(fd, remote))
	mtu, err := unix.GetsockoptInt(fd, level, option)
	must(t, err)
	return mtu
}
