package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// This file is the package's gate to the kernel and to unsafe: sealed memory, and sockets that
// carry it.

// words returns memory as words. It is a mapping, so it is aligned.
func words(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}

// yieldThread offers the processor to other threads. It returns at once, so Go's scheduler need not
// know.
func yieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// seals keep the size of shared memory as its maker chose it: who maps it takes no SIGBUS, whatever
// the other end does.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// fSealFutureWrite lets only the mappings that exist write (F_SEAL_FUTURE_WRITE, Linux 5.1).
const fSealFutureWrite = 0x10

// mfdNoExecSeal says that memory will never be a program (MFD_NOEXEC_SEAL, Linux 6.3). Some systems
// refuse memory without it (vm.memfd_noexec), and older ones do not know it.
const mfdNoExecSeal = 0x8

// newMemory makes sealed memory of size bytes, all zero, and maps it. The first populated bytes are
// taken from the system at once, so that a lack of memory is an error and not a killed process.
// With readOnly nobody else can map it to write.
func newMemory(size, populated int, readOnly bool) (mem []byte, fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if fd, err = unix.MemfdCreate("ibverbx", flags|mfdNoExecSeal); errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("ibverbx", flags)
	}
	if err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	mem, err = func() ([]byte, error) {
		if err := unix.Ftruncate(fd, int64(size)); err != nil {
			return nil, os.NewSyscallError("ftruncate", err)
		}
		if err := unix.Fallocate(fd, 0, 0, int64(populated)); err != nil {
			return nil, os.NewSyscallError("fallocate", err)
		}
		mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		if readOnly { // before the other seals, which forbid more; an older kernel does without
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, fSealFutureWrite)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			_ = unix.Munmap(mem)
			return nil, os.NewSyscallError("fcntl F_ADD_SEALS", err)
		}
		return mem, nil
	}()
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	return mem, fd, nil
}

// mapMemory maps the memory of a peer, which must be sealed and have the size. It leaves fd open.
func mapMemory(fd, size int, writable bool) ([]byte, error) {
	has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_GET_SEALS", err)
	}
	const shrink = unix.F_SEAL_SHRINK
	if has&shrink == 0 {
		return nil, errors.New("the peer's memory is not sealed against shrinking")
	}
	// Only now, since before the seal the size might have changed again.
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if stat.Size != int64(size) {
		return nil, fmt.Errorf("the peer's memory has %d bytes, not %d", stat.Size, size)
	}
	// Pages of hugetlbfs can run out when they are touched.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return nil, errors.New("the peer's memory is not that of memfd_create")
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// addressOf returns the address of the first byte.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// newArena makes sealed memory of n bytes, rounded up to pages, all zero and taken from the system
// at once. It lies in memory of the Go heap, in place of that memory's own pages, until unshare.
// The runtime never moves an object, and neither reads nor returns the pages of one that is in use.
// In race builds alias is a second mapping.
func newArena(n int) (mem, alias []byte, fd int, err error) {
	page := os.Getpagesize()
	size := (n + page - 1) &^ (page - 1)
	alias, fd, err = newMemory(size, size, false)
	if err != nil {
		return nil, nil, -1, err
	}
	if !guard.Race {
		unmapMemory(alias)
		alias = nil
	}
	mem = make([]byte, size+page)
	skip := int(-addressOf(mem) & uint64(page-1))
	mem = mem[skip : skip+size : skip+size]
	if err := place(mem, fd, unix.MAP_SHARED); err != nil {
		_ = unix.Close(fd)
		if alias != nil {
			unmapMemory(alias)
		}
		return nil, nil, -1, err
	}
	return mem, alias, fd, nil
}

// place maps a file in place of whole pages.
func place(mem []byte, fd, kind int) error {
	if _, _, errno := unix.Syscall6(unix.SYS_MMAP, uintptr(unsafe.Pointer(unsafe.SliceData(mem))),
		uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, uintptr(kind|unix.MAP_FIXED), uintptr(fd),
		0); errno != 0 {
		return os.NewSyscallError("mmap", errno)
	}
	return nil
}

// privatise keeps the bytes of an arena and gives it pages of its own. The program may access it
// meanwhile: from the moment of the mapping on, the first write to each page copies it, and here
// each page is written.
func privatise(mem []byte, fd int) error {
	if err := place(mem, fd, unix.MAP_PRIVATE); err != nil {
		return err
	}
	w := words(mem)
	for i := 0; i < len(w); i += os.Getpagesize() / 8 {
		atomic.AddUint64(&w[i], 0)
	}
	return nil
}

// unshare gives an arena back to the Go heap, with its bytes, and frees the shared pages. It goes
// in parts, so that little memory is needed twice.
func unshare(mem []byte, fd int) error {
	page := os.Getpagesize()
	part := max(len(mem)/8+page-1, 1<<20) &^ (page - 1)
	for at := 0; at < len(mem); at += part {
		n := min(part, len(mem)-at)
		fresh, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		copy(unsafe.Slice((*byte)(fresh), n), mem[at:])
		if _, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(fresh), uintptr(n), uintptr(n),
			unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(unsafe.Pointer(&mem[at])), 0); errno != 0 {
			_ = unix.MunmapPtr(fresh, uintptr(n))
			return os.NewSyscallError("mremap", errno)
		}
		const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		_ = unix.Fallocate(fd, punch, int64(at), int64(n)) // peers may keep it mapped for a while
	}
	return nil
}

func dupFD(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
}

func unmapMemory(mem []byte) { _ = unix.Munmap(mem) }

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// conn is one end of a socket between two processes, which carries messages with at most one file
// descriptor each. One goroutine receives; sending is safe at any time before close.
type conn struct {
	fd   int
	file *os.File
	raw  syscall.RawConn

	// What a receive works on, and its function, made once: bells allocate nothing.
	recvOnce func(fd uintptr) bool
	header   unix.Msghdr
	iov      unix.Iovec
	buf      [messageSize]byte
	control  [64]byte
	got      int
	gotErr   error
	ring     [1]byte // the message of bell
}

func newConn(fd int) (*conn, error) {
	c := &conn{fd: fd, file: os.NewFile(uintptr(fd), "ibverbx shm")}
	raw, err := c.file.SyscallConn()
	if err == nil {
		err = c.file.SetDeadline(time.Time{}) // a socket that Go's poller refuses would block
	}
	if err != nil {
		_ = c.file.Close()
		return nil, err
	}
	c.raw, c.recvOnce = raw, c.tryRecv
	return c, nil
}

// placeName begins the name of every meeting place.
const placeName = "ibverbx-shm-"

// meetingPlace returns the address of a device's socket: an abstract name, or a file in a
// directory.
func meetingPlace(dir string, gid verbs.GID) *unix.SockaddrUnix {
	if dir == "" {
		return &unix.SockaddrUnix{Name: fmt.Sprintf("@%s%x", placeName, gid[:])}
	}
	return &unix.SockaddrUnix{Name: fmt.Sprintf("%s/%s%x", dir, placeName, gid[:])}
}

// youngPlace is the age up to which a socket on which nobody listens may belong to a process that
// is about to.
const youngPlace = 10 * time.Second

// sweep removes from a directory the sockets of processes that were killed.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), placeName) || info.Mode().Type() != os.ModeSocket ||
			time.Since(info.ModTime()) < youngPlace {
			continue
		}
		fd, err := socket()
		if err != nil {
			return
		}
		name := dir + "/" + e.Name()
		if unix.Connect(fd, &unix.SockaddrUnix{Name: name}) == unix.ECONNREFUSED {
			_ = unix.Unlink(name)
		}
		_ = unix.Close(fd)
	}
}

func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fd, os.NewSyscallError("socket", err)
}

// checkPassing returns an error if the system does not let this process pass memory over a socket.
func checkPassing(mem int) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer closeFD(fds[0])
	to, err := newConn(fds[1])
	if err != nil {
		closeFD(fds[1])
		return err
	}
	defer to.close()
	if err := unix.Sendmsg(fds[0], to.ring[:], unix.UnixRights(mem), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	_, fd, err := to.recv()
	if closeFD(fd); err == nil && fd < 0 {
		err = os.NewSyscallError("recvmsg", unix.EPERM) // the message has come without the memory
	}
	return err
}

// listen opens the meeting place of a device.
func listen(dir string, gid verbs.GID) (*conn, error) {
	if dir != "" {
		sweep(dir)
	}
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(fd, meetingPlace(dir, gid)); err != nil {
		err = os.NewSyscallError("bind", err)
	} else if err = unix.Listen(fd, 512); err != nil {
		err = os.NewSyscallError("listen", err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return newConn(fd)
}

// leave removes what a meeting place leaves in a directory.
func leave(dir string, gid verbs.GID) {
	if dir != "" {
		_ = unix.Unlink(meetingPlace(dir, gid).Name)
	}
}

// accept waits for the next peer at a meeting place.
func (c *conn) accept() (*conn, error) {
	var fd int
	var err error
	failed := c.raw.Read(func(s uintptr) bool {
		fd, _, err = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return err != unix.EAGAIN
	})
	switch {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, os.NewSyscallError("accept4", err)
	}
	return newConn(fd)
}

// dial reaches a meeting place. errBusy says that its owner has not accepted earlier ones yet.
func dial(dir string, gid verbs.GID) (*conn, error) {
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, meetingPlace(dir, gid)); err != nil {
		_ = unix.Close(fd)
		switch err {
		case unix.EAGAIN:
			return nil, errBusy
		case unix.ECONNREFUSED, unix.ENOENT:
			return nil, errNobody
		}
		return nil, os.NewSyscallError("connect", err)
	}
	return newConn(fd)
}

// peerUID returns the user whose process made the other end.
func (c *conn) peerUID() (uint32, error) {
	cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return cred.Uid, nil
}

// setDeadline bounds the next receive.
func (c *conn) setDeadline(t time.Time) { _ = c.file.SetReadDeadline(t) }

// recv waits for a message. Its bytes are valid until the next call; fd is -1 if none came with it.
// At the end of the peer it returns errEnd.
func (c *conn) recv() (message []byte, fd int, err error) {
	if err := c.raw.Read(c.recvOnce); err != nil {
		return nil, -1, err
	}
	if c.gotErr != nil {
		return nil, -1, os.NewSyscallError("recvmsg", c.gotErr)
	}
	fd = c.passed()
	if c.got == 0 {
		closeFD(fd)
		return nil, -1, errEnd
	}
	return c.buf[:c.got], fd, nil
}

// tryRecv receives once; false if nothing has come.
func (c *conn) tryRecv(fd uintptr) bool {
	c.iov = unix.Iovec{Base: &c.buf[0], Len: uint64(len(c.buf))}
	c.header = unix.Msghdr{Iov: &c.iov, Iovlen: 1, Control: &c.control[0],
		Controllen: uint64(unix.CmsgSpace(4))}
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&c.header)),
		unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC) // it does not wait, so no signal interrupts it
	c.got, c.gotErr = int(n), nil
	if errno != 0 {
		c.got, c.gotErr = 0, errno
	}
	return errno != unix.EAGAIN
}

// passed returns the file descriptor that came with the last message; -1 if none did. There is room
// for one, and the kernel closes further ones.
func (c *conn) passed() int {
	n := int(c.header.Controllen)
	if n < unix.CmsgLen(4) {
		return -1
	}
	list, err := unix.ParseSocketControlMessage(c.control[:min(n, len(c.control))])
	if err != nil || len(list) == 0 {
		return -1
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) == 0 {
		return -1
	}
	for _, fd := range fds[1:] {
		_ = unix.Close(fd)
	}
	return fds[0]
}

// send waits until the socket takes a message, with a file descriptor unless fd is -1.
func (c *conn) send(message []byte, fd int) error {
	var control []byte
	if fd >= 0 {
		control = unix.UnixRights(fd)
	}
	for {
		var err error
		if failed := c.raw.Write(func(s uintptr) bool {
			_, err = unix.SendmsgN(int(s), message, control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return err != unix.EAGAIN
		}); failed != nil {
			return failed
		}
		if err != unix.ETOOMANYREFS { // the peer has not taken earlier descriptors yet
			return os.NewSyscallError("sendmsg", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// bell sends a message of one byte without waiting. If the socket is full, there is enough in it to
// wake the peer.
func (c *conn) bell() {
	_ = unix.Send(c.fd, c.ring[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// close ends the connection, and the calls that wait on it.
func (c *conn) close() { _ = c.file.Close() }

// userID returns the user of this process.
func userID() uint32 { return uint32(unix.Geteuid()) }
