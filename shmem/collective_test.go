package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/shmem"
	"ibverbx/verbs"
)

// eachWorld runs a test with numbers of PEs that the game does not have, and some that it has.
func eachWorld(t *testing.T, test func(t *testing.T, l *testbed, pes int)) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { test(t, newTestbed(t, shape{n, 1, 2}, shmem.Config{}), n) })
	}
}

func value(pe, i, round int) int64 { return int64(pe*1000003 + i*7 + round*31) }

// Collective calls take vectors of no elements, and of many, by whichever algorithm: the data goes
// in pieces, and that of one call by several schedules, one after another.
func TestLengthsOfVectors(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		for _, c := range []struct {
			window int
			shared bool
			most   int
		}{{512, false, 100000}, {512, true, 20000}, {2, false, 20000}, {16, true, 40000}} {
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				shmem.SetAlgorithms(pe, c.window, c.shared)
				for _, n := range []int{0, 1, 13, 1000, 20000, 40000, 100000} {
					if n > c.most || n*pes > 300000 {
						break
					}
					if err := vectors(ctx, pe, n); err != nil {
						return fmt.Errorf("%+v: %d elements: %w", c, n, err)
					}
				}
				return nil
			})
		}
	})
}

// group is a PE or a team.
type group interface {
	shmem.Group
	Rank() int
	Size() int
}

func vectors(ctx context.Context, pe group, n int) error {
	me, pes := pe.Rank(), pe.Size()
	check := func(what string, err error, got []int64, want func(i int) int64) error {
		for i, v := range got {
			if err == nil && v != want(i) {
				return wrong("%s: PE %d has %d at %d, want %d", what, me, v, i, want(i))
			}
		}
		return err
	}
	fill := func(v []int64) []int64 {
		for i := range v {
			v[i] = value(me, i, 0)
		}
		return v
	}
	for root := 0; root < pes; root += 1 + n/1000 {
		v := fill(make([]int64, n))
		err := shmem.Broadcast(ctx, pe, v, root)
		if err = check("broadcast", err, v, func(i int) int64 { return value(root, i, 0) }); err != nil {
			return err
		}
	}
	v := fill(make([]int64, n))
	err := shmem.Reduce(ctx, pe, v, v, shmem.OpMax)
	err = check("reduce", err, v, func(i int) int64 { return value(pes-1, i, 0) })
	if err != nil {
		return err
	}
	sum := make([]int64, n)
	err = shmem.Reduce(ctx, pe, sum, fill(v), shmem.OpSum)
	err = check("sum", err, sum, func(i int) (want int64) {
		for p := range pes {
			want += value(p, i, 0)
		}
		return want
	})
	if err != nil {
		return err
	}
	err = shmem.Scan(ctx, pe, sum, fill(v), shmem.OpSum)
	err = check("scan", err, sum, func(i int) (want int64) {
		for p := range me + 1 {
			want += value(p, i, 0)
		}
		return want
	})
	if err != nil {
		return err
	}
	err = shmem.ReduceScatter(ctx, pe, sum, fill(make([]int64, n*pes)), shmem.OpSum)
	err = check("reduce-scatter", err, sum, func(i int) (want int64) {
		for p := range pes {
			want += value(p, n*me+i, 0)
		}
		return want
	})
	if err != nil {
		return err
	}
	v = fill(v)
	err = shmem.Scan(ctx, pe, v, v, shmem.OpMax)
	if err = check("scan in place", err, v, func(i int) int64 { return value(me, i, 0) }); err != nil {
		return err
	}
	all := make([]int64, n*pes)
	err = shmem.AllGather(ctx, pe, all, fill(v))
	if err = check("all-gather", err, all, func(i int) int64 { return value(i/n, i%n, 0) }); err != nil {
		return err
	}
	err = shmem.AllToAll(ctx, pe, all, fill(make([]int64, n*pes)))
	return check("all-to-all", err, all, func(i int) int64 { return value(i/n, me*n+i%n, 0) })
}

// teamsOf makes teams of all kinds: overlapping, of one PE, in reverse, and of teams. This PE is in
// those that are not nil.
func teamsOf(ctx context.Context, pe *shmem.PE) (teams [5]*shmem.Team, err error) {
	n := pe.Size()
	teams[0] = pe.Team()
	if teams[1], err = pe.Team().Split(ctx, pe.Rank()%3, -pe.Rank()); err != nil {
		return teams, err
	}
	if teams[2], err = pe.Team().SplitStrided(ctx, n-1, -1, n); err != nil {
		return teams, err
	}
	if teams[3], err = pe.Team().SplitStrided(ctx, n/2, 1, n-n/2); err != nil {
		return teams, err
	}
	teams[4], err = teams[1].Split(ctx, teams[1].Rank()/2-pe.Rank()/7, 0)
	return teams, err
}

// The calls of teams are right in any order that is the same for their PEs, with PEs in many teams,
// and some of them ahead.
func TestTeams(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			shmem.SetAlgorithms(pe, 2, false)
			teams, err := teamsOf(ctx, pe)
			if err != nil {
				return err
			}
			for i := range 10 + rounds() { // all PEs draw the same numbers
				draw := value(0, i, i*i)
				team := teams[draw%5]
				if team == nil {
					continue
				}
				switch draw / 5 % 3 {
				case 0:
					err = team.Sync(ctx)
				case 1:
					err = vectors(ctx, team, int(draw%17))
				default:
					err = shmem.Broadcast(ctx, team, make([]byte, 5), int(draw)%team.Size())
				}
				if err != nil {
					return fmt.Errorf("%v: %w", team, err)
				}
			}
			for _, team := range teams {
				if team == nil {
					continue
				}
				if err := vectors(ctx, team, 3000); err != nil {
					return fmt.Errorf("%v: %w", team, err)
				}
			}
			return nil
		})
	})
}

// Ranks are in the order of the keys, and translate to those of other teams.
func TestRanksOfTeams(t *testing.T) {
	l := newTestbed(t, shape{7, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		teams, err := teamsOf(ctx, pe)
		if err != nil {
			return err
		}
		for i, want := range [][]int{{0, 1, 2, 3, 4, 5, 6}, [][]int{{6, 3, 0}, {4, 1}, {5, 2}}[pe.Rank()%3],
			{6, 5, 4, 3, 2, 1, 0}, {3, 4, 5, 6}} {
			team := teams[i]
			if in := slices.Contains(want, pe.Rank()); !in || team == nil {
				if in || team != nil {
					return wrong("PE %d: team %d is %v, want %v", pe.Rank(), i, team, want)
				}
				continue
			}
			var pes []int
			for rank := range team.Size() {
				pes = append(pes, team.Translate(rank, pe.Team()))
				if back := pe.Team().Translate(pes[rank], team); back != rank {
					return wrong("%v: rank %d is PE %d, and that is rank %d", team, rank, pes[rank], back)
				}
			}
			if !slices.Equal(pes, want) || want[team.Rank()] != pe.Rank() {
				return wrong("%v of PE %d: %v, rank %d, want %v", team, pe.Rank(), pes, team.Rank(), want)
			}
		}
		if got := pe.Team().Translate(6, teams[1]); (got != -1) != (pe.Rank()%3 == 0) {
			return wrong("PE 6 is rank %d of %v of PE %d", got, teams[1], pe.Rank())
		}
		if a, b := pe.Team().Translate(7, pe.Team()), pe.Team().Translate(-1, pe.Team()); a != -1 || b != -1 {
			return wrong("ranks that do not exist are ranks %d and %d", a, b)
		}
		if said := teams[1].String(); said != fmt.Sprintf("team \"world/%d\"", pe.Rank()%3) {
			return wrong("it is called %s", said)
		}
		return nil
	})
}

// A PE outside a team has none: its calls are refused, and those of the team's PEs go on.
func TestNoTeam(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		team, err := pe.Team().Split(ctx, -pe.Rank(), 0)
		if err != nil {
			return err
		}
		if pe.Rank() == 0 {
			return vectors(ctx, team, 3)
		}
		if team.Rank() != -1 || team.Size() != 0 || team.String() != "no team" ||
			team.Translate(0, pe.Team()) != -1 || team.Translate(0, nil) != -1 ||
			pe.Team().Translate(1, nil) != -1 {
			return wrong("%v of rank %d and size %d", team, team.Rank(), team.Size())
		}
		v := make([]int64, 2)
		errs := []error{team.Sync(ctx), team.Close(), errorOf(team.Split(ctx, 0, 0)),
			errorOf(team.SplitStrided(ctx, 0, 1, 1))}
		for _, on := range []shmem.Group{team, nil} {
			errs = append(errs, shmem.Broadcast(ctx, on, v, 0), shmem.AllGather(ctx, on, v, v),
				shmem.AllToAll(ctx, on, v, v), shmem.Reduce(ctx, on, v, v, shmem.OpSum),
				shmem.ReduceScatter(ctx, on, v, v, shmem.OpSum), shmem.Scan(ctx, on, v, v, shmem.OpSum),
				shmem.ReduceFunc(ctx, on, v, v, func(a, _ int64) int64 { return a }),
				shmem.ReduceFunc(ctx, on, v, v, nil))
		}
		for i, err := range errs {
			if !errors.Is(err, verbs.ErrInvalid) ||
				!strings.HasSuffix(err.Error(), "no team: this PE is in none") {
				return wrong("call %d: %v", i, err)
			}
		}
		return nil
	})
}

// A team that was closed makes no calls, and leaves room for another. If one PE has none, all are
// refused, and go on.
func TestTeamsThatAreClosed(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		if err := pe.Team().Close(); !errors.Is(err, verbs.ErrInvalid) {
			return wrong("close of all PEs: %v", err)
		}
		for range 100 {
			team, err := pe.Team().Split(ctx, 0, 0)
			if err != nil {
				return err
			}
			if err := team.Sync(ctx); err != nil {
				return err
			}
			if err := errors.Join(team.Close(), vectors(ctx, pe, 3)); err != nil {
				return err
			}
			for _, err := range []error{team.Sync(ctx), team.Close(), vectors(ctx, team, 1)} {
				if !errors.Is(err, shmem.ErrClosed) {
					return wrong("a call of a team that was closed: %v", err)
				}
			}
		}
		var last *shmem.Team
		for i := range 64 { // PE 1 has one team less
			color := 0
			if i == 0 && pe.Rank() == 1 {
				color = -1
			}
			team, err := pe.Team().Split(ctx, color, 0)
			if i == 63 {
				if !errors.Is(err, verbs.ErrNotSupported) ||
					!strings.Contains(err.Error(), "of color 0 have 64") {
					return wrong("team 65: %v", err)
				}
				continue
			}
			if err != nil || (team == nil) != (color < 0) {
				return wrong("split %d: %v, %v", i, team, err)
			}
			last = team
		}
		if err := last.Close(); err != nil {
			return err
		}
		team, err := pe.Team().Split(ctx, 5, 0)
		if err != nil {
			return err
		}
		return vectors(ctx, team, 3)
	})
}

// An AllGather may be in place, in one schedule or several: src is this PE's part of dst.
func TestAllGatherInPlace(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			shmem.SetAlgorithms(pe, 2, false)
			for _, n := range []int{0, 1, 13, 1000, 20000} {
				all := make([]int64, n*pes)
				mine := all[n*pe.Rank():][:n]
				for i := range mine {
					mine[i] = value(pe.Rank(), i, n)
				}
				if err := shmem.AllGather(ctx, pe, all, mine); err != nil {
					return err
				}
				for i, v := range all {
					if want := value(i/n, i%n, n); v != want {
						return wrong("%d elements: PE %d has %d at %d, want %d", n, pe.Rank(), v, i, want)
					}
				}
			}
			return nil
		})
	})
}

// The root has the parts of all in order, and each PE its own, also in place, and in pieces.
func TestGatherAndScatter(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			shmem.SetAlgorithms(pe, 2, false)
			for k, n := range []int{0, 1, 13, 1000, 20000} {
				root, inPlace := k%pes, k%2 == 0
				var all []int64
				mine := make([]int64, n)
				if pe.Rank() == root {
					if all = make([]int64, n*pes); inPlace {
						mine = all[n*root:][:n]
					}
				}
				for i := range mine {
					mine[i] = value(pe.Rank(), i, n)
				}
				if err := shmem.Gather(ctx, pe, all, mine, root); err != nil {
					return err
				}
				for i, v := range all {
					if want := value(i/n, i%n, n); v != want {
						return wrong("%d elements: PE %d has %d at %d, want %d", n, pe.Rank(), v, i, want)
					}
				}
				clear(mine)
				if inPlace && pe.Rank() == root {
					for i := range mine {
						mine[i] = value(root, i, n)
					}
				}
				if err := shmem.Scatter(ctx, pe, mine, all, root); err != nil {
					return err
				}
				for i, v := range mine {
					if want := value(pe.Rank(), i, n); v != want {
						return wrong("%d elements: PE %d gets %d at %d, want %d", n, pe.Rank(), v, i, want)
					}
				}
			}
			return nil
		})
	})
}

// The root of a broadcast gets ahead of the others by the two pieces that a mailbox holds.
func TestARootGetsAhead(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	pes, pieces := l.world.PEs(), make([]byte, 2*64<<10)
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	if err := shmem.Broadcast(ctx, pes[0], pieces, 0); err != nil {
		t.Error(err)
	}
	if err := shmem.Broadcast(l.ctx, pes[1], pieces, 0); err != nil {
		t.Error(err)
	}
}

// Sums of floats have the same bits on every PE, and ReduceFunc takes any function.
func TestReduceFloatsAndFunc(t *testing.T) {
	eachWorld(t, func(t *testing.T, l *testbed, pes int) {
		results := make([][]float64, pes)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			v := make([]float64, 30)
			for i := range v {
				v[i] = 1 / float64(pe.Rank()*30+i+3)
			}
			results[pe.Rank()] = make([]float64, 30)
			if err := shmem.Reduce(ctx, pe, results[pe.Rank()], v, shmem.OpSum); err != nil {
				return err
			}
			// Composition of functions x -> m*x + c is associative, and the order matters.
			fn := []int64{int64(pe.Rank()%3+2)<<32 | int64(pe.Rank()+1)}
			compose := func(f, g int64) int64 {
				m, c := f>>32, f&0xffffffff
				return (m * (g >> 32) % 9973 << 32) | (c*(g>>32)+g&0xffffffff)%9973
			}
			want := int64(2<<32 | 1)
			for p := 1; p < pes; p++ {
				want = compose(want, int64(p%3+2)<<32|int64(p+1))
			}
			if err := shmem.ReduceFunc(ctx, pe, fn, fn, compose); err != nil || fn[0] != want {
				return wrong("func: %#x, %v; want %#x", fn[0], err, want)
			}
			return nil
		})
		for i := range results {
			if !slices.Equal(results[i], results[0]) {
				t.Fatalf("PE %d and PE 0 have different bits", i)
			}
		}
	})
}

// Floats of 16 bits are added as floats, and have no bits to combine.
func TestReduceFloatsOf16Bits(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		half := []shmem.Float16{shmem.ToFloat16(float32(pe.Rank()) + 0.5)}
		if err := shmem.Reduce(ctx, pe, half, half, shmem.OpSum); err != nil || half[0].Float32() != 4.5 {
			return wrong("float16: %v, %v, want 4.5", half[0].Float32(), err)
		}
		brain := []shmem.BFloat16{shmem.ToBFloat16(float32(-pe.Rank()))}
		if err := shmem.Reduce(ctx, pe, brain, brain, shmem.OpMin); err != nil || brain[0].Float32() != -2 {
			return wrong("bfloat16: %v, %v, want -2", brain[0].Float32(), err)
		}
		return nil
	})
	l.run(func(ctx context.Context, pe *shmem.PE) error { // it ends what others are in
		half := make([]shmem.Float16, 1)
		if err := shmem.Reduce(ctx, pe, half, half, shmem.OpAnd); !errors.Is(err, verbs.ErrInvalid) {
			return wrong("and: %v", err)
		}
		return nil
	})
}

// A Reduce may be in place, and its vectors may overlap; it allocates nothing.
func TestReduceInPlace(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		for _, from := range []int{0, 1, 6, 7} {
			v := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
			if err := shmem.Reduce(ctx, pe, v[3:9], v[from:from+6], shmem.OpXor); err != nil {
				return err
			}
			if want := make([]uint32, 6); !slices.Equal(v[3:9], want) {
				return wrong("from %d: %v, want %v", from, v[3:9], want)
			}
		}
		return nil
	})
	if guard.Race {
		return // it allocates itself
	}
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		src, dst := make([]float64, 1000), make([]float64, 1000)
		for i := range src {
			src[i] = 1
		}
		once := func() {
			if err := shmem.Reduce(ctx, pe, dst, src, shmem.OpSum); err != nil || dst[999] != 2 {
				t.Errorf("%v, %v", dst[999], err)
			}
		}
		if pe.Rank() == 1 {
			for range 21 { // AllocsPerRun calls it once more
				once()
			}
			return nil
		}
		if n := testing.AllocsPerRun(20, once); n >= 1 {
			t.Errorf("%v allocations", n)
		}
		return nil
	})
}

// Calls of different kinds follow each other without anything between them, while some PEs are
// slower than others.
func TestCollectivesBackToBack(t *testing.T) {
	t.Run("patient", func(t *testing.T) { collectivesBackToBack(t, shmem.Config{}) })
	// PEs that ask almost at once whether they are in the same call find that they are.
	t.Run("asking", func(t *testing.T) { collectivesBackToBack(t, shmem.Config{Step: time.Nanosecond}) })
}

func collectivesBackToBack(t *testing.T, cfg shmem.Config) {
	l := newTestbed(t, shape{5, 1, 2}, cfg)
	l.lag(5, isWrite)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		for round := range 2 * rounds() {
			one, five := []int64{value(pe.Rank(), 0, round)}, make([]int64, 5)
			if err := shmem.AllGather(ctx, pe, five, one); err != nil {
				return err
			}
			if err := shmem.Broadcast(ctx, pe, one, round%5); err != nil {
				return err
			}
			if one[0] != five[round%5] {
				return wrong("round %d: broadcast %d, gathered %v", round, one[0], five)
			}
			sum := []int64{five[pe.Rank()]}
			if err := shmem.Reduce(ctx, pe, sum, sum, shmem.OpSum); err != nil {
				return err
			}
			if want := five[0] + five[1] + five[2] + five[3] + five[4]; sum[0] != want {
				return wrong("round %d: sum %d, want %d", round, sum[0], want)
			}
			s, err := shmem.Alloc[byte](ctx, pe, 1)
			if err != nil {
				return err
			}
			if err := shmem.Free(ctx, pe, s); err != nil {
				return err
			}
		}
		return nil
	})
	if asked := shmem.Asked(l.world.PEs()...); cfg.Step != 0 && asked == 0 {
		t.Error("no PE has asked")
	}
}

// No PE leaves a barrier before all have entered, for any number of PEs, back to back.
func TestBarrierAnyNumberOfPEs(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			l := newTestbed(t, shape{n, 1, 1}, shmem.Config{HeapSize: 1 << 12})
			var entered atomic.Int64
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				for round := range int64(2 * rounds()) {
					entered.Add(1)
					if err := pe.Sync(ctx); err != nil {
						return err
					}
					if got := entered.Load(); got < (round+1)*int64(n) {
						return wrong("PE %d left round %d when %d of %d had entered", pe.Rank(), round, got,
							(round+1)*int64(n))
					}
				}
				return nil
			})
		})
	}
}

// Collective calls are made by one goroutine at a time: a second is refused, whatever its arguments
// are, and does not disturb the first.
func TestOneCollectiveCallAtATime(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	s := allocate[uint64](l, 1)
	ctx, pe := l.ctx, l.world.PEs()[0]
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- pe.Barrier(ctx) }() // one of them stays: PE 1 does not come yet
	}
	if err := <-done; !errors.Is(err, shmem.ErrBusy) {
		t.Fatalf("second call: %v, want busy", err)
	}
	v := make([]uint64, 2)
	_, alloc := shmem.Alloc[uint64](ctx, pe, 1)
	for name, err := range map[string]error{
		"alloc": alloc, "free": shmem.Free(ctx, pe, s), "close": pe.Close(ctx),
		"broadcast": shmem.Broadcast(ctx, pe, v, 7), "reduce": shmem.Reduce(ctx, pe, v, v[:1], shmem.OpSum),
		"all-gather": shmem.AllGather(ctx, pe, v, v), "all-to-all": shmem.AllToAll(ctx, pe, v, v),
		"sync": pe.Sync(ctx),
	} {
		if !errors.Is(err, shmem.ErrBusy) {
			t.Errorf("%s meanwhile: %v, want busy", name, err)
		}
	}
	if err := errors.Join(l.world.PEs()[1].Barrier(ctx), <-done); err != nil {
		t.Errorf("first call: %v", err)
	}
}

// When one PE asks for another size all get an error that says which PE asked for what; they go on
// afterwards.
func TestAllocOfDifferentSizes(t *testing.T) {
	l := newTestbed(t, shape{4, 1, 2}, shmem.Config{})
	texts := make([]string, 4)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		n := 200
		if pe.Rank() == 3 {
			n = 100
		}
		_, err := shmem.Alloc[int64](ctx, pe, n)
		if !errors.Is(err, shmem.ErrMismatch) {
			return wrong("%v, want a mismatch", err)
		}
		texts[pe.Rank()] = err.Error()
		_, err = shmem.Alloc[int64](ctx, pe, 50)
		return err
	})
	want := "shmem: alloc: collective calls do not match: PE 0, 1, 2 asked for 200 elements of 8 bytes; PE " +
		"3 asked for 100 elements of 8 bytes"
	for i, got := range texts {
		if got != want {
			t.Errorf("PE %d:\n%s, want\n%s", i, got, want)
		}
	}
}

// All PEs get the same error for a full heap and for a wrong argument.
func TestAllocRefusals(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{HeapSize: 1 << 12})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		s, err := shmem.Alloc[byte](ctx, pe, 4000)
		if err != nil {
			return err
		}
		for _, n := range []int{100, 1 << 40, 1<<63 - 1} {
			if _, err := shmem.Alloc[int64](ctx, pe, n); !errors.Is(err, shmem.ErrNoMemory) ||
				!strings.Contains(err.Error(), fmt.Sprint(n)) && n != 100 {
				return wrong("alloc of %d: %v", n, err)
			}
		}
		if _, err := shmem.Alloc[int64](ctx, pe, -1); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), "n -1") {
			return wrong("alloc of -1: %v", err)
		}
		for _, part := range []shmem.Sym[byte]{s.Slice(0, 100), s.Slice(64, 4000), {}} {
			if err := shmem.Free(ctx, pe, part); !errors.Is(err, verbs.ErrInvalid) ||
				!strings.Contains(err.Error(), "no such block") {
				return wrong("free of %d bytes at %d: %v", part.Len(), part.Offset(), err)
			}
		}
		if err := shmem.Free(ctx, pe, s); err != nil {
			return err
		}
		if err := shmem.Free(ctx, pe, s); !errors.Is(err, verbs.ErrInvalid) {
			return wrong("second free: %v", err)
		}
		return nil
	})
}

// PEs that free different blocks all get ErrMismatch.
func TestFreeOfDifferentBlocks(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		var s [2]shmem.Sym[byte]
		for i := range s {
			var err error
			if s[i], err = shmem.Alloc[byte](ctx, pe, 10); err != nil {
				return err
			}
		}
		if err := shmem.Free(ctx, pe, s[pe.Rank()]); !errors.Is(err, shmem.ErrMismatch) {
			return wrong("free: %v", err)
		}
		return shmem.Free(ctx, pe, s[0])
	})
}
