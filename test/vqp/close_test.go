package vqp_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx"
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
