package transport_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/transport"
)

// A million small and a thousand large puts, interleaved, to two peers: every completion once and
// in order, the data there, and no queue overrun.
func TestAMillionPutsToTwoPeers(t *testing.T) {
	small, large := 1_000_000, 1000
	if testing.Short() {
		small, large = 20_000, 20
	}
	const size = 1 << 20
	s := setup{memory: size + 1<<16, cfg: transport.Config{BounceBuffers: 32}}
	l := newLink(t, s)
	other, _ := l.another(transport.EndpointConfig{})
	ends := []*end{l.a, other}
	var posted, fired [2]uint32
	pool := [2][]*transport.Completion{}
	order := map[*transport.Completion]uint32{} // which of its peer's puts each stands for
	done := [2]func(*transport.Completion){}
	for i := range done {
		done[i] = func(c *transport.Completion) {
			if c.Err() != nil || order[c] != fired[i] {
				t.Errorf("peer %d: completion %d fired in place of %d: %v", i, order[c], fired[i], c.Err())
			}
			fired[i]++
			c.Init(1, done[i])
			pool[i] = append(pool[i], c)
		}
		for range 80 {
			c := transport.NewCompletion(1, done[i])
			order[c] = 0
			pool[i] = append(pool[i], c)
		}
	}
	step := func(i int, call func(c *transport.Completion) error) {
		for {
			if n := len(pool[i]); n != 0 {
				c := pool[i][n-1]
				order[c] = posted[i]
				err := call(c)
				if err == nil {
					pool[i] = pool[i][:n-1]
					posted[i]++
					return
				}
				if err != transport.ErrNoResource {
					t.Fatal(err)
				}
			}
			if l.a.w.Progress() == 0 {
				runtime.Gosched()
			}
		}
	}
	var number [8]byte
	for n := range small {
		i := n % 2
		e := ends[i]
		if n%(small/large) == 0 {
			step(i, func(c *transport.Completion) error {
				_, err := e.PutZcopy(c, e.peer.Slice(0, size), e.mr.Slice(0, size))
				return err
			})
		}
		at := size + uint64(n%8192)*8
		binary.LittleEndian.PutUint64(number[:], uint64(n))
		if n%3 == 0 {
			copy(l.a.mem[at:], number[:]) // no other put within the window sends from there
			step(i, func(c *transport.Completion) error {
				_, err := e.PutZcopy(c, e.peer.Slice(at, 8), e.mr.Slice(at, 8))
				return err
			})
			continue
		}
		for {
			err := e.PutShort(number[:], e.peer.Slice(at, 8))
			if err == nil {
				break
			} else if err != transport.ErrNoResource {
				t.Fatal(err)
			}
			if l.a.w.Progress() == 0 {
				runtime.Gosched()
			}
		}
	}
	for _, e := range ends {
		must(t, e.Flush(within(t), transport.FlushRemote))
	}
	if posted != fired {
		t.Errorf("posted %v, fired %v", posted, fired)
	}
	for n := small - 8192; n < small; n++ {
		if got := binary.LittleEndian.Uint64(l.b.mem[size+n%8192*8:]); got != uint64(n) {
			t.Fatalf("put %d: its word is %d", n, got)
		}
	}
	landed(t, "large puts", l.b.mem[:size], l.a.mem[:size])
}

// Put, fence, a flag: the target, which polls on the flag alone, never sees it before the data.
func TestAFlagBehindAFenceIsSeenAfterTheData(t *testing.T) {
	for _, s := range []setup{shapes()[0], shapes()[1], shapes()[2], shapes()[3]} {
		t.Run(s.name, func(t *testing.T) {
			sizes := []int{1, 7, 8, 9, 100, 4095, 4096, 4097, 10_000, 65_536, 300_001, 1_000_000}
			repeats := 50
			if testing.Short() {
				repeats = 3
			}
			s.memory = 1_000_000 + 64
			s.cfg.QP.FragmentSize = 64 << 10
			l := newLink(t, s)
			const head, tail = 0, 1_000_048
			flag := func(at int) *uint64 { return word(l.b.mem[at:]) }
			for _, size := range sizes {
				for round := range repeats {
					stamp := byte(round*31 + size)
					for i := range size {
						l.a.mem[8+i] = stamp
					}
					seen := make(chan bool, 1)
					value := uint64(size)<<32 | uint64(round) + 1
					go func() {
						deadline := time.Now().Add(patience)
						for atomic.LoadUint64(flag(tail)) != value || atomic.LoadUint64(flag(head)) != value {
							if runtime.Gosched(); time.Now().After(deadline) {
								break
							}
						}
						seen <- bytes.Count(l.b.mem[8:8+size], []byte{stamp}) == size
					}()
					comp := transport.NewCompletion(1, nil)
					if _, err := l.a.PutZcopy(comp, l.a.peer.At(8),
						l.a.mr.Slice(8, uint64(size))); err != nil {
						t.Fatal(err)
					}
					l.a.Fence()
					var raised [8]byte
					binary.NativeEndian.PutUint64(raised[:], value)
					must(t, l.a.PutShort(raised[:], l.a.peer.At(head)))
					must(t, l.a.PutShort(raised[:], l.a.peer.At(tail)))
					must(t, l.a.w.Wait(within(t), comp))
					must(t, l.a.Flush(within(t), transport.FlushLocal))
					if !<-seen {
						t.Fatalf("%d bytes, round %d: the flags are there and the data is not", size, round)
					}
				}
			}
		})
	}
}
