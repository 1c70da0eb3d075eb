package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// Pieces that lie side by side in memory travel as one, within a message alone.
func TestGather(t *testing.T) {
	a, b := openPair(t)
	dest, packets := to(t, a, b), message()[:3]
	for segment, pieces := range map[bool]int{true: 7, false: 9} {
		if dest.stage(packets, segment); len(dest.iov) != pieces {
			t.Errorf("segment %t: %d pieces, not %d", segment, len(dest.iov), pieces)
		}
	}
	whole := []byte("header and payload|the same|and again")
	side := []Packet{{Header: whole[:7], Payload: whole[7:19]}, {Header: whole[19:28]}, {Header: whole[28:]}}
	send(t, dest, side, true)
	var got []byte
	for _, d := range receive(t, b, b.NewBatch(0, 0), len(side)) {
		got = append(got, d.data...)
	}
	if !bytes.Equal(got, whole) {
		t.Errorf("%q", got)
	}
}

// fake stands before the kernel.
type fake struct {
	calls  []string // "1 64": bursts of one packet and of 64
	refuse func(call int, segmented bool) (int, syscall.Errno)
}

func (f *fake) sendmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, syscall.Errno) {
	var call []string
	for i := range msgs {
		kind := "one"
		if msgs[i].Hdr.Controllen > 0 {
			kind = "burst"
		}
		call = append(call, kind)
	}
	f.calls = append(f.calls, strings.Join(call, " "))
	if n, errno := f.refuse(len(f.calls), msgs[0].Hdr.Controllen > 0); errno != 0 {
		return 0, errno
	} else if n > 0 {
		return sendmmsg(fd, msgs[:min(n, len(msgs))])
	}
	for i := range msgs {
		if i > 0 && msgs[i].Hdr.Controllen > 0 {
			return sendmmsg(fd, msgs[:i])
		}
	}
	return sendmmsg(fd, msgs)
}

// A kernel that refuses bursts gets the same packets one by one, none is lost or sent twice, and it
// is not asked again.
func TestBurstRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EIO, unix.EINVAL, unix.EOPNOTSUPP} {
		eachFamily(t, func(t *testing.T, local netip.AddrPort) {
			a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
			if !a.gso {
				t.Skip("this kernel has no GSO for UDP")
			}
			f := &fake{refuse: func(_ int, segmented bool) (int, syscall.Errno) {
				if segmented {
					return 0, errno
				}
				return 0, 0
			}}
			a.sendmmsg = f.sendmmsg
			dest := to(t, a, b)
			packets, whole := packetsOf(200, 100, 100, 100, 100, 50, 60)
			send(t, dest, append(packets[:1:1], packets[2:]...), true)
			whole = append(whole[:1:1], whole[2:]...)
			if dest.Segments() {
				t.Error("still believes in bursts")
			}
			send(t, dest, packets[2:4], true)
			whole = append(whole, whole[1], whole[2])
			if last := f.calls[len(f.calls)-1]; last != "one one" {
				t.Errorf("after the refusal asked for %q", last)
			}
			for i, got := range receive(t, b, b.NewBatch(0, 0), len(whole)) {
				if !bytes.Equal(got.data, whole[i]) {
					t.Errorf("datagram %d is not the one sent", i)
				}
			}
			if s := a.Stats(); s.GSORefused != 1 {
				t.Errorf("%+v", s)
			}
			if other := to(t, a, b); !other.Segments() {
				t.Error("a refusal on one way is one on all")
			}
		})
	}
}

// Packets that are refused one by one as well do not take the bursts away.
func TestPacketRefused(t *testing.T) {
	a, b := openPair(t)
	f := &fake{refuse: func(int, bool) (int, syscall.Errno) { return 0, unix.EMSGSIZE }}
	a.sendmmsg = f.sendmmsg
	dest := to(t, a, b)
	packets, _ := packetsOf(300, 300)
	n, err := dest.Send(packets, true)
	if n != 0 || !errors.Is(err, ErrTooLarge) || !errors.Is(err, unix.EMSGSIZE) || dest.Segments() != a.gso {
		t.Fatalf("%d, %v, segments %t", n, err, dest.Segments())
	}
	// The kernel is not asked what the path takes: senders hold locks.
	if says := err.Error(); !strings.Contains(says, "300 bytes of UDP payload; Conn.MTU says") ||
		strings.Contains(says, "65507") {
		t.Error(err)
	}
}

// Without room nothing is lost: Send says how far it came, and goes on from there.
func TestSendAgain(t *testing.T) {
	a, b := openPair(t)
	f := &fake{refuse: func(call int, _ bool) (int, syscall.Errno) {
		switch call {
		case 1:
			return 2, 0
		case 2:
			return 0, unix.EINTR
		case 3:
			return 0, unix.EAGAIN
		}
		return 0, 0
	}}
	a.sendmmsg = f.sendmmsg
	dest := to(t, a, b)
	packets, whole := packetsOf(10, 20, 30, 40, 50)
	n, err := dest.Send(packets, false)
	if n != 2 || !errors.Is(err, ErrAgain) {
		t.Fatalf("%d, %v", n, err)
	}
	if err := a.WaitWritable(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	send(t, dest, packets[n:], false)
	for i, got := range receive(t, b, b.NewBatch(0, 0), len(whole)) {
		if !bytes.Equal(got.data, whole[i]) {
			t.Errorf("datagram %d is not the one sent", i)
		}
	}
}

// A packet that the host drops is lost as one that the network drops.
func TestSendDropped(t *testing.T) {
	a, b := openPair(t)
	f := &fake{refuse: func(call int, _ bool) (int, syscall.Errno) {
		if call == 1 {
			return 0, unix.ENOBUFS
		}
		return 0, 0
	}}
	a.sendmmsg = f.sendmmsg
	packets, whole := packetsOf(10, 10, 20)
	send(t, to(t, a, b), packets, true)
	if got := receive(t, b, b.NewBatch(0, 0), 1); !bytes.Equal(got[0].data, whole[2]) {
		t.Error("not the packet behind the burst")
	}
	if s := a.Stats(); a.gso && s.SendDropped != 2 {
		t.Errorf("%+v", s)
	}
}

// Send keeps nothing of the packets' memory.
func TestSendForgets(t *testing.T) {
	a, b := openPair(t)
	dest := to(t, a, b)
	packets, _ := packetsOf(many(100, 100)...)
	send(t, dest, packets, false)
	for i, piece := range dest.iov[:cap(dest.iov)] {
		if piece.Base != nil {
			t.Fatalf("piece %d of the last Send is still held", i)
		}
	}
}

// Several goroutines send over one Conn to their own destinations at once, while others receive,
// and read the counters: every receiver gets all of its packets in their order.
func TestConcurrentSends(t *testing.T) {
	const peers, rounds, burst = 4, 40, 8
	local := loopbacks()["IPv4"]
	near := open(t, Config{Local: local})
	var senders, receivers sync.WaitGroup
	for range peers {
		far := open(t, Config{Local: local})
		dest, batch := to(t, near, far), far.NewBatch(0, 0)
		turn := make(chan struct{}, 8) // rounds on the way
		senders.Go(func() {
			for round := range rounds {
				turn <- struct{}{}
				packets := make([]Packet, burst)
				for i := range packets {
					header := binary.BigEndian.AppendUint32(nil, uint32(round*burst+i))
					packets[i] = Packet{Header: header, Payload: make([]byte, 1000)}
				}
				if n, err := dest.Send(packets, round%2 == 0); n != burst || err != nil {
					t.Errorf("sent %d: %v", n, err)
				}
				_ = near.Stats()
			}
		})
		receivers.Go(func() {
			for next := uint32(0); next < rounds*burst; {
				_, err := batch.Recv()
				if errors.Is(err, ErrAgain) {
					err = far.WaitReadable(time.Now().Add(20 * time.Second))
				}
				if err != nil {
					t.Errorf("packet %d: %v", next, err)
					return
				}
				for _, d := range batch.Datagrams {
					if got := binary.BigEndian.Uint32(d.Data); got != next || d.From != near.LocalAddr() {
						t.Errorf("packet %d from %v, not %d", got, d.From, next)
						return
					}
					if next++; next%burst == 0 {
						<-turn
					}
				}
			}
		})
	}
	senders.Wait()
	receivers.Wait()
}

// Close ends whatever goes on, and nothing after it reaches another descriptor.
func TestCloseWhileBusy(t *testing.T) {
	for range 20 {
		a, b := openPair(t)
		var all sync.WaitGroup
		until := func(end func() error) {
			all.Go(func() {
				for {
					switch err := end(); {
					case errors.Is(err, verbs.ErrClosed):
						return
					case err != nil && !errors.Is(err, ErrAgain):
						t.Error(err)
						return
					}
				}
			})
		}
		batch, there, back := b.NewBatch(0, 0), to(t, a, b), to(t, b, a)
		packets, _ := packetsOf(many(10, 100)...)
		until(func() error { _, err := there.Send(packets, true); return err })
		until(func() error { _, err := back.Send(packets, true); return err })
		until(func() error { _, err := batch.Recv(); return err })
		until(func() error { return b.WaitReadable(time.Time{}) })
		until(func() error { return a.WaitWritable(time.Time{}) })
		a.Close()
		b.Close()
		all.Wait()
	}
}
