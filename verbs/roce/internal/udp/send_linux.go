package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// stagedPackets is the number of packets for one sendmmsg; the last burst may exceed it. More than
// 8 messages per call gain nothing.
const stagedPackets = 64

// Destination is a peer's address, with everything needed to send to it. It belongs to one
// goroutine at a time.
type Destination struct {
	conn    *Conn
	from    *source         // nil is the socket of the Conn
	raw     syscall.RawConn // the socket
	addr    netip.AddrPort
	name    [unix.SizeofSockaddrInet6]byte // the address as the kernel takes it
	nameLen uint32

	segments bool // bursts were not refused yet

	way     Way
	ect     bool
	marks   [2 * controlSpace]byte // control messages of every message
	marksOf int                    // bytes of marks that are in use

	// The messages of one sendmmsg. They grow as Send needs, and are reused.
	msgs    []unix.Mmsghdr
	iov     []unix.Iovec
	control []byte // messageControl for each message
	bursts  []int  // packets in each message

	call  func(fd uintptr) // made once, as a closure for each call would be an allocation
	sent  int              // messages
	errno syscall.Errno
}

// messageControl is the room of the control messages of a message.
const messageControl = 3 * controlSpace

// NewDestination prepares to send to an address. The address must be of the family of the local
// one; a link-local one without a zone is on the interface of the local address. Close the
// Destination after use.
func (c *Conn) NewDestination(to netip.AddrPort, way Way) (*Destination, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	scope, err := c.check("destination", to)
	if err != nil {
		return nil, err
	}
	d := &Destination{conn: c, raw: c.raw, addr: to, segments: c.gso, way: way}
	if d.from = c.takeSource(way.SourcePort); d.from != nil {
		d.raw = d.from.raw
	}
	if to.Addr().Is4() {
		d.nameLen = unix.SizeofSockaddrInet4
		binary.NativeEndian.PutUint16(d.name[0:], unix.AF_INET)
		addr := to.Addr().As4()
		copy(d.name[4:], addr[:])
	} else {
		d.nameLen = unix.SizeofSockaddrInet6
		binary.NativeEndian.PutUint16(d.name[0:], unix.AF_INET6)
		addr := to.Addr().As16()
		copy(d.name[8:], addr[:])
		binary.NativeEndian.PutUint32(d.name[24:], scope)
		binary.BigEndian.PutUint32(d.name[4:], way.FlowLabel&flowLabels)
	}
	binary.BigEndian.PutUint16(d.name[2:], to.Port())
	d.mark()
	d.call = func(fd uintptr) { d.sent, d.errno = d.conn.sendmmsg(fd, d.msgs) }
	return d, nil
}

// flowLabels are the bits of a flow label.
const flowLabels = 1<<20 - 1

// mark lays out the control messages for everything that differs from the kernel's defaults.
func (d *Destination) mark() {
	n := 0
	level, class, hops := int32(unix.IPPROTO_IPV6), int32(unix.IPV6_TCLASS), int32(unix.IPV6_HOPLIMIT)
	if d.addr.Addr().Is4() {
		level, class, hops = unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL
	}
	tc := d.way.TrafficClass &^ ecn
	if d.ect {
		tc |= ECT0
	}
	if tc != 0 {
		n += putInt(d.marks[n:], level, class, int(tc))
	}
	if h := d.way.HopLimit; h != 0 && h != d.conn.hopLimit {
		n += putInt(d.marks[n:], level, hops, int(h))
	}
	d.marksOf = n
}

// check refuses addresses that the socket cannot send to, and returns the zone of others.
func (c *Conn) check(op string, to netip.AddrPort) (scope uint32, err error) {
	e := &Error{Op: op, Local: c.local, Remote: to, Err: verbs.ErrInvalid}
	addr := to.Addr()
	switch {
	case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast():
		e.Detail = "a destination is one concrete address"
	case to.Port() == 0:
		e.Detail = "a destination has a port"
	case addr.Is4() != c.local.Addr().Is4():
		e.Err, e.Detail = ErrFamily, "one is IPv4 and the other IPv6"
	case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		if c.scope != 0 {
			return c.scope, nil
		}
		e.Detail = "a link-local address needs a zone, such as %eth0, where the local address is not " +
			"link-local"
	case addr.Zone() != "":
		if scope, err = zoneIndex(addr.Zone()); err == nil {
			return scope, nil
		}
		e.Detail = err.Error()
	default:
		return 0, nil
	}
	return 0, e
}

// Addr is the destination's address.
func (d *Destination) Addr() netip.AddrPort { return d.addr }

// Source is the address that packets leave from.
func (d *Destination) Source() netip.AddrPort {
	if d.from == nil {
		return d.conn.local
	}
	return netip.AddrPortFrom(d.conn.local.Addr(), d.from.port)
}

// Close ends the use of the Destination. Nothing is sent to it any more.
func (d *Destination) Close() {
	d.conn.giveSource(d.from)
	d.from = nil
}

// SetECT sets whether packets leave with ECT(0) from now on, which says that the sender reacts to
// CE.
func (d *Destination) SetECT(on bool) {
	if d.ect != on {
		d.ect = on
		d.mark()
	}
}

// Segments reports whether Send sends bursts when it is allowed to.
func (d *Destination) Segments() bool { return d.segments }

// Send sends packets in order, as bursts (see [Burst]) where segment and the kernel allow it, and
// returns how many it has sent. It does not wait: when the socket has no room it returns ErrAgain
// after the packets that did fit. Send the others after [Conn.WaitWritable]. A packet that the host
// itself drops counts as sent ([Stats].SendDropped). Any other error concerns the first packet that
// was not sent.
func (d *Destination) Send(packets []Packet, segment bool) (n int, err error) {
	segment = segment && d.segments
	var refused bool // the kernel refused a burst: for being one, or for a packet in it
	for n < len(packets) {
		d.stage(packets[n:], segment)
		if err := d.raw.Control(d.call); err != nil {
			d.release(packets)
			return n, verbs.ErrClosed
		}
		first := d.bursts[0]
		for _, burst := range d.bursts[:d.sent] {
			n += burst
		}
		switch {
		case d.errno == 0 && refused:
			// The kernel took the packets one by one that it had refused as a burst.
			refused, d.segments = false, false
			d.conn.gsoRefused.Add(1)
		case d.errno == 0, d.errno == unix.EINTR:
		case d.errno == unix.EAGAIN:
			d.conn.hasNoRoom(d.from)
			d.release(packets)
			return n, ErrAgain
		case d.errno == unix.ENOBUFS:
			d.conn.sendDropped.Add(uint64(first))
			n += first
		case d.errno == unix.EINVAL && d.dropLabel():
		case first > 1 && refusesBurst(d.errno):
			segment, refused = false, true
		default:
			d.release(packets)
			return n, d.failed(packets[n].Len())
		}
	}
	d.release(packets)
	return n, nil
}

// dropLabel removes the flow label, and reports whether there was one. Kernels before 5.3, and
// those on which a program has an exclusive label, refuse labels that were not requested first.
func (d *Destination) dropLabel() bool {
	label := d.name[4:8] // in IPv4 the address
	if d.addr.Addr().Is4() || binary.BigEndian.Uint32(label) == 0 {
		return false
	}
	clear(label)
	return true
}

// refusesBurst reports whether a kernel uses the error to refuse a burst whose packets it may take.
func refusesBurst(errno syscall.Errno) bool {
	switch errno {
	case unix.EIO, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOPROTOOPT, unix.EMSGSIZE:
		return true
	}
	return false
}

// stage lays out the first packets for one sendmmsg.
func (d *Destination) stage(packets []Packet, segment bool) {
	clear(d.iov)
	d.reserve(min(len(packets), stagedPackets), segment)
	d.msgs, d.iov, d.bursts = d.msgs[:0], d.iov[:0], d.bursts[:0]
	for staged := 0; staged < min(len(packets), stagedPackets); {
		burst := 1
		if segment {
			burst = Burst(packets[staged:])
		}
		start := len(d.iov)
		for i := staged; i < staged+burst; i++ {
			d.iov = gather(d.iov, start, packets[i].Header)
			d.iov = gather(d.iov, start, packets[i].Payload)
			d.iov = gather(d.iov, start, packets[i].Trailer)
		}
		m := len(d.msgs)
		d.msgs = append(d.msgs, unix.Mmsghdr{})
		msg := &d.msgs[m].Hdr
		msg.Name, msg.Namelen = &d.name[0], d.nameLen
		point(msg, d.iov[start:])
		if burst > 1 || d.marksOf != 0 {
			control := d.control[m*messageControl : (m+1)*messageControl]
			length := copy(control, d.marks[:d.marksOf])
			if burst > 1 {
				length += putSegment(control[length:], packets[staged].Len())
			}
			msg.Control = &control[0]
			msg.SetControllen(length)
		}
		d.bursts = append(d.bursts, burst)
		staged += burst
	}
}

// reserve makes room for the given number of packets, and for the burst of the last one: staged
// packets must not move, because messages point at them.
func (d *Destination) reserve(packets int, segment bool) {
	pieces := 3 * packets
	if segment && packets > 1 {
		pieces += 3 * (MaxSegments - 1)
	}
	if cap(d.iov) < pieces {
		d.iov = make([]unix.Iovec, 0, pieces)
	}
	if cap(d.msgs) < packets {
		d.msgs = make([]unix.Mmsghdr, 0, packets)
		d.bursts = make([]int, 0, packets)
		d.control = make([]byte, packets*messageControl)
	}
}

// release drops the packets' memory, which would otherwise live as long as the Destination.
func (d *Destination) release(packets []Packet) {
	clear(d.iov)
	runtime.KeepAlive(packets)
}

// failed returns the error of a packet of so many bytes. It does not query the path MTU, because
// senders may hold a lock.
func (d *Destination) failed(size int) error {
	e := &Error{Op: "send", Local: d.conn.local, Remote: d.addr, Errno: d.errno}
	switch d.errno {
	case unix.EMSGSIZE:
		e.Err, e.Detail = ErrTooLarge, fmt.Sprintf("%d bytes of UDP payload; Conn.MTU "+
			"says what the path takes: choose a smaller path MTU", size)
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EADDRNOTAVAIL, unix.ENODEV:
		e.Err, e.Detail = ErrUnreachable, "no route from the local address, or its link is down"
	case unix.EPERM, unix.EACCES:
		e.Err, e.Detail = ErrPermission, "a firewall of this host refuses it, or the address is a broadcast"
	}
	return e
}
