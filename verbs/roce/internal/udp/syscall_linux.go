package udp

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is the package's gate to unsafe: memory that the kernel reads and writes by address.

// sendmmsg sends messages until one is refused, and returns how many it sent; an errno only if the
// first is refused.
func sendmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, syscall.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// recvmmsg receives into messages until none is left to receive, and returns how many it filled; an
// errno only if it filled none.
func recvmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, syscall.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// yieldThread offers the processor to other threads. It returns at once, so Go's scheduler need not
// know.
func yieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// gather appends a piece to a message's vector that begins at start. Pieces that lie side by side
// in memory become one. The vector has the capacity.
func gather(iov []unix.Iovec, start int, piece []byte) []unix.Iovec {
	if len(piece) == 0 {
		return iov
	}
	base := unsafe.SliceData(piece)
	if last := len(iov) - 1; last >= start &&
		uintptr(unsafe.Pointer(iov[last].Base))+uintptr(iov[last].Len) == uintptr(unsafe.Pointer(base)) {
		iov[last].SetLen(int(iov[last].Len) + len(piece))
		return iov
	}
	iov = append(iov, unix.Iovec{Base: base})
	iov[len(iov)-1].SetLen(len(piece))
	return iov
}

// point sets a message's vector.
func point(msg *unix.Msghdr, iov []unix.Iovec) {
	msg.Iov = unsafe.SliceData(iov)
	msg.SetIovlen(len(iov))
}

// controlSpace is the size of a control message that contains a number.
const controlSpace = 24

// putSegment writes the control message that makes the kernel cut a message into datagrams of size
// bytes, and returns its length.
func putSegment(control []byte, size int) int {
	data := putControl(control, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(data, uint16(size))
	return unix.CmsgSpace(2)
}

// putInt writes a control message whose value is an int, and returns its length.
func putInt(control []byte, level, kind int32, value int) int {
	binary.NativeEndian.PutUint32(putControl(control, level, kind, 4), uint32(value))
	return unix.CmsgSpace(4)
}

// putControl writes the header of a control message, and returns the room of its value.
func putControl(control []byte, level, kind int32, size int) []byte {
	header := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(control)))
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(size))
	return control[unix.CmsgLen(0):unix.CmsgLen(size)]
}

// readControl reads the control messages of a received message: the length of a burst's datagrams,
// 0 for a datagram by itself, and the ECN field.
func readControl(control []byte) (segment int, ecnField uint8) {
	for len(control) > unix.CmsgLen(0) {
		header := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(control)))
		end := int(header.Len)
		if end <= unix.CmsgLen(0) || end > len(control) {
			break
		}
		switch data := control[unix.CmsgLen(0):end]; {
		case header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(data) >= 4:
			segment = int(binary.NativeEndian.Uint32(data))
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TOS:
			ecnField = data[0] & ecn // one byte
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_TCLASS && len(data) >= 4:
			ecnField = uint8(binary.NativeEndian.Uint32(data)) & ecn
		}
		control = control[min(unix.CmsgSpace(end-unix.CmsgLen(0)), len(control)):]
	}
	return segment, ecnField
}

// meminfo reads the socket's memory counters (SO_MEMINFO).
func meminfo(fd uintptr) (info [unix.SK_MEMINFO_VARS]uint32, errno syscall.Errno) {
	size := uint32(unsafe.Sizeof(info))
	_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return info, errno
}
