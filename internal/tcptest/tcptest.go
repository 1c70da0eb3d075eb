// Package tcptest connects the two ends of a test.
package tcptest

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// Pair is two ends of a TCP connection, which the test need not close.
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

// FreeAddr is an address at which nobody listens, nor at the port after it: on a loopback address
// drawn for this call, at a port that no connection is given. A free port of 127.0.0.1 would do
// until another test connects from it.
func FreeAddr(t testing.TB) netip.AddrPort {
	t.Helper()
	for range 100 {
		drawn := rand.Uint32()
		ip := netip.AddrFrom4([4]byte{127, byte(drawn>>16) | 1, byte(drawn >> 8), byte(drawn) | 1})
		addr := netip.AddrPortFrom(ip, 7471)
		// Not by listening: a process that another test starts in that moment would keep the
		// listening socket for a while.
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
