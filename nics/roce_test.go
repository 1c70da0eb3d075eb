package nics_test

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// Two ends that meet at an address connect over two NICs each, with failover, and one of them loses
// the link of a NIC while it writes: all bytes arrive, and Stats says what was lost.
func TestConnectWithFailover(t *testing.T) {
	a := open(t, nics.Config{Provider: nics.RoCE, Devices: "127.0.0.61,127.0.0.62"})
	b := open(t, nics.Config{Provider: nics.RoCE, Devices: "127.0.0.63,127.0.0.64"})
	cfg := ibverbx.Config{Failover: true, Failback: -1, QPsPerDevice: 2, FragmentSize: 16 << 10,
		Conn: ibverbx.ConnConfig{Timeout: 13, RetryCount: 2}}
	left, right := met(t)
	var from, to *ibverbx.VirtualQP
	var errA, errB error
	var both sync.WaitGroup
	both.Go(func() { from, errA = a.Connect(t.Context(), left, cfg) })
	to, errB = b.Connect(t.Context(), right, cfg)
	both.Wait()
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	src, dst := make([]byte, 4<<20), make([]byte, 4<<20)
	for i := range src {
		src[i] = byte(i ^ i>>8 ^ i>>16)
	}
	srcMR := must(from.Domain().Register(src, verbs.AccessLocalWrite))
	dstMR := must(to.Domain().Register(dst, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))

	const pieces = 64
	nic := from.Domain().Devices()[1].(*roce.Device)
	var wcs [16]ibverbx.WC
	size := uint64(len(src) / pieces)
	for i, sent, received := uint64(0), 0, 0; sent < pieces || received < pieces; i++ {
		if i < pieces {
			must(to.PostRecv(ibverbx.RecvWR{ID: i}))
			must(from.PostSend(ibverbx.SendWR{ID: i, Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(i),
				Flags: verbs.SendSignaled, Local: srcMR.Slice(i*size, size),
				Remote: dstMR.Remote().Slice(i*size, size)}))
		}
		if i == pieces/2 {
			nic.SetLink(false)
		}
		sent += succeeded(t, from.CQ(), wcs[:])
		received += succeeded(t, to.CQ(), wcs[:])
		if i > pieces {
			time.Sleep(time.Millisecond)
		}
		if i > 20_000 {
			t.Fatalf("%d sent, %d received of %d", sent, received, pieces)
		}
	}
	if !bytes.Equal(src, dst) {
		t.Error("what arrived is not what was sent")
	}
	if s := from.Stats(); s.RailsLost == 0 || s.RailsLost != to.Stats().RailsLost {
		t.Errorf("%d and %d rails were lost", s.RailsLost, to.Stats().RailsLost)
	}
	for _, err := range []error{srcMR.Close(), dstMR.Close(), from.Close(), to.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

// succeeded polls, and counts.
func succeeded(t *testing.T, cq *ibverbx.VirtualCQ, wcs []ibverbx.WC) int {
	t.Helper()
	n, err := cq.Poll(wcs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range wcs[:n] {
		if err := wcs[i].Status.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// at is the NIC at an address; nil if there is none. There must not be two.
func at(t *testing.T, devices []verbs.Device, addr string) (found *roce.Device) {
	t.Helper()
	for _, d := range devices {
		if nic := d.(*roce.Device); nic.Addr().Addr() == netip.MustParseAddr(addr) {
			if found != nil {
				t.Errorf("two NICs at %s: %v and %v", addr, found.Addr(), nic.Addr())
			}
			found = nic
		}
	}
	return found
}

// The NIC that reaches a peer is one of those that the host lists, whichever is asked for first: a
// second one at its address would have another UDP port, or none.
func TestListingAndReaching(t *testing.T) {
	for _, listFirst := range []bool{true, false} {
		h := open(t, nics.Config{Provider: nics.RoCE})
		a, _ := met(t)
		var all, reaching []verbs.Device
		for _, list := range []bool{listFirst, !listFirst} {
			var err error
			if list {
				all, err = h.Devices()
			} else {
				reaching, err = h.Reaching(a)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(reaching) != 1 || at(t, all, "127.0.0.1") != reaching[0] {
			t.Errorf("listed first %v: %v reaches the peer, of %v", listFirst, reaching, all)
		}
		if again, err := h.Devices(); err != nil || len(again) != len(all) {
			t.Errorf("%d NICs, then %d, %v", len(all), len(again), err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A host that is closed may be closed again, of whichever provider its NICs are.
func TestCloseTwice(t *testing.T) {
	for _, cfg := range []nics.Config{{Provider: nics.Soft}, {Provider: nics.RoCE},
		{Provider: nics.RoCE, Devices: "127.0.0.28"}} {
		h := open(t, cfg)
		for range 2 {
			if err := h.Close(); err != nil {
				t.Errorf("%s: %v", h, err)
			}
		}
	}
}
