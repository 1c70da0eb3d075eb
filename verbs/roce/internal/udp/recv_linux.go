package udp

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

const (
	// DefaultMessages is the number of datagrams or bursts that one Recv takes by default. On a
	// loopback interface, the difference to 8 was less than that between rounds.
	DefaultMessages = 16
	// MaxMessage is the longest datagram or burst that can arrive, and the default of a buffer.
	MaxMessage = 1 << 16
	// maxMessages is the kernel's limit for one call.
	maxMessages = 1024

	recvControl = 64 // bytes for control messages: UDP_GRO, and IP_TOS or IPV6_TCLASS
)

// Batch is memory to receive into. It belongs to one goroutine at a time.
type Batch struct {
	// Datagrams are those of the last Recv, in the order of arrival, valid until the next Recv.
	Datagrams []Datagram
	more      bool

	conn    *Conn
	size    int    // size of a buffer
	buffers []byte // size for each message
	names   []byte // unix.SizeofSockaddrInet6 for each message
	control []byte // recvControl for each message
	iov     []unix.Iovec
	msgs    []unix.Mmsghdr

	call     func(fd uintptr) // made once, as a closure for each call would be an allocation
	received int              // messages
	errno    syscall.Errno
}

// NewBatch makes a Batch for so many messages (datagrams, or bursts that the kernel hands over as
// one) of at most size bytes; 0 stands for [DefaultMessages] and for [MaxMessage]. A smaller size
// cuts bursts off. Memory is used only once something is received into it.
func (c *Conn) NewBatch(messages, size int) *Batch {
	if messages <= 0 {
		messages = DefaultMessages
	}
	if size <= 0 {
		size = MaxMessage
	}
	messages, size = min(messages, maxMessages), min(size, MaxMessage)
	b := &Batch{conn: c, size: size,
		Datagrams: make([]Datagram, 0, messages),
		buffers:   make([]byte, messages*size),
		names:     make([]byte, messages*unix.SizeofSockaddrInet6),
		control:   make([]byte, messages*recvControl),
		iov:       make([]unix.Iovec, messages),
		msgs:      make([]unix.Mmsghdr, messages),
	}
	for i := range b.msgs {
		b.iov[i].Base = &b.buffers[i*size]
		b.iov[i].SetLen(size)
		msg := &b.msgs[i].Hdr
		point(msg, b.iov[i:i+1])
		msg.Name, msg.Control = &b.names[i*unix.SizeofSockaddrInet6], &b.control[i*recvControl]
	}
	b.rearm(messages)
	b.call = func(fd uintptr) { b.received, b.errno = recvmmsg(fd, b.msgs) }
	return b
}

// Received returns Datagrams.
func (b *Batch) Received() []Datagram { return b.Datagrams }

// More reports whether the last Recv filled all messages, so that there may be more to receive. If
// not, nothing was left, and another Recv would be wasted.
func (b *Batch) More() bool { return b.more }

// rearm restores the lengths that the kernel overwrites, of the first messages.
func (b *Batch) rearm(messages int) {
	for i := range b.msgs[:messages] {
		msg := &b.msgs[i].Hdr
		msg.Namelen = unix.SizeofSockaddrInet6
		msg.SetControllen(recvControl)
	}
}

// Recv receives what has arrived, up to the Batch's size, into Datagrams, and returns their number.
// It does not wait: it returns ErrAgain when nothing has arrived.
func (b *Batch) Recv() (n int, err error) {
	b.Datagrams, b.more = b.Datagrams[:0], false
	for {
		if err := b.conn.raw.Control(b.call); err != nil {
			return 0, verbs.ErrClosed
		}
		switch b.errno {
		case 0:
			for i := range b.msgs[:b.received] {
				b.split(i)
			}
			b.rearm(b.received)
			b.more = b.received == len(b.msgs)
			if len(b.Datagrams) > 0 {
				return len(b.Datagrams), nil
			}
			// All were truncated: there may be more behind them.
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrAgain
		default:
			return 0, &Error{Op: "receive", Local: b.conn.local, Errno: b.errno}
		}
	}
}

// split appends the datagrams of a message.
func (b *Batch) split(i int) {
	msg := &b.msgs[i]
	data := b.buffers[i*b.size:][:msg.Len]
	from := addressOf(b.names[i*unix.SizeofSockaddrInet6:][:unix.SizeofSockaddrInet6])
	segment, ecnField := readControl(b.control[i*recvControl:][:msg.Hdr.Controllen])
	if msg.Hdr.Flags&unix.MSG_TRUNC != 0 {
		// The last datagram is cut off; earlier ones of a burst are whole.
		b.conn.recvTruncated.Add(1)
		if segment == 0 {
			return
		}
		data = data[:len(data)/segment*segment]
	}
	if segment == 0 || len(data) <= segment {
		if segment == 0 || len(data) > 0 {
			b.Datagrams = append(b.Datagrams, Datagram{Data: data[:len(data):len(data)], From: from,
				Bundle: 1, ECN: ecnField})
		}
		return
	}
	bundle := uint8(min((len(data)+segment-1)/segment, 255))
	for index := uint8(0); len(data) > 0; index++ {
		end := min(segment, len(data))
		b.Datagrams = append(b.Datagrams, Datagram{Data: data[:end:end], From: from, Index: index,
			Bundle: bundle, ECN: ecnField})
		data = data[end:]
	}
}

// addressOf returns the address that the kernel wrote, without a link-local zone.
func addressOf(name []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(name[2:])
	if binary.NativeEndian.Uint16(name) == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:24])), port)
}
