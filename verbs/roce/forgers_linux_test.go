package roce

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

var floodFlag = flag.Int("flood", 4000, "forged packets of TestFlood, over each family")

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
			router := newForger(t, a.dev.local.Addr())
			must(t, router.report(a.dev.local, b.dev.local, tooBig(a.dev.local, 600)))
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
				must(t, router.report(a.dev.local, far, tooBig(far, 600)))
			}
		})
	}
}

// A transfer goes on while somebody floods both NICs, from the peer's address and port, and forges
// what routers report. All bytes are right, and new connections come up.
func TestFlood(t *testing.T) {
	switch inside, done, err := enterNamespace(t, "-flood", fmt.Sprint(*floodFlag)); {
	case done:
		return
	case !inside:
		t.Skipf("no network namespace to send raw packets in: %v", err)
	}
	for name, addrs := range map[string][]string{
		"IPv4": {"127.0.0.1", "127.0.0.2"},
		"IPv6": {"::1", secondLoopback},
	} {
		t.Run(name, func(t *testing.T) {
			p := openNICs(t, Config{}, addrs...)
			const size = 1 << 19
			ends := [2]*node{newNode(t, p.Device(0), size), newNode(t, p.Device(1), size)}
			must(t, verbstest.Connect(ends[0].qp, ends[1].qp, patient))
			overWire(ends[:]...)
			var quiet, flooded rate
			for range 16 {
				quiet.transfer(t, ends)
			}
			f := newFlood(t, ends)
			go f.run()
			for rounds := 0; rounds < 16 || f.sent.Load() < int64(*floodFlag); rounds++ {
				flooded.transfer(t, ends)
				if rounds%4 == 0 {
					connectAnew(t, ends)
				}
			}
			must(t, f.end())
			t.Logf("%.0f MB/s without; with %d packets (%.0f a second): %.0f MB/s", quiet.mbs(),
				f.sent.Load(), float64(f.sent.Load())/f.took.Seconds(), flooded.mbs())
			for _, n := range ends {
				c := n.dev.Counters()
				t.Logf("%v: %+v", n.dev.local, c)
				if min(c.Malformed, c.Strangers, c.BadICRC, c.Unexpected) == 0 || c.Broken+c.Unsendable != 0 {
					t.Errorf("%v did not drop the flood: %+v", n.dev.local, c)
				}
			}
		})
	}
}

// patient connects queue pairs that survive a process that gets no processor for four seconds.
var patient = verbstest.ConnectConfig{Port: 1,
	Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.Timeout = 17 }}

// rate is what transfers have moved.
type rate struct {
	bytes int
	took  time.Duration
}

func (r *rate) mbs() float64 { return float64(r.bytes) / 1e6 / r.took.Seconds() }

// transfer writes a buffer to the other end, and reads it back.
func (r *rate) transfer(t *testing.T, ends [2]*node) {
	t.Helper()
	a, b := ends[0], ends[1]
	verbstest.Fill(a.buf, byte(r.bytes>>19))
	want := bytes.Clone(a.buf)
	move := func(op verbs.Opcode, to []byte) {
		began := time.Now()
		wr := a.write(b, 1, len(want))
		wr.Opcode = op
		a.post(t, wr)
		var wcs [1]verbs.WC
		for done := 0; done == 0; { // both ends poll, as programs do that want to be fast
			_, err := b.cq.Poll(nil)
			must(t, err)
			done, err = a.cq.Poll(wcs[:])
			must(t, err)
		}
		must(t, wcs[0].Status.Err())
		r.took += time.Since(began)
		r.bytes += len(want)
		if !bytes.Equal(to, want) {
			t.Fatalf("%v brought other bytes", op)
		}
	}
	move(verbs.OpRDMAWrite, b.buf)
	clear(a.buf)
	move(verbs.OpRDMARead, a.buf)
}

// connectAnew connects two new queue pairs of the ends, which carry a message.
func connectAnew(t *testing.T, ends [2]*node) {
	t.Helper()
	a, b := *ends[0], *ends[1]
	a.qp, b.qp = a.newQP(t), b.newQP(t)
	must(t, verbstest.Connect(a.qp, b.qp, patient))
	a.post(t, a.write(&b, 1, 64))
	a.succeed(t)
	must(t, cmp.Or(a.qp.Close(), b.qp.Close()))
}

// flood is junk for two ends that are connected.
type flood struct {
	*forger
	rng     *rand.Rand
	ends    [2]*node
	sources [2]netip.AddrPort // of the packets of each end
	began   [2]uint32         // with which number each end began
	sent    atomic.Int64
	took    time.Duration
	stop    chan struct{}
	ended   chan error
}

func newFlood(t *testing.T, ends [2]*node) *flood {
	f := &flood{forger: newForger(t, ends[0].dev.local.Addr()), ends: ends, rng: rand.New(rand.NewPCG(7, 7)),
		stop: make(chan struct{}), ended: make(chan error, 1)}
	for i, n := range ends {
		attr, err := n.qp.Query()
		must(t, err)
		f.sources[i], f.began[i] = n.qp.path.to.Source(), attr.SQPSN
	}
	return f
}

// run sends until end is called.
func (f *flood) run() {
	began := time.Now()
	for {
		select {
		case <-f.stop:
			f.took = time.Since(began)
			f.ended <- nil
			return
		default:
		}
		if err := f.forge(f.rng.IntN(2)); err != nil {
			f.ended <- err
			return
		}
		if f.sent.Add(1)%8 == 0 {
			runtime.Gosched()
		}
	}
}

func (f *flood) end() error {
	close(f.stop)
	return <-f.ended
}

// forge sends a packet to one of the ends. Its number is far from those that are under way: who
// tries all numbers meets one of these sooner or later, and may then end the connection (see the
// package comment).
func (f *flood) forge(to int) error {
	end, from, at := f.ends[to], f.sources[1-to], f.ends[to].dev.local
	far := uint32(1<<22 + f.rng.IntN(1<<23))
	h := wire.Header{DestQP: end.qp.Num(), PSN: f.began[1-to] + far, AckReq: f.rng.IntN(2) == 0,
		Addr: end.mr.Addr(), RKey: f.rng.Uint32(), Length: 64}
	payload := make([]byte, 64)
	request := func() []byte {
		h.Opcode = pick(f.rng, wire.WriteOnly, wire.WriteMiddle, wire.WriteOnlyImm, wire.SendOnly)
		h.Reserved = pick[uint8](f.rng, 0, wire.FromRequester, wire.Repeated)
		return seal(from, at, h, payload)
	}
	switch f.rng.IntN(8) {
	case 0: // random bytes
		junk := make([]byte, 2*f.rng.IntN(200))
		for i := range junk {
			junk[i] = byte(f.rng.Uint32())
		}
		return f.datagram(from, at, junk)
	case 1: // of somebody who does not know the way to the ICRC
		packet := request()
		packet[len(packet)-1-f.rng.IntN(4)]++
		return f.datagram(from, at, packet)
	case 2: // of another process of the peer's host, which knows everything
		h.RKey, h.PSN = end.mr.RKey(), f.began[1-to]+uint32(f.rng.IntN(1<<14))
		from = netip.AddrPortFrom(from.Addr(), from.Port()^1)
		return f.datagram(from, at, request())
	case 3:
		h.Opcode, h.Reserved = pick(f.rng, wire.ReadRequest, wire.FetchAdd), wire.FromRequester
		return f.datagram(from, at, seal(from, at, h, nil))
	case 4:
		h.Opcode, h.PSN, h.Reserved = wire.Acknowledge, f.began[to]+far, wire.FromResponder
		h.Syndrome = pick(f.rng, wire.Ack, wire.NakSequence, wire.NakRemoteAccess)
		return f.datagram(from, at, seal(from, at, h, nil))
	case 5:
		h.Opcode, h.PSN, h.Reserved = wire.ReadResponseOnly, f.began[to]+far, wire.FromResponder
		return f.datagram(from, at, seal(from, at, h, payload))
	case 6:
		if f.rng.IntN(2) == 0 {
			h = wire.Header{DestQP: h.DestQP, Opcode: wire.Congestion, Backward: true}
			return f.datagram(from, at, seal(from, at, h, nil))
		}
		// The end's own packets do not fit a link, or did not find the peer.
		own := pick(f.rng, f.sources[to], at)
		way := pick(f.rng, tooBig(at, 1280), tooBig(at, 600), tooBig(at, 0), unreachable(at))
		return f.report(own, f.ends[1-to].dev.local, way)
	}
	return f.datagram(from, at, request())
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// forger sends packets as another host would, with any address, and as a router would.
type forger struct {
	any, icmp int // sockets: for packets with their IP header, and for reports
}

func newForger(t *testing.T, at netip.Addr) *forger {
	t.Helper()
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if at.Is6() {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	var f forger
	var err error
	f.any, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	must(t, err)
	t.Cleanup(func() { unix.Close(f.any) })
	f.icmp, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	must(t, err)
	t.Cleanup(func() { unix.Close(f.icmp) })
	return &f
}

// problem is the first eight bytes of an ICMP message: type, code, the checksum, and the MTU.
type problem [8]byte

// tooBig says that a packet does not fit the next link: "fragmentation needed" of RFC 1191, and
// "packet too big" of RFC 4443, which knows no link below 1280.
func tooBig(to netip.AddrPort, mtu uint16) problem {
	if to.Addr().Is4() {
		return problem{3, 4, 6: byte(mtu >> 8), 7: byte(mtu)}
	}
	if mtu == 600 {
		mtu = 1280
	}
	return problem{2, 0, 6: byte(mtu >> 8), 7: byte(mtu)}
}

// unreachable says that nobody listens on the port.
func unreachable(to netip.AddrPort) problem {
	if to.Addr().Is4() {
		return problem{3, 3}
	}
	return problem{1, 4}
}

// report sends what a router says of a packet between two sockets.
func (f *forger) report(from, to netip.AddrPort, what problem) error {
	packet := append(what[:], headers(from, to, 4128)...)
	if from.Addr().Is4() { // of ICMPv6 the kernel makes the checksum
		binary.BigEndian.PutUint16(packet[2:], internetChecksum(packet))
	}
	return send(f.icmp, packet, from)
}

// datagram sends a packet with any source.
func (f *forger) datagram(from, to netip.AddrPort, payload []byte) error {
	packet := append(headers(from, to, len(payload)), payload...)
	if from.Addr().Is6() { // over IPv4 UDP's checksum may be missing
		length := uint16(8 + len(payload))
		pseudo := binary.BigEndian.AppendUint16(bytes.Clone(packet[8:]), length)
		sum := internetChecksum(append(pseudo, 0, unix.IPPROTO_UDP))
		binary.BigEndian.PutUint16(packet[46:], cmp.Or(sum, 0xffff))
	}
	return send(f.any, packet, to)
}

// send sends a packet through a raw socket, unless that is full.
func send(fd int, packet []byte, to netip.AddrPort) error {
	var at unix.Sockaddr = &unix.SockaddrInet6{Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		at = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	err := unix.Sendto(fd, packet, 0, at)
	if slices.Contains([]error{unix.ENOBUFS, unix.EAGAIN, unix.EINTR}, err) {
		return nil
	}
	return err
}

// headers is those of a datagram below its payload.
func headers(from, to netip.AddrPort, payload int) []byte {
	var b []byte
	length := uint16(8 + payload)
	if from.Addr().Is4() {
		b = binary.BigEndian.AppendUint16([]byte{0x45, 0}, 20+length)
		b = append(b, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	} else {
		b = binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, length)
		b = append(b, unix.IPPROTO_UDP, 64)
	}
	b = append(b, from.Addr().AsSlice()...)
	b = append(b, to.Addr().AsSlice()...)
	for _, field := range []uint16{from.Port(), to.Port(), length, 0} {
		b = binary.BigEndian.AppendUint16(b, field)
	}
	return b
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
