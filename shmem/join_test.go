package shmem_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/shmem"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// fits is the head of a row of PE 1 of 2 that fits a PE with a heap of 8192 bytes.
const fits = `{"version":7,"pe":1,"pes":2,"heap_size":8192,` +
	`"heap":{"addr":"0","length":"2106496","rkeys":{"0":1}}}`

// PEs that are configured differently cannot join, and their errors say what differs.
func TestCardsThatDoNotFit(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	for _, card := range []struct{ says, text string }{
		{"version 9", `{"version":9}`},
		{"version 3", `{"version":3,"pe":1,"pes":2,"heap_size":8192,"endpoints":[null,null]}`},
		{"PE 0: Exchange", `{"version":7,"pe":0}`},
		{"counts 3 PEs", `{"version":7,"pe":1,"pes":3}`},
		{"HeapSize is 4096", `{"version":7,"pe":1,"pes":2,"heap_size":4096}`},
		{"heap has 0 bytes", `{"version":7,"pe":1,"pes":2,"heap_size":8192}`},
		{"within its table", fits},
		{"within its table", fits + "\n\x00\x00\x00\x00\x00\x00\x00"},
		{"no endpoint for PE 0", fits + "\n\x00\x00\x00\x00\x00\x00\x00\x00"},
		{"no endpoint for PE 0", fits + "\n\x03\x00\x00\x00\x03\x00\x00\x00{}"},
		{"card of PE 1: invalid argument: unexpected end", fits + "\n\x01\x00\x00\x00\x01\x00\x00\x00{"},
		{"version 0", fits + "\n\x02\x00\x00\x00\x02\x00\x00\x00{}"},
		{"card of PE 1", `garbage`},
	} {
		exchange := func(_ context.Context, mine []byte) ([][]byte, error) {
			return [][]byte{mine, []byte(card.text)}, nil
		}
		pe, err := shmem.Join(l.ctx, l.doms[0], shmem.Config{Size: 2, HeapSize: 8192, Exchange: exchange})
		if pe != nil || err == nil || !strings.Contains(err.Error(), card.says) {
			t.Errorf("%s: %v", card.says, err)
		}
	}
}

// When one PE cannot join none does, and each error says which PEs do not fit.
func TestNoPEJoinsAlone(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{HeapSize: 1 << 12})
	meet := shmem.Meeting(3)
	errs := make([]error, 3)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		me := pe.Rank()
		exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
			all, err := meet(ctx, me, mine)
			return all, errors.Join(err, pe.Sync(ctx)) // so that no PE is a round ahead
		}
		cfg := shmem.Config{Rank: me, Size: 3, HeapSize: 4096 * (1 + me/2), Exchange: exchange}
		_, errs[me] = shmem.Join(ctx, l.doms[me], cfg)
		return nil
	})
	for i, says := range []string{"card of PE 2: invalid argument: its HeapSize is 8192", "card of PE 2",
		"card of PE 0"} {
		if errs[i] == nil || !strings.Contains(errs[i].Error(), says) {
			t.Errorf("PE %d: %v, want %q", i, errs[i], says)
		}
	}
}

// A PE that fails before it has a row, or whose Exchange returns too little, takes part in both
// exchanges all the same: the others do not wait, and their errors say why it cannot join, in text
// that is safe for a terminal.
func TestOthersDoNotWaitForAPEThatFails(t *testing.T) {
	for _, c := range []struct {
		says string
		heap int    // of PE 1
		call string // the first of this kind fails on its NIC
		less bool   // its first exchange returns one entry
	}{
		{says: "config: invalid argument: HeapSize 63", heap: 63},
		{says: unreliable.Err.Error(), heap: 4096, call: "register"},
		{says: unreliable.Err.Error(), heap: 4096, call: "create qp"},
		{says: "exchange: invalid argument: it returned 1 entries", heap: 4096, less: true},
	} {
		l := newTestbed(t, shape{2, 1, 1}, shmem.Config{HeapSize: 4096})
		f := &unreliable.Calls{At: -1, Only: c.call}
		flaky, err := ibverbx.NewDomain(unreliable.New(l.fabric.Device(1), f))
		if err != nil {
			t.Fatal(err)
		}
		if f.N = 0; c.call != "" {
			f.At = 0
		}
		var errs [2]error
		var joined sync.WaitGroup
		meet := shmem.Meeting(2)
		for me, dom := range []*ibverbx.Domain{l.doms[0], flaky} {
			calls := 0
			exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
				all, err := meet(ctx, me, mine)
				if calls++; me == 1 && c.less && calls == 1 {
					return all[:1], err
				} else if me == 0 && calls == 2 && err == nil {
					all = [][]byte{all[0], append([]byte("\x1b[31m\n"), all[1]...)}
				}
				return all, err
			}
			joined.Go(func() {
				_, errs[me] = shmem.Join(l.ctx, dom, shmem.Config{Size: 2, Rank: me,
					HeapSize: []int{4096, c.heap}[me], Exchange: exchange})
			})
		}
		joined.Wait()
		said := fmt.Sprint(errs[0])
		if !strings.HasPrefix(said, "shmem: join: PE 1 cannot join: ") || !strings.Contains(said, c.says) ||
			strings.ContainsAny(said, "\x1b\n") || !strings.Contains(fmt.Sprint(errs[1]), c.says) {
			t.Errorf("PE 0: %q; PE 1: %v; want that PE 1 says %s", said, errs[1], c.says)
		}
		if c.call != "" { // in a local world the errors of the others would only repeat it
			f.N = 0
			_, err = shmem.NewLocal(l.ctx, shmem.Config{HeapSize: 4096}, l.doms[0], flaky)
			if !errors.Is(err, unreliable.Err) || strings.Contains(err.Error(), "cannot join") {
				t.Errorf("a local world: %v", err)
			}
		}
		if err := flaky.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Whatever a peer's card contains, joining ends with an error and not with a panic.
func FuzzCard(f *testing.F) {
	f.Add([]byte(fits))
	f.Add([]byte(fits + "\n\x02\x00\x00\x00\x02\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, card []byte) {
		l := newTestbed(t, shape{1, 1, 1}, shmem.Config{HeapSize: 1 << 12})
		exchange := func(_ context.Context, mine []byte) ([][]byte, error) {
			return [][]byte{mine, card},
				nil
		}
		if pe, err := shmem.Join(l.ctx, l.doms[0],
			shmem.Config{Size: 2, HeapSize: 8192, Exchange: exchange}); err == nil || pe != nil {
			t.Fatal("joined a card that no PE has made")
		}
	})
}

// TestRowsAreReadInPart: a PE decodes of each row what is addressed to it, and nothing else.
func TestRowsAreReadInPart(t *testing.T) {
	const n = 4
	f, err := soft.New(soft.Config{Devices: n})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(f.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	meet := shmem.Meeting(n)
	pes := make([]*shmem.PE, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for me := range n {
		calls := 0
		exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
			rows, err := meet(ctx, me, mine)
			if calls++; calls == 1 && err == nil {
				rows = slices.Clone(rows)
				for i := range rows {
					rows[i] = slices.Clone(rows[i])
					spoilOthers(rows[i], n, me)
				}
			}
			return rows, err
		}
		wg.Go(func() {
			pes[me], errs[me] = shmem.Join(t.Context(), dom, shmem.Config{Rank: me, Size: n, HeapSize: 4096,
				Exchange: exchange})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := shmem.NewWorld(pes...).Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(dom.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

// spoilOthers overwrites the cards of a row that are not addressed to a PE.
func spoilOthers(row []byte, n, pe int) {
	table := row[bytes.IndexByte(row, '\n')+1:]
	cards, start := table[4*n:], uint32(0)
	for i := range n {
		end := binary.LittleEndian.Uint32(table[4*i:])
		if i != pe {
			for j := start; j < end; j++ {
				cards[j] = '?'
			}
		}
		start = end
	}
}

// When the NIC of one PE refuses what connecting takes, no PE joins, and the error of each says
// which one it was.
func TestAPEThatCannotConnect(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{HeapSize: 1 << 12})
	if err := l.world.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.world = nil
	var fault *soft.Injection
	errs := make([]error, 2)
	var joined sync.WaitGroup
	meet := shmem.Meeting(2)
	for me := range 2 {
		joined.Go(func() {
			exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
				if me == 1 && fault == nil { // it is connected to itself by now
					fault = l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.fabric.Device(1),
						Count: -1, Err: verbs.ErrNotSupported})
				}
				return meet(ctx, me, mine)
			}
			_, errs[me] = shmem.Join(l.ctx, l.doms[me], shmem.Config{Size: 2, Rank: me, HeapSize: 1 << 12,
				Exchange: exchange})
		})
	}
	joined.Wait()
	if !errors.Is(errs[1], verbs.ErrNotSupported) || errs[0] == nil ||
		!strings.Contains(errs[0].Error(), "PE 1 cannot join") {
		t.Errorf("PE 0: %v; PE 1: %v", errs[0], errs[1])
	}
}

// Whatever call of the provider fails while a PE joins, its error is returned, and what had been
// made before is closed.
func TestFailedJoinLeavesNothing(t *testing.T) {
	failed := map[string]bool{}
	for at := 0; ; at++ {
		fabric, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		f := &unreliable.Calls{At: -1}
		dom, err := ibverbx.NewDomain(unreliable.New(fabric.Device(0), f))
		if err != nil {
			t.Fatal(err)
		}
		f.N, f.At = 0, at
		pe, err := shmem.Join(t.Context(), dom, shmem.Config{HeapSize: 1 << 12})
		f.At = -1
		switch {
		case err == nil && (f.Name == "" || f.Name == "query"): // who does not answer is asked again
			if err := pe.Close(t.Context()); err != nil {
				t.Error(err)
			}
		case pe != nil || !errors.Is(err, unreliable.Err) || !strings.HasPrefix(err.Error(), "shmem: join: "):
			t.Errorf("call %d, %s: a PE: %v, %v", at, f.Name, pe != nil, err)
		default:
			failed[f.Name] = true
		}
		if err := errors.Join(dom.Close(), fabric.Close()); err != nil {
			t.Errorf("call %d, %s: %v", at, f.Name, err)
		}
		if f.Name == "" {
			break
		}
	}
	for _, name := range []string{"create cq", "create qp", "register", "modify"} {
		if !failed[name] {
			t.Errorf("no %s failed", name)
		}
	}
}

// BenchmarkJoin makes worlds of n PEs in this process: n² endpoints.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{8, 16, 32, 48, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f, err := soft.New(soft.Config{Devices: n})
			if err != nil {
				b.Fatal(err)
			}
			var doms []*ibverbx.Domain
			for i := range n {
				dom, err := ibverbx.NewDomain(f.Device(i))
				if err != nil {
					b.Fatal(err)
				}
				doms = append(doms, dom)
			}
			ctx := context.Background()
			used := time.Duration(0)
			for b.Loop() {
				start := cpuTime()
				w, err := shmem.NewLocal(ctx, shmem.Config{HeapSize: 4096}, doms...)
				if err != nil {
					b.Fatal(err)
				}
				used += cpuTime() - start
				b.StopTimer()
				if err := w.Close(ctx); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "cpu-ms/op")
			for _, dom := range doms {
				if err := dom.Close(); err != nil {
					b.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

// cpuTime is how much processor time the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// An impossible configuration is refused before anything is created.
func TestBadConfigurations(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	exchange := func(_ context.Context, mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }
	for says, cfg := range map[string]shmem.Config{
		"Size -1":            {Size: -1},
		"returned 1 entries": {Size: 2, Exchange: exchange},
	} {
		pe, err := shmem.Join(l.ctx, l.doms[0], cfg)
		if pe != nil || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := shmem.NewLocal(l.ctx, shmem.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no domains: %v", err)
	}
}

// What all have said counts, also where the context ends at the same time.
func TestMeetingThatIsComplete(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if got, err := shmem.Meeting(1)(ctx, 0, nil); err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
	}
}

// When one PE's program fails, Run ends the waits of the others, and returns only that error.
func TestRunEndsTheOthers(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	mine := errors.New("out of ideas")
	err := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 1 {
			return mine
		}
		return pe.Barrier(ctx)
	})
	if err == nil || err.Error() != "PE 1: out of ideas" || !errors.Is(err, mine) {
		t.Fatal(err)
	}
}

// Run sends what a program has begun when it returns: other PEs may wait for it.
func TestWhatAProgramHasBegunLeaves(t *testing.T) {
	eachShape(t, 2, func(_ *testing.T, l *testbed) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			s, err := shmem.Alloc[uint64](ctx, pe, 4096)
			if err != nil {
				return err
			}
			sig, err := shmem.Alloc[uint64](ctx, pe, 1)
			if err != nil {
				return err
			}
			if pe.Rank() == 0 {
				return shmem.PutSignal(ctx, pe, s, make([]uint64, 4096), sig, 1, shmem.SignalSet, 1)
			}
			return shmem.WaitUntil(ctx, pe, sig, shmem.EQ, 1)
		})
	})
}

// PEs may share a domain, and so the NICs.
func TestPEsShareADomain(t *testing.T) {
	l := newTestbed(t, shape{1, 2, 2}, shmem.Config{})
	world, err := shmem.NewLocal(l.ctx, shmem.Config{HeapSize: 1 << 16}, l.doms[0], l.doms[0], l.doms[0])
	if err != nil {
		t.Fatal(err)
	}
	err = world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		s, err := shmem.Alloc[int64](ctx, pe, 1)
		if err != nil {
			return err
		}
		for to := range 3 {
			if err := shmem.Add(ctx, pe, s, int64(pe.Rank()+1), to); err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		if v := shmem.Load(pe, s); v != 6 {
			t.Errorf("PE %d has %d, want 6", pe.Rank(), v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := world.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
}

// TestNoCauseIsLost: an error that has a cause of its own is kept, although it says as well that
// the context has ended; so is that of the PE which failed first, whatever it is.
func TestNoCauseIsLost(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	mine, other := errors.New("out of ideas"), errors.New("out of paper")
	afterwards := func(ctx context.Context, err error) error {
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	}
	for name, c := range map[string]struct {
		program func(ctx context.Context, pe *shmem.PE) error
		want    string
	}{
		"a cause beside the context's end": {func(ctx context.Context, pe *shmem.PE) error {
			switch pe.Rank() {
			case 0:
				return other
			case 1:
				return afterwards(ctx, mine)
			}
			return afterwards(ctx, nil)
		}, "PE 0: out of paper\nPE 1: out of ideas\ncontext canceled"},
		"a context of its own": {func(ctx context.Context, pe *shmem.PE) error {
			switch pe.Rank() {
			case 0:
				return afterwards(ctx, mine)
			case 1:
				own, cancel := context.WithCancel(ctx)
				cancel()
				return own.Err()
			}
			return pe.Sync(ctx)
		}, "PE 0: out of ideas\ncontext canceled\nPE 1: context canceled"},
		"all by the context": {func(ctx context.Context, pe *shmem.PE) error {
			if pe.Rank() == 0 {
				return context.Canceled
			}
			return afterwards(ctx, nil)
		}, "PE 0: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := l.world.Run(l.ctx, c.program); err == nil || err.Error() != c.want {
				t.Errorf("%v: want %s", err, c.want)
			}
		})
	}
}

// TestRefusedCardIsNotLost: a PE that cannot connect reports why, although the others, which have
// noticed the same, end its exchange.
func TestRefusedCardIsNotLost(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	ctx, cancel := context.WithCancel(l.ctx)
	calls := 0
	exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
		if calls++; calls == 1 {
			return [][]byte{mine, []byte(`{"version":9}`)}, nil
		}
		cancel()
		return nil, ctx.Err()
	}
	_, err := shmem.Join(ctx, l.doms[0], shmem.Config{Size: 2, HeapSize: 8192, Exchange: exchange})
	if err == nil || !strings.Contains(err.Error(), "version 9") || shmem.OnlyCanceled(err) {
		t.Error(err)
	}
}
