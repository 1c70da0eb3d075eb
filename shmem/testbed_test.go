package shmem_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they mostly wait
	goleak.VerifyTestMain(m)
}

// shape is the size of a world under test.
type shape struct {
	pes, nics, qps int // NICs of each PE, queue pairs on each
}

func (s shape) String() string { return fmt.Sprintf("pes=%d/nics=%d/qps=%d", s.pes, s.nics, s.qps) }

// shapes are the ways in which a PE can be connected: by a single queue pair, or by several rails
// on one NIC and on two.
func shapes(pes int) []shape {
	return []shape{{pes, 1, 1}, {pes, 1, 2}, {pes, 1, 4}, {pes, 2, 1}, {pes, 2, 2}}
}

// testbed is a world on software NICs. When the test ends it is closed, and must leave nothing
// open.
type testbed struct {
	t       testing.TB
	ctx     context.Context
	fabric  *soft.Fabric
	doms    []*ibverbx.Domain
	world   *shmem.World
	mayFail bool // closing may fail: something was broken on purpose
}

// patience bounds every wait of a test.
const patience = 20 * time.Second

func newTestbed(t testing.TB, s shape, cfg shmem.Config) *testbed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	l := &testbed{t: t, ctx: ctx}
	var err error
	if l.fabric, err = soft.New(soft.Config{Devices: s.pes * s.nics}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); l.close() })
	for i := range s.pes {
		var devices []verbs.Device
		for j := range s.nics {
			devices = append(devices, l.fabric.Device(i*s.nics+j))
		}
		dom, err := ibverbx.NewDomain(devices...)
		if err != nil {
			t.Fatal(err)
		}
		l.doms = append(l.doms, dom)
	}
	if cfg.HeapSize == 0 {
		cfg.HeapSize = 4 << 20
	}
	cfg.Transport.QP.QPsPerDevice = s.qps
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceShort
	if l.world, err = shmem.NewLocal(ctx, cfg, l.doms...); err != nil {
		t.Fatal(err)
	}
	return l
}

// close closes the world, and fails the test if anything is left open.
func (l *testbed) close() {
	if l.world != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.world.Close(ctx); err != nil && !l.mayFail {
			l.t.Error(err)
		}
	}
	for _, dom := range l.doms {
		if err := dom.Close(); err != nil {
			l.t.Error(err)
		}
	}
	if left := l.fabric.Objects(); left != (soft.Objects{}) {
		l.t.Errorf("left open: %v", left)
	}
	if err := l.fabric.Close(); err != nil {
		l.t.Error(err)
	}
}

// closesWith closes the world, and demands that it says that and no more.
func (l *testbed) closesWith(says string) {
	l.t.Helper()
	if err := l.world.Close(l.ctx); err == nil || err.Error() != says {
		l.t.Errorf("close: %v, want %s", err, says)
	}
	l.world = nil
}

// run runs a program on all PEs, and fails the test unless all return nil.
func (l *testbed) run(program func(ctx context.Context, pe *shmem.PE) error) {
	l.t.Helper()
	if err := l.world.Run(l.ctx, program); err != nil {
		l.t.Fatal(err)
	}
}

// one runs a program on PE 0 alone.
func (l *testbed) one(program func(ctx context.Context, pe *shmem.PE) error) {
	l.t.Helper()
	if err := program(l.ctx, l.world.PEs()[0]); err != nil {
		l.t.Fatal(err)
	}
}

// lag delays one of every so many requests that match, so that what is sent later on other queue
// pairs lands earlier.
func (l *testbed) lag(every int, match func(*verbs.SendWR) bool) *soft.Injection {
	n := 0
	return l.fabric.Inject(soft.Fault{
		Kind: soft.Delay, Count: -1, Delay: 100 * time.Microsecond,
		Match: func(wr *verbs.SendWR) bool {
			if !match(wr) {
				return false
			}
			n++
			return n%every == 0
		},
	})
}

// allocate makes a block on all PEs.
func allocate[T shmem.Element](l *testbed, n int) shmem.Sym[T] {
	l.t.Helper()
	all := make([]shmem.Sym[T], len(l.world.PEs()))
	l.run(func(ctx context.Context, pe *shmem.PE) (err error) {
		all[pe.Rank()], err = shmem.Alloc[T](ctx, pe, n)
		return err
	})
	for _, s := range all {
		if s != all[0] {
			l.t.Fatalf("the block is at different places: %v", all)
		}
	}
	return all[0]
}

// eachShape runs a test over every way to be connected.
func eachShape(t *testing.T, pes int, test func(t *testing.T, l *testbed)) {
	for _, s := range shapes(pes) {
		t.Run(s.String(), func(t *testing.T) { test(t, newTestbed(t, s, shmem.Config{})) })
	}
}

// rounds is how often a test tries: less under the race detector.
func rounds() int {
	if testing.Short() {
		return 5
	}
	return 50
}

// wrong is the error of a program that found something wrong.
func wrong(format string, args ...any) error { return fmt.Errorf(format, args...) }

// fill writes bytes that differ from round to round.
func fill(b []byte, round int) {
	for i := range b {
		b[i] = byte(i*7 + round*13 + i>>8)
	}
}

func isWrite(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpRDMAWrite }
