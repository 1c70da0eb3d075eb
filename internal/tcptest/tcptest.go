// Package tcptest gives tests TCP connections and free addresses on the loopback interface.
package tcptest

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// Pair returns the two ends of a TCP connection. They are closed when the test ends.
func Pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return a, b
}

// FreeAddr returns an address at which nobody listens, and neither at its next port. It draws a
// loopback address, and takes a port outside the ephemeral range: a free port of 127.0.0.1 would
// stay free only until another test connects from it.
func FreeAddr(t testing.TB) netip.AddrPort {
	t.Helper()
	for range 100 {
		drawn := rand.Uint32()
		ip := netip.AddrFrom4([4]byte{127, byte(drawn>>16) | 1, byte(drawn >> 8), byte(drawn) | 1})
		addr := netip.AddrPortFrom(ip, 7471)
		// Do not listen to find out: a process that another test forks at that moment would keep
		// the listening socket open for a while.
		c, err := net.Dial("tcp", addr.String())
		if errors.Is(err, syscall.ECONNREFUSED) {
			return addr
		}
		if err == nil {
			_ = c.Close()
		}
	}
	t.Fatal("no free address")
	return netip.AddrPort{}
}
