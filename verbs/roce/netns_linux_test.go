package roce

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inNamespace names the variable that is set in a process with a network of its own.
const inNamespace = "IBVERBX_TEST_NAMESPACE"

// enterNamespace runs the test in a process with a network of its own: a network namespace of a
// user namespace, which takes no privilege. In that process it returns true. In the one that began
// it has reported the outcome, and returns done; err says why a system lets nobody have that.
// args are flags of the test.
func enterNamespace(t *testing.T, args ...string) (inside, done bool, err error) {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		must(t, prepareLoopback())
		return true, false, nil
	}
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^" + t.Name() + "$", "-test.v"}, args...)...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 {
		return false, false, err
	}
	if err != nil || strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
	return false, true, nil
}

// The whole conformance suite over IPv6. A host has one loopback address of IPv6 only, and two NICs
// need two: the suite runs in a network namespace, whose loopback interface gets another one. Where
// a system forbids that, both NICs of the suite are the one at ::1.
func TestConformanceIPv6(t *testing.T) {
	if testing.Short() {
		t.Skip("as long as over IPv4, which runs")
	}
	addrs := []string{"::1"}
	switch inside, done, err := enterNamespace(t); {
	case done:
		return
	case inside:
		addrs = append(addrs, secondLoopback)
	default:
		t.Logf("no network namespace, so with one NIC at ::1: %v", err)
	}
	testConformance(t, addrs...)
}

// secondLoopback is a unique local address (RFC 4193).
const secondLoopback = "fd00:1b::2"

// prepareLoopback takes the loopback interface of a new network namespace up and gives it
// secondLoopback.
func prepareLoopback() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	flags, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	flags.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, flags); err != nil {
		return err
	}
	// struct in6_ifreq of linux/ipv6.h
	request := struct {
		addr   [16]byte
		prefix uint32
		index  int32
	}{[16]byte{0: 0xfd, 3: 0x1b, 15: 2}, 128, 1}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR,
		uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	// The kernel first looks whether somebody else has the address.
	for range 1000 {
		var conn net.PacketConn
		if conn, err = net.ListenPacket("udp6", "["+secondLoopback+"]:0"); err == nil {
			return conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
