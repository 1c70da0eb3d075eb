package roce

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ibverbx/verbs/roce/internal/wire"
)

// sniffer records what the loopback interface of a network namespace carries, as the kernel hands
// it to every program that captures: through an AF_PACKET socket.
type sniffer struct {
	fd     int
	frames [][]byte // of Ethernet
	seen   [256]atomic.Bool
	err    error
	ended  chan struct{}
	stop   chan struct{}
}

// sniff begins to record.
func sniff(t *testing.T) *sniffer {
	t.Helper()
	const everything = unix.ETH_P_ALL << 8 // in network order, on the hosts that tests run on
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, everything)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: 1}))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20))         // what the system allows
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)) // each comes twice
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	s := &sniffer{fd: fd, ended: make(chan struct{}), stop: make(chan struct{})}
	go s.record()
	t.Cleanup(func() { unix.Close(fd) })
	return s
}

// record records until it is stopped and nothing is left.
func (s *sniffer) record() {
	defer close(s.ended)
	b := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(s.fd, b, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			select {
			case <-s.stop:
				return
			default:
			}
		case err != nil:
			s.err = err
			return
		default:
			s.frames = append(s.frames, append([]byte(nil), b[:n]...))
			if at := opcodeAt(b); at < n {
				s.seen[b[at]].Store(true)
			}
		}
	}
}

// has reports whether a packet with that opcode was recorded.
func (s *sniffer) has(op wire.Opcode) bool { return s.seen[op].Load() }

// opcodeAt returns where the opcode of a RoCEv2 packet lies in a frame.
func opcodeAt(frame []byte) int {
	const ethernet, ip4, ip6, udp = 14, 20, 40, 8
	if frame[ethernet]>>4 == 4 {
		return ethernet + ip4 + udp
	}
	return ethernet + ip6 + udp
}

// end ends recording, and returns the frames and how many others the kernel had no room for.
func (s *sniffer) end(t *testing.T) (frames [][]byte, missed uint32) {
	t.Helper()
	close(s.stop)
	<-s.ended
	must(t, s.err)
	stats, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	must(t, err)
	return s.frames, stats.Drops
}

// writeCapture writes frames as a file of pcap (draft-ietf-opsawg-pcap).
func writeCapture(t *testing.T, name string, frames [][]byte) {
	t.Helper()
	const ethernet, snap = 1, 1 << 18
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(b, snap)
	b = le.AppendUint32(b, ethernet)
	for i, f := range frames {
		b = le.AppendUint32(b, uint32(i/1e6))
		b = le.AppendUint32(b, uint32(i%1e6))
		b = le.AppendUint32(b, uint32(len(f)))
		b = le.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	must(t, os.WriteFile(name, b, 0o600))
}

// turnOffBursts lets the loopback interface of a network namespace cut bursts into packets before
// they are seen, as every link does on the way to the wire: otherwise a capture has them whole, and
// no dissector knows where one packet ends. It is ethtool's "tx-udp-segmentation off".
func turnOffBursts(t *testing.T) {
	t.Helper()
	const (
		getStringSet, getStrings, setFeatures = 0x37, 0x1b, 0x3b // linux/ethtool.h
		features, nameLen                     = 4, 32
	)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	call := func(b []byte) {
		t.Helper()
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{name: [unix.IFNAMSIZ]byte{'l', 'o'}, data: unsafe.Pointer(&b[0])}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
			uintptr(unsafe.Pointer(&request))); errno != 0 {
			t.Fatal(errno)
		}
	}
	ne := binary.NativeEndian
	b := make([]byte, 32)
	ne.PutUint32(b, getStringSet)
	ne.PutUint64(b[8:], 1<<features)
	call(b)
	count := int(ne.Uint32(b[16:]))
	names := make([]byte, 12+count*nameLen)
	ne.PutUint32(names, getStrings)
	ne.PutUint32(names[4:], features)
	call(names)
	words := (count + 31) / 32
	set := make([]byte, 8+8*words) // for 32 features each which are meant, and what they shall be
	ne.PutUint32(set, setFeatures)
	ne.PutUint32(set[4:], uint32(words))
	found := false
	for i := range count {
		if unix.ByteSliceToString(names[12+i*nameLen:][:nameLen]) == "tx-udp-segmentation" {
			ne.PutUint32(set[8+i/32*8:], 1<<(i%32))
			found = true
		}
	}
	if !found {
		t.Fatal("the kernel knows no tx-udp-segmentation")
	}
	call(set)
}
