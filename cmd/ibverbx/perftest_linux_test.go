package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs/roce"
)

// connectsAsClient connects to a waiting end as perftest's client does, with a queue pair on the
// NIC of a GID. It says the keys of that queue pair as often as repeat says: ib_write_lat does 4
// times before its messages.
func connectsAsClient(t *testing.T, address string, gid netip.Addr, repeat int) *net.TCPConn {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	text := append([]byte("6.06"), make([]byte, 12)...)
	text = binary.BigEndian.AppendUint32(text, 4096) // page size
	text = binary.BigEndian.AppendUint32(text, 64)   // cache line
	text = append(text, "3\x00"...)                  // path MTU
	keys := "0000:0001:000007:000001:00002001:0000000000001000:"
	for _, c := range gid.As16() {
		keys += fmt.Sprintf("%02x:", c)
	}
	for range repeat {
		text = append(text, keys+"00000000:\x00"...)
	}
	if _, err := nc.Write(text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return nc.(*net.TCPConn)
}

// TestPerftestTrafficClass reads --tclass from the packets of a roce NIC.
func TestPerftestTrafficClass(t *testing.T) {
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 51), Port: roce.Port})
	if err != nil {
		t.Skip(err) // rdma_rxe has the port
	}
	defer peer.Close()
	raw, err := peer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	})
	if failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	waiting, address := listening(t,
		"perftest ib_write_lat --listen=127.0.0.1:0 --provider roce --tclass 104")
	nc := connectsAsClient(t, address, netip.MustParseAddr("127.0.0.51"), 4)
	go func() { _, _ = io.Copy(io.Discard, nc) }()
	_ = peer.SetReadDeadline(time.Now().Add(10 * time.Second))
	var packet [2048]byte
	var control [64]byte
	_, n, _, _, err := peer.ReadMsgUDP(packet[:], control[:])
	if err != nil {
		t.Fatal(err)
	}
	all, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(all) != 1 || all[0].Header.Type != unix.IP_TOS || all[0].Data[0] != 104 {
		t.Errorf("%+v, %v: want a type of service of 104", all, err)
	}
	waiting.cancel()
	waiting.wait(t)
}

// TestPerftestThirdAddress sends nothing to an address that a peer names which is not its own,
// unless the user has named the NIC.
func TestPerftestThirdAddress(t *testing.T) {
	addrs, err := roce.LocalAddresses()
	if err != nil {
		t.Fatal(err)
	}
	if len(addrs) == 0 || !addrs[0].Is4() || addrs[0].IsLoopback() {
		t.Skip("needs an address that is not a loopback one")
	}
	here, third := addrs[0], addrs[0].Next()
	refusal := fmt.Sprintf("the peer is connected from %v, and its GID is that of %v", here, third)
	for _, tt := range []struct {
		device  string
		gid     netip.Addr
		refused bool
	}{
		{"", third, true},
		{"", netip.MustParseAddr("fd69:6276:7278:0:1234:ffff:" + third.String()), true},
		{"", netip.MustParseAddr("fd69:6276:7278:0:1234:ffff:" + here.String()), false},
		{" --device " + here.String(), third, false},
	} {
		want := "the peer closed the connection"
		if tt.refused {
			want = refusal
		}
		waiting, address := listening(t, fmt.Sprintf("perftest ib_write_lat --listen=%v:0 --provider roce%s",
			here, tt.device))
		nc := connectsAsClient(t, address, tt.gid, 2)
		_ = nc.CloseWrite()
		go func() { _, _ = io.Copy(io.Discard, nc) }()
		code, _, errs := waiting.wait(t)
		if code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("GID %v%s: exit %d, stderr %q, want %q", tt.gid, tt.device, code, errs, want)
		}
	}
}
