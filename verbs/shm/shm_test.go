//go:build linux

package shm

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(peerEnv); task != "" {
		runPeer(task)
	}
	_ = flag.Set("test.parallel", "16") // they mostly wait
	goleak.VerifyTestMain(m)
}

// openNICs opens NICs that the test closes.
func openNICs(tb testing.TB, cfg Config) *Provider {
	tb.Helper()
	p, err := Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func setLink(_ *testing.T, d verbs.Device, up bool) { d.(*Device).SetLink(up) }

func TestConformance(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (a, b verbs.Device){
		"two NICs": func(t *testing.T) (a, b verbs.Device) {
			p := openNICs(t, Config{Devices: 2})
			return p.Device(0), p.Device(1)
		},
		"one NIC": func(t *testing.T) (a, b verbs.Device) {
			d := openNICs(t, Config{}).Device(0)
			return d, d
		},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, verbstest.Env{Strict: true, SetLink: setLink, Open: open})
		})
		t.Run(name+", arenas", func(t *testing.T) {
			verbstest.Run(t, verbstest.Env{Strict: true, SetLink: setLink, Open: open, Allocate: true})
		})
	}
}

// A receive that was posted before a message is there for it, although the receiver polls, and so
// may report late.
func TestReceiveIsThere(t *testing.T) {
	p := openNICs(t, Config{Devices: 2})
	env := verbstest.Env{Strict: true}
	pair := verbstest.NewPair(verbstest.NewNode(t, env, p.Device(0)), verbstest.NewNode(t, env, p.Device(1)),
		verbstest.PairConfig{Adjust: func(_ verbs.QP, a *verbs.QPAttr) { a.RNRRetry = 0 }})
	for i := range uint64(200) {
		pair.B.Drain() // polls: the NIC is awake
		pair.B.PostRecv(verbs.RecvWR{ID: i})
		pair.A.PostSend(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		if wc := pair.A.WaitSend(1)[0]; wc.Status != verbs.StatusSuccess {
			t.Fatal(i, wc)
		}
		pair.B.WaitRecv(1)
	}
}

// A queue pair that only has receives says in what is flushed that its peer has died. Once it is
// reset, that is forgotten.
func TestDeathIsFlushed(t *testing.T) {
	h, err := newHalf(openNICs(t, Config{}).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	c := spawn(t, "idle", h)
	h.do(t, h.request(int(verbs.OpRDMAWrite), 8, c.to))
	flushed := func(vendor uint32) {
		t.Helper()
		if wc := h.wait(t, 1)[0]; wc.Status != verbs.StatusWRFlushErr || wc.VendorErr != vendor {
			t.Errorf("%v, want vendor code %#x", wc, vendor)
		}
	}
	move := func(to verbs.QPState, mask verbs.QPAttrMask) {
		t.Helper()
		if err := h.qp.Modify(&verbs.QPAttr{State: to, Port: 1}, verbs.QPAttrState|mask); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.receive(1); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	flushed(vendorDied)
	move(verbs.StateReset, 0)
	move(verbs.StateInit, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	if err := h.receive(1); err != nil {
		t.Fatal(err)
	}
	move(verbs.StateErr, 0)
	flushed(nic.VendorFlushed)
	if err := h.close(); err != nil {
		t.Error(err)
	}
}

// In a directory, the sockets of processes that were killed are removed by the next one that comes,
// those of processes that live or have just begun stay.
func TestStaleSockets(t *testing.T) {
	dir := shortDir(t)
	alive := openNICs(t, Config{Dir: dir}).Device(0).gid
	stale, young := newGID(placeOf(dir)), newGID(placeOf(dir))
	for _, gid := range []verbs.GID{stale, young} {
		fd, err := socket()
		if err == nil {
			err = unix.Bind(fd, meetingPlace(dir, gid))
		}
		if err != nil {
			t.Fatal(err)
		}
		closeFD(fd) // as a process does that is killed
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-2 * youngPlace)
	for _, path := range []string{meetingPlace(dir, stale).Name, meetingPlace(dir, alive).Name, other} {
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	openNICs(t, Config{Dir: dir})
	for path, stays := range map[string]bool{meetingPlace(dir, stale).Name: false, other: true,
		meetingPlace(dir, young).Name: true, meetingPlace(dir, alive).Name: true} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: stays %t: %v", path, !stays, err)
		}
	}
}

// shortDir makes a directory with a name that leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A directory in which no socket can be made is named, with the longest name that is possible.
func TestDirectories(t *testing.T) {
	base := shortDir(t)
	long := filepath.Join(base, strings.Repeat("x", maxDir-len(base)-1))
	for dir, fits := range map[string]bool{long: true, long + "x": false, base + "/none": false,
		"@place": false} {
		if strings.HasPrefix(dir, long) {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Open(Config{Dir: dir})
		switch {
		case fits && err != nil:
			t.Errorf("%d bytes: %v", len(dir), err)
		case fits:
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		case err == nil || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "Dir: ") ||
			!strings.Contains(err.Error(), dir):
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A peer that passes more lanes than this process may map, or names one twice, loses its link.
func TestTooManyLanes(t *testing.T) {
	for name, tooMany := range map[string]bool{"too many": true, "one twice": false} {
		t.Run(name, func(t *testing.T) {
			s, p := attack(t)
			s.connect()
			s.dial()
			s.open()
			d := s.victim.dev
			mem, fd, err := newMemory(laneBytes, windowAt, false)
			if err != nil {
				t.Fatal(err)
			}
			defer closeFD(fd)
			defer unmapMemory(mem)
			id := uint64(5) // as open has named one
			if tooMany {
				id = 6
				d.mu.Lock()
				d.mapped += mostMapped - 1
				d.mu.Unlock()
			}
			s.send(s.link, note{kind: noteLane, id: id, src: strangerQP, dst: s.victim.qp.Num()}, fd)
			if _, _, err := s.link.recv(); err == nil {
				t.Error("the link goes on")
			}
			d.lockAll()
			left := d.mapped
			if tooMany {
				left -= mostMapped - 1
			}
			d.unlockAll()
			if left != 0 {
				t.Errorf("%d lanes are mapped", left)
			}
			s.end(p)
		})
	}
}

// A peer that does not read what it is sent costs this process a bounded number of messages and
// descriptors: then its link ends.
func TestPeerThatDoesNotRead(t *testing.T) {
	s, p := attack(t)
	s.connect()
	c, err := s.meeting.accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, fd, err := c.recv(); err == nil {
		closeFD(fd)
	}
	s.hello(c)
	d := s.victim.dev
	d.mu.Lock()
	l := d.out[s.gid]
	for i := 0; !l.ended; i++ {
		if len(l.notes) > mostNotes || i > 10*mostNotes {
			d.mu.Unlock()
			t.Fatalf("%d messages wait", len(l.notes))
		}
		l.tell(note{kind: noteDrop, id: 1 << 60}, -1)
		if i%64 == 0 { // those that the socket takes may leave
			d.mu.Unlock()
			d.mu.Lock()
		}
	}
	if len(l.notes) != 0 {
		t.Errorf("%d messages wait on a link that has ended", len(l.notes))
	}
	d.mu.Unlock()
	s.end(p)
}

// narrow is the task of a process that may have few descriptors: it connects one pair of queue
// pairs after the other, then many at once, of which some may be refused, and then one again.
func narrow() error {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	p, err := Open(Config{Devices: 2})
	if err != nil {
		return err
	}
	var kept []*half
	write := func(a, b *half) error {
		wr := a.request(int(verbs.OpRDMAWrite), 100, b.address())
		if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			return err
		}
		var wcs [1]verbs.WC
		for n := 0; n == 0; {
			if n, err = a.cq.Poll(wcs[:]); err != nil || n != 0 && wcs[0].Status != verbs.StatusSuccess {
				return fmt.Errorf("%v, %w", wcs[0], err)
			}
		}
		return nil
	}
	one := func() error {
		a, b, err := pairOf(p)
		if err == nil {
			err = write(a, b)
		}
		return errors.Join(err, a.close(), b.close())
	}
	for range 200 {
		if err := one(); err != nil {
			return err
		}
	}
	refused := 0
	for range 100 {
		a, b, err := pairOf(p)
		switch {
		case err == nil:
			kept = append(kept, a, b)
		case errors.Is(err, verbs.ErrNoMemory) && errors.Is(err, unix.EMFILE):
			refused++
			if err := errors.Join(a.close(), b.close()); err != nil {
				return err
			}
		default:
			return err
		}
	}
	fmt.Printf("%d of 100 pairs at once are refused\n", refused)
	for _, h := range kept {
		if err := h.close(); err != nil {
			return err
		}
	}
	for { // the descriptors are free as soon as the last memory is passed
		if err := one(); err == nil || !errors.Is(err, unix.EMFILE) {
			return errors.Join(err, p.Close())
		}
	}
}

// pairOf connects two queue pairs. With an error of connecting them it returns them too.
func pairOf(p *Provider) (a, b *half, err error) {
	if a, err = newHalf(p.Device(0)); err != nil {
		return a, b, err
	}
	if b, err = newHalf(p.Device(1)); err != nil {
		return a, b, err
	}
	if err = a.connect(b.address()); err == nil {
		err = b.connect(a.address())
	}
	return a, b, err
}

// A process that may have 64 descriptors uses no more of them with each connection. Where there are
// none for a moment, Modify says so, and later connections work.
func TestFewDescriptors(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerEnv+"=narrow")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// One goroutine drives both NICs, so an operation is what the two ends cost together, without the
// time that a line takes from one core to another.
func BenchmarkBothEnds(b *testing.B) {
	for _, c := range []struct {
		name     string
		n, batch int
	}{{"8B", 8, 1}, {"8B batch 64", 8, 64}, {"4KiB", 4096, 1}, {"64KiB", 65536, 1}} {
		b.Run(c.name, func(b *testing.B) {
			p := openNICs(b, Config{Devices: 2})
			env := verbstest.Env{}
			pair := verbstest.NewPair(verbstest.NewNode(b, env, p.Device(0)),
				verbstest.NewNode(b, env, p.Device(1)), verbstest.PairConfig{BufSize: 1 << 17})
			wrs := make([]verbs.SendWR, c.batch)
			for i := range wrs {
				wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: pair.A.Buf.SGL(0, c.n),
					RemoteAddr: pair.B.Buf.Addr(), RKey: pair.B.Buf.RKey()}
			}
			wrs[c.batch-1].Flags = verbs.SendSignaled
			var wcs [4]verbs.WC
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for i := 0; i < b.N; i += c.batch {
				if n, err := pair.A.QP.PostSend(wrs); n != c.batch {
					b.Fatal(err)
				}
				for n := 0; n == 0; {
					_, _ = pair.B.SendCQ.Poll(wcs[:])
					var err error
					if n, err = pair.A.SendCQ.Poll(wcs[:]); err != nil || n > 0 && wcs[0].Status != 0 {
						b.Fatal(err, wcs[0])
					}
				}
			}
		})
	}
}

// A program that only polls offers the processor after some microseconds, again and again. One that
// sleeps between its polls does not: it gives the processor up by itself, and the kernel puts those
// that offer it behind all others.
func TestOffers(t *testing.T) {
	provider, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Close()
	dev := provider.Device(0)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 16, Channel: verbs.NewCompChannel()})
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	offers := func(polls int) (n int) {
		dev.poll.offers.empty = 0
		for range polls {
			if processor, _ := dev.poll.offers.due(); processor {
				n++
			}
		}
		return n
	}
	if n := offers(10 * patience); n != 9*patience/offerEvery+1 {
		t.Errorf("A program that only polls offers the processor %d times.", n)
	}
	if err := cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if n := offers(10 * patience); n != 0 {
		t.Errorf("A program that has just armed its queue offers the processor %d times.", n)
	}
	if n := offers(2 * sleeperPatience); n < sleeperPatience/offerEvery {
		t.Errorf("A program that polls on does so %d times.", n)
	}
}
