package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// plain is a socket that sees all that a packet has of its Way.
type plain struct {
	t    *testing.T
	file *os.File
	at   netip.AddrPort
	v4   bool
}

const ipv6Flowinfo = 11 // IPV6_FLOWINFO of linux/in6.h

func newPlain(t *testing.T, local netip.AddrPort) *plain {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	p := &plain{t, file, conn.LocalAddr().(*net.UDPAddr).AddrPort(), local.Addr().Is4()}
	level, names := unix.IPPROTO_IPV6, []int{unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT, ipv6Flowinfo}
	if p.v4 {
		level, names = unix.IPPROTO_IP, []int{unix.IP_RECVTOS, unix.IP_RECVTTL}
	}
	for _, name := range names {
		p.set(level, name, 1)
	}
	return p
}

func (p *plain) set(level, name, value int) {
	p.t.Helper()
	if err := unix.SetsockoptInt(int(p.file.Fd()), level, name, value); err != nil {
		p.t.Fatal(err)
	}
}

// next is the way of the next packet.
func (p *plain) next() (w Way) {
	p.t.Helper()
	buf, control := make([]byte, 1<<16), make([]byte, 256)
	_, n, _, from, err := unix.Recvmsg(int(p.file.Fd()), buf, control, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		w.SourcePort = uint16(from.Port)
	case *unix.SockaddrInet6:
		w.SourcePort = uint16(from.Port)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range messages {
		switch {
		case p.v4 && m.Header.Type == unix.IP_TOS:
			w.TrafficClass = m.Data[0]
		case p.v4 && m.Header.Type == unix.IP_TTL, !p.v4 && m.Header.Type == unix.IPV6_HOPLIMIT:
			w.HopLimit = uint8(binary.NativeEndian.Uint32(m.Data))
		case !p.v4 && m.Header.Type == unix.IPV6_TCLASS:
			w.TrafficClass = uint8(binary.NativeEndian.Uint32(m.Data))
		case !p.v4 && m.Header.Type == ipv6Flowinfo:
			w.FlowLabel = binary.BigEndian.Uint32(m.Data) & flowLabels
		}
	}
	return w
}

// freePort is a port that nobody has.
func freePort(t *testing.T, local netip.AddrPort) uint16 {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// Packets and bursts have all of their Way, and nothing of it where the Way is the default one. The
// ECN field is not the Way's.
func TestWay(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		c, peer := open(t, Config{Local: local}), newPlain(t, local)
		port := freePort(t, local)
		for name, x := range map[string]traveled{
			"default": {way: Way{}, want: Way{SourcePort: c.LocalAddr().Port(), HopLimit: c.hopLimit}},
			"ECT": {way: Way{}, ect: true,
				want: Way{SourcePort: c.LocalAddr().Port(), TrafficClass: ECT0, HopLimit: c.hopLimit}},
			"all": {way: Way{SourcePort: port, TrafficClass: 0x6b, HopLimit: 17, FlowLabel: 0x54321},
				want: Way{SourcePort: port, TrafficClass: 0x68, HopLimit: 17, FlowLabel: 0x54321}},
			"all, ECT": {ect: true,
				way:  Way{SourcePort: port, TrafficClass: 0x69, HopLimit: 17, FlowLabel: 0x54321},
				want: Way{SourcePort: port, TrafficClass: 0x6a, HopLimit: 17, FlowLabel: 0x54321}},
		} {
			// While another run of these tests has a flow label for itself, and some seconds
			// after, the kernel refuses labels without a lease: see TestFlowLabelTaken.
			for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
				dropped, wrong := x.travel(t, c, peer)
				if wrong == "" {
					break
				}
				if !dropped || time.Now().After(end) {
					t.Errorf("%s: %s", name, wrong)
					break
				}
			}
		}
	})
}

// traveled is a Way, and what packets are to have of it.
type traveled struct {
	way, want Way
	ect       bool
}

// travel sends packets on the Way, and returns what they have not of it. Dropped says that the
// kernel refused the flow label.
func (x traveled) travel(t *testing.T, c *Conn, peer *plain) (dropped bool, wrong string) {
	t.Helper()
	d, err := c.NewDestination(peer.at, x.way)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if at := d.Source(); at != netip.AddrPortFrom(c.LocalAddr().Addr(), x.want.SourcePort) {
		wrong = fmt.Sprintf("source %v", at)
	}
	if peer.v4 {
		x.want.FlowLabel = 0
	}
	d.SetECT(!x.ect)
	d.SetECT(x.ect)
	packets, _ := packetsOf(100, 100, 100)
	for _, n := range []int{1, 3} { // alone and in a burst
		send(t, d, packets[:n], true)
		for range n {
			got := peer.next()
			if x.way.FlowLabel == 0 {
				got.FlowLabel = 0 // what the kernel chose
			}
			if got != x.want {
				wrong = fmt.Sprintf("a packet of %d has %+v, want %+v", n, got, x.want)
			}
		}
	}
	return x.want.FlowLabel != 0 && binary.BigEndian.Uint32(d.name[4:])&flowLabels == 0, wrong
}

// A flow label that a program has for itself is left out; the packets arrive.
func TestFlowLabelTaken(t *testing.T) {
	local, ok := loopbacks()["IPv6"]
	if !ok {
		t.Skip("no IPv6")
	}
	c, peer, owner := open(t, Config{Local: local}), newPlain(t, local), newPlain(t, local)
	const label = 0x12345
	lease := make([]byte, 32) // struct in6_flowlabel_req of linux/in6.h
	copy(lease, local.Addr().AsSlice())
	binary.BigEndian.PutUint32(lease[16:], label)
	lease[20], lease[21] = 0, 1                    // IPV6_FL_A_GET, IPV6_FL_S_EXCL
	binary.NativeEndian.PutUint16(lease[22:], 1|2) // IPV6_FL_F_CREATE, IPV6_FL_F_EXCL
	const manager = 32                             // IPV6_FLOWLABEL_MGR
	err := unix.SetsockoptString(int(owner.file.Fd()), unix.IPPROTO_IPV6, manager, string(lease))
	if err != nil {
		t.Skipf("the kernel leases no flow label: %v", err)
	}
	d, err := c.NewDestination(peer.at, Way{FlowLabel: label})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	packets, _ := packetsOf(100, 100)
	send(t, d, packets, true)
	for range packets {
		if got := peer.next(); got.FlowLabel == label {
			t.Errorf("a packet has %+v", got)
		}
	}
}

// Each ECN field that arrives is seen, with bursts and without.
func TestECN(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		for _, off := range []bool{false, true} {
			c, peer := open(t, Config{Local: local, DisableGRO: off}), newPlain(t, local)
			batch := c.NewBatch(0, 0)
			for _, want := range []uint8{NotECT, ECT1, ECT0, CE} {
				if peer.v4 {
					peer.set(unix.IPPROTO_IP, unix.IP_TOS, 0x68|int(want))
				} else {
					peer.set(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0x68|int(want))
				}
				to := sockaddr(c.LocalAddr(), 0)
				if err := unix.Sendto(int(peer.file.Fd()), []byte("hello"), 0, to); err != nil {
					t.Fatal(err)
				}
				if err := c.WaitReadable(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := batch.Recv(); err != nil {
					t.Fatal(err)
				}
				if got := batch.Datagrams[0].ECN; got != want {
					t.Errorf("ECN %d, want %d", got, want)
				}
			}
		}
	})
}

// Sources are made when they are asked for and closed with their last user. Beyond the most there
// are they are shared evenly, and where a port is taken too.
func TestSources(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		c := open(t, Config{Local: local})
		take := func(port uint16) *Destination {
			d, err := c.NewDestination(c.LocalAddr(), Way{SourcePort: port})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		taken := newPlain(t, local)
		if d := take(taken.at.Port()); d.Source() != c.LocalAddr() {
			t.Errorf("a port that is taken, and no other source: from %v", d.Source())
		}
		var all []*Destination
		ports := map[uint16]int{}
		for len(c.sources) < MaxSources {
			all = append(all, take(freePort(t, local)))
		}
		for range MaxSources {
			all = append(all, take(freePort(t, local)))
		}
		for _, d := range all {
			ports[d.Source().Port()]++
		}
		for port, users := range ports {
			if users != 2 || len(ports) != MaxSources {
				t.Errorf("%d ports, of which %d has %d users", len(ports), port, users)
			}
		}
		again := take(all[3].Source().Port())
		if again.from != all[3].from || again.from.users != 3 {
			t.Errorf("a port that is in use: %+v", again.from)
		}
		for _, d := range append(all, again) {
			d.Close()
			d.Close()
		}
		if len(c.sources) != 0 {
			t.Errorf("%d sources are left", len(c.sources))
		}
	})
}

// What is sent to a source takes no memory.
func TestSourceHearsNothing(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
		d, err := a.NewDestination(b.LocalAddr(), Way{SourcePort: freePort(t, local)})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		back, err := b.NewDestination(d.Source(), Way{})
		if err != nil {
			t.Fatal(err)
		}
		defer back.Close()
		packets, _ := packetsOf(1000)
		send(t, back, packets, false)
		_ = d.raw.Control(func(fd uintptr) {
			if info, errno := meminfo(fd); errno != 0 || info[unix.SK_MEMINFO_RMEM_ALLOC] != 0 {
				t.Errorf("it holds %d bytes (%v)", info[unix.SK_MEMINFO_RMEM_ALLOC], errno)
			}
		})
	})
}

// Who waits for the room of a source gets on when it has some, and when it is closed.
func TestWaitForSource(t *testing.T) {
	c := open(t, Config{Local: loopbacks()["IPv4"]})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	for err == nil { // a socket without room, which UDP over the loopback interface never is
		err = unix.Sendto(pair[0], make([]byte, 1000), 0, nil)
	}
	s := &source{file: os.NewFile(uintptr(pair[0]), "full"), users: 1}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	if err := c.writable.add(s.raw); err != nil {
		t.Fatal(err)
	}
	c.sources = append(c.sources, s)
	wait := func() chan error {
		c.hasNoRoom(s)
		done := make(chan error, 1)
		go func() { done <- c.WaitWritable(time.Time{}) }()
		parked(t, done)
		return done
	}
	done := wait()
	for err = nil; err == nil; {
		_, _, err = unix.Recvfrom(pair[1], make([]byte, 1000), unix.MSG_DONTWAIT)
	}
	if err := <-done; err != nil {
		t.Errorf("there is room: %v", err)
	}
	for err = nil; err == nil; {
		err = unix.Sendto(pair[0], make([]byte, 1000), 0, nil)
	}
	done = wait()
	c.giveSource(s)
	if err := <-done; err != nil {
		t.Errorf("it is closed: %v", err)
	}
}
