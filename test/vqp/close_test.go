package vqp_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Close during traffic in both directions reports everything that is outstanding, in order. Then
// nothing uses the memory any more. The test rig checks that the provider has nothing left open.
func TestCloseDuringTraffic(t *testing.T) {
	hasty(t, func(*shape) bool { return true }, func(t *testing.T, _ *shape, a, b *end) {
		busyUntil(a, b, "traffic", underWay(a, b))
		a.close()
		b.close()
		for _, e := range []*end{a, b} {
			for name, post := range e.posts() {
				if n, err := post(); n != 0 || !isClosed(err) {
					t.Errorf("%s after Close: %d, %v", name, n, err)
				}
			}
			if err := e.Close(); !isClosed(err) {
				t.Errorf("Close again: %v", err)
			}
			if err := e.mem.mr.Close(); err != nil {
				t.Errorf("closing the region that the requests used: %v", err)
			}
			if e.mem.mr.Bytes() != nil {
				t.Error("a closed region still has memory")
			}
		}
	})
}

// After everything is closed the provider closes, no goroutine is left, and as many files are open
// as before.
func TestNothingIsLeftOpen(t *testing.T) {
	time.Sleep(time.Nanosecond) // with the first timer the runtime opens two files of its own
	once := func(t *testing.T, s *shape) {
		t.Run(s.name, func(t *testing.T) {
			a, b := newRig(t, s).connect(s.config(ibverbx.Config{FragmentSize: fragment}))
			exchange(a, b)
		})
	}
	for i := range shapes {
		s := &shapes[i]
		once(t, s) // opens what the process keeps open
		goroutines, files := goleak.IgnoreCurrent(), openFiles(t)
		for range 3 {
			once(t, s)
		}
		if err := goleak.Find(goroutines); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		if open := openFiles(t); len(open) != len(files) {
			t.Errorf("%s: %d files are open, %d before: %v, %v before", s.name, len(open), len(files), open,
				files)
		}
	}
}

// openFiles lists what the process has open; nothing where that is not possible. Left out is the
// log of package testing: each run of the tests opens it again, and the garbage collector closes
// it.
func openFiles(t *testing.T) (open []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("open files cannot be counted: %v", err)
	}
	log := flag.Lookup("test.testlogfile").Value.String()
	for _, fd := range list {
		if name, _ := os.Readlink("/proc/self/fd/" + fd.Name()); name != log {
			open = append(open, name)
		}
	}
	return open
}

// Drain waits until every accepted send has succeeded, and then flushes the receives that no
// message has matched. After a reset the end works again. Twice.
func TestDrain(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		ctx, cancel := context.WithTimeout(t.Context(), *waitFlag)
		defer cancel()
		for range 2 {
			a.deliver(a.write(5*fragment), a.writeImm(2*fragment+1), a.message(100), a.read(3*fragment),
				a.fetchAdd(3), a.writeImm(1))
			a.recv()
			a.recv(a.mem.land(100))
			a.mayFail = true
			if err := a.Drain(ctx); err != nil {
				t.Fatalf("%v\n%s", err, a.host.rig.describe())
			}
			a.host.rig.until("what Drain leaves", func() bool { return a.settled() && b.settled() })
			if f := a.sends.failure; f != nil {
				t.Errorf("not drained but failed: %s", fmtWC(f))
			}
			if f := a.recvs.failure; f == nil || f.Status != verbs.StatusWRFlushErr {
				t.Errorf("an unmatched receive ends with %+v, want WR_FLUSH_ERR", f)
			}
			restart(a, b)
		}
	})
}

// reset moves an end back to RESET. Everything outstanding is reported, and the error is cleared.
func (e *end) reset() {
	e.tb().Helper()
	e.mayFail = true
	if err := e.Reset(); err != nil {
		e.tb().Fatalf("reset: %v", err)
	}
	e.host.pump()
	if !e.settled() {
		e.tb().Fatalf("promise 1: never reported after Reset:\n%s", e.describe())
	}
	if e.Err() != nil || e.State() != verbs.StateReset {
		e.tb().Fatalf("after Reset: %v, %v", e.State(), e.Err())
	}
	for name, post := range e.posts() {
		if n, err := post(); n != 0 || !errors.Is(err, ibverbx.ErrNotConnected) {
			e.tb().Errorf("%s in RESET: %d, %v", name, n, err)
		}
	}
	e.sends, e.recvs, e.arriving = direction{}, direction{}, [2][]*posted{}
}

// restart resets two ends, connects them, and checks that requests work in both directions.
func restart(a, b *end) {
	a.tb().Helper()
	a.reset()
	b.reset()
	reconnect(a, b)
}

// reconnect connects two ends in RESET, and checks that requests work.
func reconnect(a, b *end) {
	a.tb().Helper()
	rig := a.host.rig
	a.other, b.other = b, a
	err := vqptest.Connect(a.tb(), a.VirtualQP, b.VirtualQP)
	if err != nil && !rig.kind.strict {
		// A link that was just set up may need a moment to find the peer.
		rig.until("a connection", func() bool {
			if err = errors.Join(a.Reset(), b.Reset()); err == nil {
				err = vqptest.Connect(a.tb(), a.VirtualQP, b.VirtualQP)
			}
			return err == nil
		})
	}
	if err != nil {
		a.tb().Fatalf("connect anew: %v", err)
	}
	for _, e := range []*end{a, b} {
		// No NIC accesses memory of the earlier session any more.
		e.sends, e.recvs, e.arriving = direction{}, direction{}, [2][]*posted{}
		e.due = nil
		e.mayFail, e.earlierFailures = false, e.failures()
		e.count = wordAt(e.other.mem.buf[e.word:])
	}
	if len(rig.a.ends) == 1 { // no other end uses the memory of the hosts
		a.mem.plots, b.mem.plots = nil, nil
	}
	exchange(a, b)
}

// exchange exchanges one request of every kind in both directions.
func exchange(a, b *end) {
	a.tb().Helper()
	bothWays(a, b, func(from, _ *end) {
		from.deliver(from.write(5*fragment), from.writeImm(9*fragment+1), from.message(300),
			from.read(3*fragment), from.writeImm(1), from.fetchAdd(3), from.cmpSwap(77, true))
	})
	settle(a, b)
}
