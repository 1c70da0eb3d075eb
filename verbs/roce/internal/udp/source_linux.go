package udp

import (
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// source is a socket on another port of the Conn's address, which only sends. Routers, NICs and
// hosts that spread traffic by ports give its packets a separate path. The Conn receives all
// answers.
//
// The Conn's mu guards users. A source without users is closed.
type source struct {
	port  uint16
	file  *os.File
	raw   syscall.RawConn
	users int // destinations
}

// MaxSources is how many ports beside its own a Conn sends from. Further ports share those.
const MaxSources = 16

// takeSource returns the socket that sends from a port; nil stands for that of the Conn.
func (c *Conn) takeSource(port uint16) *source {
	if port == 0 || port == c.local.Port() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.findSource(port)
	if s != nil {
		s.users++
	}
	return s
}

// findSource finds or makes the socket of a port. If no new one can be made, it returns the one
// with the fewest users.
func (c *Conn) findSource(port uint16) *source {
	var least *source
	for _, s := range c.sources {
		if s.port == port {
			return s
		}
		if least == nil || s.users < least.users {
			least = s
		}
	}
	if len(c.sources) == MaxSources || c.closed.Load() {
		return least
	}
	s, err := c.openSource(port)
	if err != nil {
		return least
	}
	c.sources = append(c.sources, s)
	return s
}

// openSource makes a socket that sends from a port.
func (c *Conn) openSource(port uint16) (*source, error) {
	addr := c.local.Addr()
	fd, err := unix.Socket(domain(addr), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &source{port: port, file: os.NewFile(uintptr(fd), "udp source")}
	if s.raw, err = s.file.SyscallConn(); err == nil {
		err = c.prepareSource(fd, netip.AddrPortFrom(addr, port))
	}
	if err == nil {
		err = c.writable.add(s.raw)
	}
	if err != nil {
		_ = s.file.Close()
		return nil, err
	}
	return s, nil
}

// prepareSource sets the options of a source, and binds it. A filter drops the packets that arrive
// there, which would otherwise wait in its receive buffer forever.
func (c *Conn) prepareSource(fd int, at netip.AddrPort) error {
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	filter := unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
		return err
	}
	for _, option := range required(at.Addr()) {
		if err := unix.SetsockoptInt(fd, option.level, option.name, option.value); err != nil {
			return err
		}
	}
	for _, option := range wanted(at.Addr()) {
		_ = unix.SetsockoptInt(fd, option.level, option.name, option.value)
	}
	_ = setBuffer(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, bufferSize)
	return unix.Bind(fd, sockaddr(at, c.scope))
}

// giveSource ends a use of a source.
func (c *Conn) giveSource(s *source) {
	if s == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.users--; s.users != 0 {
		return
	}
	if c.full == s { // a waiter for it would wait forever
		c.full = nil
		_ = c.writable.watch(c.raw)
	}
	c.sources = slices.DeleteFunc(c.sources, func(x *source) bool { return x == s })
	_ = s.file.Close()
}

// hasNoRoom records the socket that WaitWritable must wait for; nil stands for that of the Conn.
func (c *Conn) hasNoRoom(s *source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = s
}

// watchFull watches the socket that has no room.
func (c *Conn) watchFull() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full != nil {
		return c.writable.watch(c.full.raw)
	}
	return c.writable.watch(c.raw)
}
