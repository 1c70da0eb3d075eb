//go:build linux

package shm

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// stranger is a peer of a NIC that keeps to no rule.
type stranger struct {
	t       testing.TB
	gid     verbs.GID
	meeting *conn // where the victim dials it
	victim  *half
	link    *conn // that it has dialed
	lane    *lane // that it has made
}

// attack makes a victim with a queue pair in RTS that is connected to the stranger, and memory of
// which only the middle is registered.
func attack(t testing.TB) (*stranger, *Provider) {
	t.Helper()
	return attackIn(t, false)
}

// attackIn is attack with a victim whose memory is an arena.
func attackIn(t testing.TB, arena bool) (*stranger, *Provider) {
	t.Helper()
	p, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := p.Device(0)
	s := &stranger{t: t, gid: newGID(placeOf(""))}
	if s.meeting, err = listen("", s.gid); err != nil {
		t.Fatal(err)
	}
	if s.victim, err = newHalfOf(d, 3*victimBytes); err != nil {
		t.Fatal(err)
	}
	h := s.victim
	if arena {
		h.withArena(t)
	}
	if err := h.mr.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range h.buf {
		h.buf[i] = canary
	}
	h.mr, err = h.pd.RegisterMR(h.buf[victimBytes:2*victimBytes], verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

const (
	victimBytes = 4096
	strangerQP  = 99
	canary      = 0xc5
)

func (s *stranger) connect() {
	s.t.Helper()
	if err := s.victim.connect(address{GID: s.gid, QP: strangerQP}); err != nil {
		s.t.Fatal(err)
	}
	for i := range 8 {
		if _, err := s.victim.qp.PostRecv([]verbs.RecvWR{{ID: 1000 + uint64(i), SGL: []verbs.SGE{{
			Addr: s.victim.mr.Addr(), Length: victimBytes, LKey: s.victim.mr.LKey()}}}}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// dial introduces the stranger to the victim.
func (s *stranger) dial() {
	s.t.Helper()
	var err error
	if s.link, err = dial("", s.victim.dev.gid); err != nil {
		s.t.Fatal(err)
	}
	s.hello(s.link)
	_, fd, err := s.link.recv()
	if err != nil {
		s.t.Fatal(err)
	}
	defer closeFD(fd)
	if mem, err := mapMemory(fd, pageBytes, true); err == nil { // needs Linux 5.1
		unmapMemory(mem)
		s.t.Error("a peer can write to the page of a NIC")
	}
}

func (s *stranger) hello(c *conn) {
	s.t.Helper()
	page, fd, err := newMemory(pageBytes, pageBytes, true)
	if err != nil {
		s.t.Fatal(err)
	}
	defer closeFD(fd)
	unmapMemory(page)
	s.send(c, note{kind: noteHello, from: s.gid, to: s.victim.dev.gid}, fd)
}

func (s *stranger) send(c *conn, n note, fd int) {
	var b [messageSize]byte
	n.encode(&b)
	_ = c.send(b[:], fd) // the victim may have hung up
}

// open passes the victim a lane, and waits until it is attached.
func (s *stranger) open() {
	s.t.Helper()
	mem, fd, err := newMemory(laneBytes, windowAt, false)
	if err != nil {
		s.t.Fatal(err)
	}
	defer closeFD(fd)
	s.lane = newLane(mem, nil)
	s.send(s.link, note{kind: noteLane, id: 5, src: strangerQP, dst: s.victim.qp.Num()}, fd)
	for deadline := time.Now().Add(10 * time.Second); s.lane.load(wordState) == 0; {
		if time.Now().After(deadline) {
			s.t.Fatal("the victim does not take the lane")
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// check checks that the victim is whole: only its region was written, and its counters fit.
func (s *stranger) check() {
	s.t.Helper()
	h := s.victim
	if slices.ContainsFunc(h.buf[:victimBytes], func(b byte) bool { return b != canary }) ||
		slices.ContainsFunc(h.buf[2*victimBytes:3*victimBytes], func(b byte) bool { return b != canary }) {
		s.t.Error("memory outside of the region was written")
	}
	q := h.qp.(*QP)
	h.dev.mu.Lock()
	defer h.dev.mu.Unlock()
	if err := q.core.CheckInvariants(); err != nil {
		s.t.Error(err)
	}
}

// end closes everything, which must not hang.
func (s *stranger) end(p *Provider) {
	s.t.Helper()
	s.meeting.close()
	if s.link != nil {
		s.link.close()
	}
	if s.lane != nil {
		unmapMemory(s.lane.mem)
	}
	if err := errors.Join(s.victim.close(), p.Close()); err != nil {
		s.t.Error(err)
	}
}

// FuzzSlots lets a stranger write anything into the ring that the victim carries out. Each 34 bytes
// are a slot: what to make of it, and seven words of which some are replaced by plausible ones.
func FuzzSlots(f *testing.F) {
	f.Add(slices.Repeat([]byte{0xff}, 34*3))
	f.Add([]byte{15, 0, slotFirst | slotLast | slotInline, 0, 1, 0, 0, 33: 0})
	for op := range byte(8) {
		seed := make([]byte, 34*2)
		seed[0], seed[1], seed[2] = 0x0f, op, slotFirst|slotLast
		seed[34], seed[35], seed[36] = 0x07, op, slotFirst
		f.Add(seed)
		placed := slices.Clone(seed)
		placed[0], placed[34], placed[36] = 0x2f, 0x2b, slotFirst|slotLast|slotPlaced
		f.Add(placed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, p := attackIn(t, len(data) != 0 && data[0]&32 != 0)
		s.connect()
		s.dial()
		s.open()
		for number := uint64(0); len(data) >= 34 && number < 3*ringSlots; number++ {
			chunk := data[:34]
			data = data[34:]
			w := s.lane.slot(number)
			for i := range 4 {
				w[4+i] = binary.NativeEndian.Uint64(chunk[2+8*i:])
			}
			mode := chunk[0]
			w[1] = uint64(chunk[1]&0xf) | uint64(chunk[2])<<8 | uint64(chunk[3])<<32
			w[2], w[3] = w[4]^w[5], w[6]^w[7]
			if mode&1 != 0 {
				w[2] = s.victim.mr.Addr() + uint64(chunk[4])*16
			}
			if mode&2 != 0 {
				w[3] = uint64(s.victim.mr.RKey()) | uint64(chunk[5])<<36
			}
			if mode&4 != 0 {
				w[4], w[5] = uint64(chunk[6])*8, uint64(chunk[5])<<4+uint64(chunk[7]&1)
			}
			if mode&8 != 0 {
				w[3] = w[3]&^(0xffffffff<<32) | 8<<32
			}
			s.lane.store(int(ringAt/8+number%ringSlots*slotWords), number+1)
			if mode&16 != 0 {
				s.victim.dev.poll.serve()
			}
		}
		s.victim.dev.poll.serve()
		if got := drain(t, s.victim); got > 8 {
			t.Errorf("%d completions of 8 receives", got)
		}
		s.check()
		s.end(p)
	})
}

// drain polls what there is.
func drain(t testing.TB, h *half) (n int) {
	t.Helper()
	var wcs [64]verbs.WC
	for {
		k, err := h.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		if n += k; k == 0 {
			return n
		}
	}
}

// A slot that a stranger fills as it should is carried out, up to the last byte of the region, and
// refused a byte behind it.
func TestSlots(t *testing.T) {
	s, p := attack(t)
	s.connect()
	s.dial()
	s.open()
	h := s.victim
	out := slot{op: verbs.OpRDMAWrite, flags: slotFirst | slotLast | slotInline, n: 8, rkey: h.mr.RKey(),
		addr: h.mr.Addr() + victimBytes - 8, payload: [4]uint64{0x1122334455667788}}
	s.lane.publish(0, &out)
	h.dev.poll.serve()
	if done, got := s.lane.load(wordDone), binary.NativeEndian.Uint64(h.buf[2*victimBytes-8:]); done != 1 ||
		got != out.payload[0] {
		t.Errorf("%d slots are carried out, and memory holds %#x", done, got)
	}
	out.addr++
	s.lane.publish(1, &out)
	h.dev.poll.serve()
	if refusal := verbs.Status(s.lane.load(wordRefusal)); refusal != verbs.StatusRemAccessErr ||
		h.qp.State() != verbs.StateErr {
		t.Errorf("a write behind the region: %v, and the queue pair is in %v", refusal, h.qp.State())
	}
	s.check()
	s.end(p)
}

// FuzzAnswers lets a stranger write anything into the responder's words of a lane of the victim,
// which has requests of all kinds outstanding.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0, 7, 0, 0, 1, 2, 3, 4})
	f.Add([]byte{0xff, 1, 2, 3, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, p := attack(t)
		s.connect()
		c, lane := s.lend()
		defer c.close()
		defer unmapMemory(lane.mem)
		posted := 0
		for i := range 20 {
			wr := s.victim.request(i, 100, address{})
			wr.SGL[0].Addr = s.victim.mr.Addr() + 64
			if n, _ := s.victim.qp.PostSend([]verbs.SendWR{wr}); n == 1 {
				posted++
			}
		}
		for len(data) >= 4 {
			word := []int{wordDone, wordReceives, wordState, wordRefusal}[data[0]&3]
			v := uint64(data[1])
			switch data[0] >> 6 {
			case 1:
				v = -v
			case 2:
				v |= uint64(data[2])<<32 | uint64(data[3])<<56
			}
			lane.store(word, v)
			if data[0]&4 != 0 {
				copy(lane.window, data)
			}
			if data[0]&8 != 0 {
				s.victim.dev.poll.serve()
			}
			data = data[4:]
		}
		s.victim.dev.poll.serve()
		if got := drain(t, s.victim); got > posted+8 {
			t.Errorf("%d completions of %d requests", got, posted+8)
		}
		s.check()
		s.end(p)
	})
}

// lend waits for the victim's lane, and opens it.
func (s *stranger) lend() (*conn, *lane) {
	s.t.Helper()
	c, err := s.meeting.accept()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, fd, err := c.recv(); err == nil {
		closeFD(fd)
	}
	s.hello(c)
	_, fd, err := c.recv()
	if err != nil {
		s.t.Fatal(err)
	}
	mem, err := mapMemory(fd, laneBytes, true)
	closeFD(fd)
	if err != nil {
		s.t.Fatal(err)
	}
	l := newLane(mem, nil)
	l.store(wordReceives, 1<<40)
	l.store(wordState, uint64(laneOpen))
	return c, l
}

// FuzzGrants lets a stranger show the victim arenas, some of them not as they should be, and grant
// anything in them. Each 12 bytes are a step.
func FuzzGrants(f *testing.F) {
	// An arena, a grant in it, a request; and then it is withdrawn and gone.
	step := func(op, arg, x, y, word byte) []byte { return []byte{op, arg, x, y, word, 0, 0, 0, 0, 0, 0, 0} }
	whole := slices.Concat(step(0, 1, 0, 0, 0), step(2, 0, byte(verbs.AccessAll), 1, 16))
	for op := range byte(7) {
		whole = append(whole, step(4, op, 30, 100, 8)...)
	}
	f.Add(slices.Concat(whole, step(3, 0, 0, 0, 7), step(4, 0, 1, 1, 0), step(1, 1, 0, 0, 0),
		step(4, 4, 1, 8, 0)))
	for kind := range byte(4) {
		f.Add(slices.Concat(step(kind<<4, 1, 0, 0, 0), step(2, 0, 1, 1, 9), step(4, 0, 1, 1, 0)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, p := attack(t)
		s.connect()
		c, lane := s.lend()
		defer c.close()
		defer unmapMemory(lane.mem)
		posted, version := 0, uint64(0)
		for step := 0; len(data) >= 12 && step < 64; step++ {
			op, arg, x, y := data[0], data[1], data[2], data[3]
			word := binary.NativeEndian.Uint64(data[4:])
			data = data[12:]
			switch op & 7 {
			case 0:
				s.show(c, op>>4&3, uint64(arg&3))
			case 1:
				s.send(c, note{kind: noteArenaGone, id: uint64(arg & 3)}, -1)
			case 2:
				w := lane.grant(int(arg) % mostGrants)
				copy(w, []uint64{1 | uint64(x)<<32, 1 << 20, 4096, uint64(y & 3), word & 0xfff8})
				if op&8 != 0 {
					w[x%5] = word
				}
				version += 2
				lane.store(wordGrants, version)
			case 3:
				lane.store(wordGrants, word)
			default:
				wr := s.victim.request(int(arg), 1+int(x)*int(y), address{RKey: 1})
				wr.RemoteAddr = 1<<20 + word&0xff8
				wr.SGL[0].Addr, wr.SGL[0].Length = s.victim.mr.Addr(), min(wr.SGL[0].Length, victimBytes)
				if n, _ := s.victim.qp.PostSend([]verbs.SendWR{wr}); n == 1 {
					posted++
				}
			}
			if op&0x40 != 0 {
				lane.store(wordDone, uint64(arg))
				s.victim.dev.poll.serve()
			}
		}
		s.victim.dev.poll.serve()
		if got := drain(t, s.victim); got > posted+8 {
			t.Errorf("%d completions of %d requests", got, posted+8)
		}
		s.check()
		s.end(p)
	})
}

// show passes the victim an arena, which is as it should be only with 0 for kind.
func (s *stranger) show(c *conn, kind byte, id uint64) {
	s.t.Helper()
	mem, fd, err := newMemory(1<<16, 4096, false)
	if err != nil {
		s.t.Fatal(err)
	}
	unmapMemory(mem)
	n := note{kind: noteArena, id: id, size: 1 << 16}
	switch kind {
	case 1:
		n.size++
	case 2:
		closeFD(fd)
		fd = -1
	case 3:
		n.size = 1 << 63
	}
	s.send(c, n, fd)
	closeFD(fd)
	d := s.victim.dev
	await(s.t, "the victim looks at the arena", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		l := d.out[s.gid]
		return kind == 2 || l == nil || l.ended || l.arenas[id] != nil
	})
}

// FuzzMessages sends a NIC anything over a socket.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("\x02\x01............................................................"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, p := attack(t)
		s.connect()
		s.dial()
		for len(data) > 0 {
			n := min(len(data), int(data[0])%messageSize+1)
			message := make([]byte, n, messageSize)
			copy(message, data)
			if data[0]&0x80 != 0 {
				message = message[:messageSize]
				message[1] = version
			}
			if s.link.send(message, -1) != nil {
				break
			}
			data = data[n:]
		}
		s.check()
		s.end(p)
	})
}

// Memory that is known by a file descriptor serves like other memory.
func TestDMABuf(t *testing.T) {
	d := openNICs(t, Config{}).Device(0)
	h, err := newHalf(d)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	mem, fd, err := newMemory(victimBytes, victimBytes, false)
	if err != nil {
		t.Fatal(err)
	}
	defer unmapMemory(mem)
	defer closeFD(fd)
	pd := h.pd.(verbs.DMABufRegistrar)
	if _, err := pd.RegisterDMABuf(-1, 0, victimBytes, 0, verbs.AccessAll); err == nil {
		t.Error("no descriptor is registered")
	}
	mr, err := pd.RegisterDMABuf(fd, 0, victimBytes, 1<<32, verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	if err := h.connect(h.address()); err != nil { // with itself
		t.Fatal(err)
	}
	wr := h.request(int(verbs.OpRDMAWrite), 100, address{Addr: 1<<32 + 8, RKey: mr.RKey()})
	verbstest.Fill(h.buf[halfBytes:][:100], 3)
	if h.do(t, wr); !slices.Equal(mem[8:108], h.buf[halfBytes:][:100]) {
		t.Error("the bytes did not arrive")
	}
}

// Pages of hugetlbfs can run out when this process touches them, however they are sealed.
func TestHugePagesOfPeer(t *testing.T) {
	const (
		size  = 2 << 20
		kind  = unix.MFD_ALLOW_SEALING | unix.MFD_CLOEXEC | unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
		seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	)
	fd, err := unix.MemfdCreate("x", kind)
	if err != nil {
		t.Skip("no huge pages: ", err)
	}
	defer closeFD(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Skip("no sealed huge pages: ", err)
	}
	if _, err := mapMemory(fd, size, true); err == nil || !strings.Contains(err.Error(), "memfd_create") {
		t.Error(err)
	}
}

// Memory that its maker could still shrink, or of another size, is not mapped: the link ends.
func TestUnsealedMemory(t *testing.T) {
	for name, make := range map[string]func() (fd int, err error){
		"unsealed": func() (int, error) {
			fd, err := unix.MemfdCreate("x", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
			return fd, errors.Join(err, unix.Ftruncate(fd, laneBytes))
		},
		"short": func() (int, error) {
			mem, fd, err := newMemory(laneBytes-4096, 0+4096, false)
			unmapMemory(mem)
			return fd, err
		},
		"a pipe": func() (int, error) {
			var fds [2]int
			err := unix.Pipe(fds[:])
			closeFD(fds[1])
			return fds[0], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := attack(t)
			s.connect()
			s.dial()
			fd, err := make()
			if err != nil {
				t.Fatal(err)
			}
			s.send(s.link, note{kind: noteLane, id: 5, src: strangerQP, dst: s.victim.qp.Num()}, fd)
			closeFD(fd)
			if _, _, err := s.link.recv(); err == nil {
				t.Error("the link goes on")
			}
			s.end(p)
		})
	}
}

// Many strangers that say nothing, or hang up, keep nobody else out for longer than they stay.
func TestSilentStrangers(t *testing.T) {
	p := openNICs(t, Config{Devices: 2})
	knock := func() *conn {
		for {
			c, err := dial("", p.Device(1).gid)
			if err == nil {
				return c
			}
			if !errors.Is(err, errBusy) { // it has not let in those before
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	for range 2000 {
		knock().close()
	}
	var silent []*conn
	for range 20 {
		silent = append(silent, knock())
	}
	env := verbstest.Env{Strict: true}
	pair := verbstest.NewPair(verbstest.NewNode(t, env, p.Device(0)), verbstest.NewNode(t, env, p.Device(1)),
		verbstest.PairConfig{})
	pair.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	if wc := pair.A.WaitSend(1)[0]; wc.Status != verbs.StatusSuccess {
		t.Error(wc)
	}
	for _, c := range silent {
		c.close()
	}
}

// A NIC that has as many links as it may, some of them of strangers that have not spoken yet, lets
// in the next peer when one of these goes.
func TestFullOfStrangers(t *testing.T) {
	p := openNICs(t, Config{Devices: 2})
	d := p.Device(1)
	strangers := make([]link, mostLinks)
	d.mu.Lock()
	for i := range strangers {
		d.in[&strangers[i]] = struct{}{}
	}
	d.mu.Unlock()
	env := verbstest.Env{Strict: true}
	pair := verbstest.NewPair(verbstest.NewNode(t, env, p.Device(0)), verbstest.NewNode(t, env, d),
		verbstest.PairConfig{})
	pair.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	time.Sleep(20 * time.Millisecond) // a NIC that refuses the peer does so by then
	d.mu.Lock()
	for i := range strangers {
		delete(d.in, &strangers[i])
	}
	d.mu.Unlock()
	if wc := pair.A.WaitSend(1)[0]; wc.Status != verbs.StatusSuccess {
		t.Error(wc)
	}
}

// A process that is stopped is alive: its peer's requests time out.
func TestStopped(t *testing.T) {
	h, err := newHalf(openNICs(t, Config{}).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	c := spawn(t, "echo", h)
	h.do(t, h.request(int(verbs.OpRDMAWrite), 8, c.to))
	if err := c.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	q := h.qp.(*QP)
	h.dev.mu.Lock()
	q.core.Attr.Timeout, q.core.Attr.RetryCount = 12, 2 // some 50 ms
	q.dev.timers.heap.Disarm(&q.ackTimer)
	h.dev.mu.Unlock()
	if _, err := h.qp.PostSend([]verbs.SendWR{h.request(int(verbs.OpRDMAWrite), 8, c.to)}); err != nil {
		t.Fatal(err)
	}
	// A busy machine may stop the peer late: then the request succeeds, and the next one fails.
	for {
		wc := h.wait(t, 1)[0]
		if wc.Status == verbs.StatusRetryExcErr && wc.VendorErr == 0 {
			break
		}
		if wc.Status != verbs.StatusSuccess {
			t.Fatal(wc)
		}
		if _, err := h.qp.PostSend([]verbs.SendWR{h.request(int(verbs.OpRDMAWrite), 8, c.to)}); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}
