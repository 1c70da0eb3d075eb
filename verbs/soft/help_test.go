package soft

import (
	"bytes"
	"math"
	"testing"
	"time"

	"ibverbx/verbs"
)

// dozing makes a NIC's worker one that does not wake, however often it is woken; the function that
// it returns wakes it.
func dozing(d *Device) (wake func()) {
	w := &d.worker
	w.started, w.wakeAt = true, math.MinInt64
	return func() {
		d.f.mu.Lock()
		w.started, w.wakeAt = false, math.MaxInt64
		d.f.engine.(*background).wake(d)
		d.f.mu.Unlock()
	}
}

// polls counts how many polls it takes until a completion comes.
func polls(t *testing.T, cq *CQ, most int) int {
	t.Helper()
	var wcs [1]verbs.WC
	for i := range most {
		if n, err := cq.Poll(wcs[:]); n != 0 {
			if wcs[0].Status != verbs.StatusSuccess || err != nil {
				t.Fatal(wcs[0], err)
			}
			return i + 1
		}
	}
	t.Fatalf("no completion after %d polls", most)
	return 0
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i>>12 + i + seed)
	}
}

// TestPollCopiesLongMessages: while nothing else waits a poll does the work of a worker that
// sleeps, 4 MiB of it at most.
func TestPollCopiesLongMessages(t *testing.T) {
	const room = 17 << 20
	for _, c := range []struct{ size, polls int }{
		{smallCopy + 1, 1}, {helpCopy, 1}, {512<<10 + 1, 1}, {1 << 20, 1}, {4 << 20, 1},
		{4<<20 + 1, 2}, {16 << 20, 4}, {16<<20 + 1, 5},
	} {
		f, a, b := pair(t, Config{}, endConfig{buf: room})
		wake := dozing(f.Device(0))
		fill(a.buf, c.size)
		wr := a.write(b, 1, 0, c.size)
		// In pieces, whose ends are not those of what is copied at a time.
		wr.SGL = append(a.sge(0, 1000), a.sge(1000, c.size-1000)...)
		a.post(wr)
		if n := polls(t, a.cq, 10); n != c.polls {
			t.Errorf("%d bytes: %d polls, want %d", c.size, n, c.polls)
		}
		if !bytes.Equal(b.buf[:c.size], a.buf[:c.size]) || b.buf[c.size] != 0 {
			t.Errorf("%d bytes: not what was written", c.size)
		}
		wake()
	}
}

// TestPollLeavesLongMessages: a poll begins with no long message while another queue pair waits,
// and leaves the rest of one to the worker, or to the next poll.
func TestPollLeavesLongMessages(t *testing.T) {
	const size = 6 << 20
	f, a, b := pair(t, Config{}, endConfig{buf: size})
	c, d := newEnd(t, f.Device(0), endConfig{buf: size}), newEnd(t, f.Device(1), endConfig{buf: size})
	connect(t, c, d)
	wake := dozing(f.Device(0))
	fill(a.buf, 1)
	fill(c.buf, 2)
	a.post(a.write(b, 1, 0, size))
	nothing(t, a.cq) // 4 MiB
	if !bytes.Equal(b.buf[:4<<20], a.buf[:4<<20]) || b.buf[4<<20+10000] != 0 {
		t.Error("the first poll has not copied 4 MiB")
	}
	c.post(c.write(d, 2, 0, size))
	nothing(t, c.cq) // a piece more of the first message
	nothing(t, c.cq) // another
	nothing(t, c.cq)
	if n := polls(t, a.cq, 2); n != 1 {
		t.Errorf("%d polls for the last 512 KiB", n)
	}
	if !bytes.Equal(b.buf, a.buf) {
		t.Error("the first message is not what was written")
	}
	a.post(a.write(b, 3, 0, size))
	nothing(t, a.cq)
	nothing(t, c.cq)
	if !bytes.Equal(d.buf, make([]byte, size)) {
		t.Error("a poll has begun with a long message while another queue pair waits")
	}
	wake()
	await(t, a.cq, 1)
	await(t, c.cq, 1)
	if !bytes.Equal(d.buf, c.buf) {
		t.Error("the second message is not what was written")
	}
}

// TestCloseWhileHalfIsCopied: a queue pair, and the memory, of which a poll has copied a part only
// can be closed: the worker copies the rest.
func TestCloseWhileHalfIsCopied(t *testing.T) {
	for _, peer := range []bool{false, true} {
		const size = 6 << 20
		f, a, b := pair(t, Config{}, endConfig{buf: size})
		wake := dozing(f.Device(0))
		fill(a.buf, 1)
		a.post(a.write(b, 1, 0, size))
		nothing(t, a.cq)
		closed := make(chan error, 1)
		go func() {
			x := a
			if peer {
				x = b
			}
			closed <- x.qp.Close()
		}()
		wake()
		select {
		case err := <-closed:
			must(t, err)
		case <-time.After(10 * time.Second):
			t.Fatal("close waits for the rest of the message")
		}
		if !bytes.Equal(b.buf, a.buf) {
			t.Error("the rest was not copied")
		}
	}
}

// A move to SQD lets the request that is being copied come to its end; a move to ERR flushes it.
func TestStatesWhileHalfIsCopied(t *testing.T) {
	for state, want := range map[verbs.QPState]verbs.Status{
		verbs.StateSQD: verbs.StatusSuccess, verbs.StateErr: verbs.StatusWRFlushErr,
	} {
		const size = 6 << 20
		f, a, b := pair(t, Config{}, endConfig{buf: size})
		wake := dozing(f.Device(0))
		fill(a.buf, 1)
		a.post(a.write(b, 1, 0, size))
		nothing(t, a.cq)
		must(t, a.qp.Modify(&verbs.QPAttr{State: state}, verbs.QPAttrState)) // waits for no copy
		wake()
		awaitStatus(t, a.cq, 1, want)
		if state == verbs.StateSQD && !bytes.Equal(b.buf, a.buf) {
			t.Error("the rest was not copied")
		}
	}
}
