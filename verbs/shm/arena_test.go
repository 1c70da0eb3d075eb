//go:build linux

package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/verbstest"
)

func (h *half) withArena(tb testing.TB) *half {
	tb.Helper()
	if err := h.useArena(); err != nil {
		tb.Fatal(err)
	}
	return h
}

// useArena gives a half memory of AllocMemory in place of its own.
func (h *half) useArena() error {
	memory, err := h.pd.(verbs.MemoryAllocator).AllocMemory(len(h.buf))
	if err == nil {
		err = h.mr.Close()
	}
	if err == nil {
		h.buf, h.memory = memory.Bytes(), memory
		h.mr, err = h.pd.RegisterMR(h.buf, verbs.AccessAll)
	}
	return err
}

// halves are two NICs of this process whose queue pairs are connected. The second has an arena.
func halves(tb testing.TB) (a, b *half) {
	tb.Helper()
	p := openNICs(tb, Config{Devices: 2})
	var ends [2]*half
	for i := range ends {
		var err error
		if ends[i], err = newHalf(p.Device(i)); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := ends[i].close(); err != nil {
				tb.Error(err)
			}
		})
	}
	a, b = ends[0], ends[1].withArena(tb)
	if err := errors.Join(a.connect(b.address()), b.connect(a.address())); err != nil {
		tb.Fatal(err)
	}
	return a, b
}

// granted uses the peer's key until this end is granted the region.
func (h *half) granted(t *testing.T, to address) {
	t.Helper()
	q := h.qp.(*QP)
	reaches := func() bool {
		h.dev.mu.Lock()
		defer h.dev.mu.Unlock()
		return q.reach(&nic.SendSlot{Opcode: verbs.OpRDMAWrite, Length: 8, RemoteAddr: to.Addr,
			RKey: to.RKey}) != nil
	}
	for deadline := time.Now().Add(30 * time.Second); !reaches(); {
		if time.Now().After(deadline) {
			t.Fatal("the region is not granted")
		}
		h.do(t, h.request(int(verbs.OpRDMAWrite), 8, to))
		time.Sleep(10 * time.Microsecond)
	}
}

// published is how many slots a half has published.
func (h *half) published() uint64 {
	h.dev.mu.Lock()
	defer h.dev.mu.Unlock()
	return h.qp.(*QP).out.published
}

// Once the key of a region has been used, this end writes, reads and adds in it itself.
func TestArena(t *testing.T) {
	a, b := halves(t)
	to := b.address()
	a.granted(t, to)
	before := a.published()
	for i, n := range []int{1, 4, 8, 32, 33, 4096, 65537, 1 << 20, halfBytes} {
		verbstest.Fill(a.buf[halfBytes:], byte(i))
		a.do(t, a.request(int(verbs.OpRDMAWrite), n, to))
		if !bytes.Equal(b.buf[:n], a.buf[halfBytes:][:n]) {
			t.Fatalf("%d bytes were not written", n)
		}
		back := a.request(int(verbs.OpRDMARead), n, to)
		back.RemoteAddr = to.Addr
		clear(a.buf[:halfBytes])
		a.do(t, back)
		if !bytes.Equal(b.buf[:n], a.buf[:n]) {
			t.Fatalf("%d bytes were not read", n)
		}
	}
	clear(b.buf[halfBytes:][:8])
	for i := range byte(3) {
		a.do(t, a.request(int(verbs.OpAtomicFetchAdd), 8, to))
		if b.buf[halfBytes] != i+1 || a.buf[0] != i {
			t.Fatalf("an atomic found %d and left %d, want %d and %d", a.buf[0], b.buf[halfBytes], i, i+1)
		}
	}
	if n := a.published() - before; n != 0 {
		t.Errorf("%d requests took the ring", n)
	}
	if err := b.receive(1); err != nil {
		t.Fatal(err)
	}
	wr := a.request(int(verbs.OpRDMAWriteWithImm), 100000, to)
	verbstest.Fill(a.buf[halfBytes:], 9)
	if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	if wc := b.wait(t, 1)[0]; wc.Status != verbs.StatusSuccess || wc.ByteLen != 100000 || wc.Imm != wr.Imm ||
		!bytes.Equal(b.buf[:100000], a.buf[halfBytes:][:100000]) {
		t.Error(wc)
	}
	if n := a.published() - before; n != 1 {
		t.Errorf("a write with an immediate took %d slots", n)
	}
	a.wait(t, 1)
}

// Small requests share a hold, but not so many that the owner waits for long. Each call ends its
// last one, also if the queue pair fails in between.
func TestHolds(t *testing.T) {
	a, b := halves(t)
	const depth = 8 // of the completion queue, which overruns at the end
	a, b = a.sibling(t, depth), b.sibling(t, depth)
	if err := errors.Join(a.connect(b.address()), b.connect(a.address())); err != nil {
		t.Fatal(err)
	}
	a.granted(t, b.address())
	o := &a.qp.(*QP).out
	holds := func() uint64 {
		a.dev.mu.Lock()
		defer a.dev.mu.Unlock()
		if o.holds&1 != 0 {
			t.Errorf("hold %d goes on", o.holds)
		}
		return o.holds / 2
	}
	list := func(count, n int, flags verbs.SendFlags) []verbs.SendWR {
		wr := a.request(int(verbs.OpRDMAWrite), n, b.address())
		wr.Flags = flags
		return slices.Repeat([]verbs.SendWR{wr}, count)
	}
	for _, c := range []struct{ count, n, want int }{{1, 8, 1}, {64, 8, 1}, {500, 8, 8}, {100, 8192, 4},
		{1, 1 << 20, 4}, {3, 100_000, 2}} {
		before := holds()
		wrs := list(c.count, c.n, 0)
		wrs[c.count-1].Flags = verbs.SendSignaled
		if n, err := a.qp.PostSend(wrs); n != c.count {
			t.Fatal(n, err)
		}
		a.wait(t, 1)
		if got := holds() - before; got != uint64(c.want) {
			t.Errorf("%d times %d bytes took %d holds, want %d", c.count, c.n, got, c.want)
		}
	}
	_, _ = a.qp.PostSend(list(depth+2, 8, verbs.SendSignaled))
	if s := a.qp.State(); s != verbs.StateErr {
		t.Errorf("the queue pair is in %v", s)
	}
	holds()
}

// sibling makes a queue pair with the memory of another one, and a completion queue of its own.
func (h *half) sibling(tb testing.TB, depth int) *half {
	tb.Helper()
	s := *h
	var err error
	if s.cq, err = h.dev.CreateCQ(verbs.CQConfig{Depth: depth}); err != nil {
		tb.Fatal(err)
	}
	if s.qp, err = h.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 512}}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(s.qp.Close(), s.cq.Close()); err != nil {
			tb.Error(err)
		}
	})
	return &s
}

// What is written to an arena directly does not overtake what went before it through the ring, and
// what comes behind does not overtake it.
func TestOrderOfWays(t *testing.T) {
	a, b := halves(t)
	to := b.address()
	plain := make([]byte, 4096) // of the peer, and in no arena
	mr, err := b.pd.RegisterMR(plain, verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	a.granted(t, to)
	word := func(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
	for round := range uint64(200) {
		// The ring, then the arena, then a read of both by the ring, with the peer not polling.
		var wrs []verbs.SendWR
		for i := range 3 + round%40 {
			v := word(round<<32 | i)
			wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: v, Flags: verbs.SendInline,
				RemoteAddr: mr.Addr(), RKey: mr.RKey()},
				verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: v, Flags: verbs.SendInline,
					RemoteAddr: to.Addr, RKey: to.RKey})
		}
		wrs[len(wrs)-1].Flags |= verbs.SendSignaled
		if n, err := a.qp.PostSend(wrs); n != len(wrs) {
			t.Fatal(n, err)
		}
		first, second := nic.Word64(plain[:8]), nic.Word64(b.buf[:8])
		for done := false; !done; {
			// In this order: the arena's word may be no newer than the ring's that is read later.
			direct := atomic.LoadUint64(second)
			if ring := atomic.LoadUint64(first); direct > ring {
				t.Fatalf("the arena holds %#x, and the memory that was written before %#x", direct, ring)
			}
			var wcs [1]verbs.WC
			n, err := a.cq.Poll(wcs[:])
			if err != nil || n == 1 && wcs[0].Status != verbs.StatusSuccess {
				t.Fatal(err, wcs[0])
			}
			done = n == 1
		}
		if *first != *second {
			t.Fatalf("%#x and %#x", *first, *second)
		}
	}
}

// Completions come in the order of posting, whichever way the requests took.
func TestCompletionsOfWays(t *testing.T) {
	a, b := halves(t)
	to := b.address()
	a.granted(t, to)
	if err := b.receive(200); err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	for i := range 100 {
		var wrs []verbs.SendWR
		for j := range 8 {
			n := 1 + (i*8+j)*7919%300000
			if wr := a.request(i*8+j, n, to); wr.Opcode != verbs.OpSend && wr.Opcode != verbs.OpSendWithImm {
				wrs = append(wrs, wr)
			}
		}
		if n, err := a.qp.PostSend(wrs); n != len(wrs) {
			t.Fatal(n, err)
		}
		for _, wr := range wrs {
			wc := a.wait(t, 1)[0]
			if wc.ID != wr.ID || wc.Status != verbs.StatusSuccess {
				t.Fatalf("%v of %d, want that of %d", wc, wc.ID, wr.ID)
			}
			next++
		}
	}
}

// When a region of an arena is closed, no peer writes to it any more, also one that was writing.
func TestCloseUnderCopies(t *testing.T) {
	p := openNICs(t, Config{})
	for round := range 3 {
		h, err := newHalf(p.Device(0))
		if err != nil {
			t.Fatal(err)
		}
		h.withArena(t)
		c := spawn(t, "writer", h)
		await(t, "the peer writes", h.grants)
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		if err := h.mr.Close(); err != nil {
			t.Fatal(err)
		}
		clear(h.buf)
		time.Sleep(time.Millisecond) // a copy of 256 KiB takes some 20 microseconds
		if i := slices.IndexFunc(h.buf, func(b byte) bool { return b != 0 }); i >= 0 {
			t.Fatalf("round %d: byte %d was written behind the close", round, i)
		}
		_ = c.in.Close()
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("the peer: %v\n%s", err, c.err.String())
		}
		if h.mr, err = h.pd.RegisterMR(h.buf, verbs.AccessAll); err != nil {
			t.Fatal(err)
		}
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}
}

// grants reports whether the peer of a half accesses its memory itself.
func (h *half) grants() bool {
	h.dev.mu.Lock()
	defer h.dev.mu.Unlock()
	l := h.qp.(*QP).in.lane
	return l != nil && l.load(wordHold) != 0
}

// await waits until something is so.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
	}
}

// A peer that stops in the middle of a copy is waited for as long as for an answer. Then it loses
// its link, and what it still writes reaches nobody.
func TestStoppedInACopy(t *testing.T) {
	for name, ends := range map[string]bool{"for good": false, "for a while": true} {
		t.Run(name, func(t *testing.T) {
			s, p := attack(t)
			h := s.victim.withArena(t)
			verbstest.Fill(h.buf, 7)
			was := bytes.Clone(h.buf)
			s.connect()
			s.dial()
			s.open()
			q := h.qp.(*QP)
			h.dev.mu.Lock()
			q.core.Attr.Timeout, q.core.Attr.RetryCount = 12, 2 // some 50 ms
			h.dev.mu.Unlock()
			memory := s.grant(h.buf[0])
			s.lane.store(wordHold, 1)
			closed := make(chan error)
			go func() { closed <- h.mr.Close() }()
			await(t, "the grant is withdrawn", func() bool { return s.lane.load(wordGrants) == 4 })
			if ends {
				s.lane.store(wordHold, 2)
			}
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
			if !ends {
				clear(memory) // as if it went on
				if !bytes.Equal(h.buf, was) {
					t.Error("the peer has written behind the close")
				}
				if _, _, err := s.link.recv(); err == nil {
					t.Error("the link goes on")
				}
			} else if clear(memory[:8]); bytes.Equal(h.buf, was) {
				t.Error("the arena is retired, although the peer has ended its copy")
			}
			unmapMemory(memory)
			var err error
			if h.mr, err = h.pd.RegisterMR(h.buf, verbs.AccessAll); err != nil {
				t.Fatal(err)
			}
			s.end(p)
		})
	}
}

// grant has the victim grant its region, and maps the arena.
func (s *stranger) grant(first byte) []byte {
	s.t.Helper()
	h := s.victim
	s.lane.publish(0, &slot{op: verbs.OpRDMAWrite, flags: slotFirst | slotLast | slotInline, n: 1,
		rkey: h.mr.RKey(), addr: h.mr.Addr(), payload: [4]uint64{uint64(first)}})
	h.dev.poll.serve()
	b, fd, err := s.link.recv()
	if err != nil {
		s.t.Fatal(err)
	}
	defer closeFD(fd)
	var n note
	if err := n.decode(b); err != nil || n.kind != noteArena {
		s.t.Fatal(n, err)
	}
	memory, err := mapMemory(fd, int(n.size), true)
	if err != nil {
		s.t.Fatal(err)
	}
	return memory
}

// What was in an arena stays when it is closed, and lives as long as somebody refers to it.
func TestArenaStays(t *testing.T) {
	p := openNICs(t, Config{})
	pd, err := p.Device(0).AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	fds, maps := held(t)
	var kept [][]byte
	for i, n := range []int{1, 4096, 4097, 100_000, 9 << 20} {
		memory, err := pd.(verbs.MemoryAllocator).AllocMemory(n)
		if err != nil {
			t.Fatal(err)
		}
		b := memory.Bytes()
		if len(b) != n || addressOf(b)%uint64(os.Getpagesize()) != 0 ||
			slices.ContainsFunc(b, func(b byte) bool { return b != 0 }) {
			t.Fatalf("%d bytes at %#x, of %d", len(b), addressOf(b), n)
		}
		mr, err := pd.RegisterMR(b, verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		if err := memory.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("with an open region: %v", err)
		}
		if err := pd.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("the domain: %v", err)
		}
		verbstest.Fill(b, byte(i))
		if err := errors.Join(mr.Close(), memory.Close()); err != nil {
			t.Fatal(err)
		}
		if err := memory.Close(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("a second time: %v", err)
		}
		kept = append(kept, b)
	}
	if f, m := held(t); f != fds || m != maps {
		t.Errorf("%d descriptors and %d mappings are left, there were %d and %d", f, m, fds, maps)
	}
	runtime.GC()
	_ = make([]byte, 16<<20)
	for i, b := range kept {
		want := make([]byte, len(b))
		if verbstest.Fill(want, byte(i)); !bytes.Equal(b, want) {
			t.Errorf("%d bytes have changed", len(b))
		}
	}
	for _, n := range []int{0, -1, math.MaxInt, mostArena + 1} {
		memory, err := pd.(verbs.MemoryAllocator).AllocMemory(n)
		if memory != nil || !errors.Is(err, verbs.ErrInvalid) && !errors.Is(err, verbs.ErrNoMemory) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// A granted region permits what it was registered for, until it is closed. What it does not permit
// goes to its owner, who refuses.
func TestRightsOfArenas(t *testing.T) {
	for name, forbid := range map[string]func(*testing.T, verbs.MR, *verbs.SendWR){
		"closed": func(t *testing.T, m verbs.MR, _ *verbs.SendWR) {
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"a write to what may be read": func(_ *testing.T, _ verbs.MR, wr *verbs.SendWR) {
			wr.Opcode = verbs.OpRDMAWrite
		},
		"an atomic on what may be read": func(_ *testing.T, _ verbs.MR, wr *verbs.SendWR) {
			wr.Opcode = verbs.OpAtomicFetchAdd
		},
		"behind the end": func(_ *testing.T, _ verbs.MR, wr *verbs.SendWR) { wr.RemoteAddr += 4089 },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := halves(t)
			readable, err := b.pd.RegisterMR(b.buf[:4096], verbs.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			to := address{GID: b.dev.gid, QP: b.qp.Num(), Addr: readable.Addr(), RKey: readable.RKey()}
			wr := a.request(int(verbs.OpRDMARead), 8, to)
			wr.RemoteAddr = to.Addr
			await(t, "reads take no slot", func() bool {
				before := a.published()
				a.do(t, wr)
				return a.published() == before
			})
			before := bytes.Clone(b.buf)
			verbstest.Fill(a.buf, 3)
			forbid(t, readable, &wr)
			if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
			if wc := a.wait(t, 1)[0]; wc.Status != verbs.StatusRemAccessErr || !bytes.Equal(b.buf, before) {
				t.Error(wc)
			}
			if err := readable.Close(); err != nil && name != "closed" {
				t.Error(err)
			}
		})
	}
}
