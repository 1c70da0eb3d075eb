//go:build linux

package shm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

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
