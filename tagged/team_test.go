package tagged_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/tagged"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// split has the ranks of a team split it, by their ranks, and returns what each is in.
func (r *rig) split(of []*tagged.Team, color, key func(rank int) int) []*tagged.Team {
	r.t.Helper()
	ctx := timeout(r.t, 20*time.Second)
	teams := make([]*tagged.Team, len(of))
	r.must("split", func(rank int, _ *tagged.Worker) (err error) {
		if of[rank] != nil {
			teams[rank], err = of[rank].Split(ctx, color(rank), key(rank))
		}
		return err
	})
	return teams
}

// worlds returns the world of each rank.
func (r *rig) worlds() (all []*tagged.Team) {
	for _, w := range r.workers {
		all = append(all, w.World())
	}
	return all
}

func zero(int) int { return 0 }

// TestTeams: ranks of one color are in one team, in the order of their keys; numbers translate, and
// calls combine the values of members only.
func TestTeams(t *testing.T) {
	const ranks = 6
	r := newJoined(t, ranks, tagged.Config{OnDemand: true})
	ctx := background(r)
	color := func(rank int) int { return []int{7, 0, 7, -1, 0, 7}[rank] }
	teams := r.split(r.worlds(), color, func(rank int) int { return -rank / 2 })
	for rank, want := range [][]int{{5, 2, 0}, {4, 1}, {5, 2, 0}, nil, {4, 1}, {5, 2, 0}} {
		team, world := teams[rank], r.workers[rank].World()
		if want == nil {
			if team != nil {
				t.Errorf("rank %d is in the %v", rank, team)
			}
			continue
		}
		if team.Size() != len(want) || team.Rank() != slices.Index(want, rank) || team.String() != "team 1" {
			t.Errorf("rank %d is %d of %d of the %v", rank, team.Rank(), team.Size(), team)
		}
		for i := range ranks {
			if got := world.Translate(i, team); got != slices.Index(want, i) {
				t.Errorf("rank %d: rank %d is %d of the team, want %d", rank, i, got, slices.Index(want, i))
			}
		}
		if team.Translate(0, world) != want[0] || team.Translate(len(want), world) != -1 ||
			team.RankOf(nil) != -1 {
			t.Errorf("rank %d: number 0 is rank %d", rank, team.Translate(0, world))
		}
	}
	again := r.split(teams, zero, zero)
	r.must("sums", func(rank int, w *tagged.Worker) error {
		if teams[rank] == nil {
			return nil
		}
		var got [3]int64
		mine := []int64{1 << rank}
		all, errA := tagged.StartAllReduce(again[rank], got[:1], mine, tagged.OpSum)
		some, errB := tagged.StartAllReduce(teams[rank], got[1:2], mine, tagged.OpSum)
		if err := errors.Join(errA, errB, again[rank].Barrier(ctx), tagged.WaitAll(ctx, all, some),
			tagged.Scan(ctx, teams[rank], got[2:], mine, tagged.OpSum)); err != nil {
			return err
		}
		sum, upTo := map[int]int64{7: 1<<0 + 1<<2 + 1<<5, 0: 1<<1 + 1<<4}[color(rank)], int64(0)
		for i := range teams[rank].Rank() + 1 {
			upTo += 1 << teams[rank].Translate(i, w.World())
		}
		if want := [3]int64{sum, sum, upTo}; got != want {
			return fmt.Errorf("sums %v, want %v", got, want)
		}
		return nil
	})
}

// TestTeamMessages: messages with one number in several teams meet only within each; a mask takes
// those of its team alone.
func TestTeamMessages(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{EagerLimit: 100})
	ctx := background(r)
	a := r.split(r.worlds(), zero, func(rank int) int { return -rank })
	b := r.split(a, zero, zero)
	to := func(teams []*tagged.Team) (got string) {
		t.Helper()
		for _, n := range []int{1, 150} { // copied, and read
			w, team := r.workers[0], teams[0]
			buf := make([]byte, n)
			any := r.recv(w, team.Tag(0), tagged.AnyOfTeam, buf)
			if err := any.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			info := any.Info()
			got += fmt.Sprintf("%s of %d by %d, ", buf[:1], uint32(info.Tag), team.RankOf(info.Source))
		}
		return got
	}
	plain := r.recv(r.workers[0], 0, tagged.Any, make([]byte, 1))
	for _, n := range []int{1, 150} {
		for name, team := range map[string]*tagged.Team{"a": a[2], "b": b[2], "w": r.workers[2].World()} {
			peer, err := team.Peer(team.RankOf(r.peer(2, 0)))
			if err != nil || peer != r.peer(2, 0) {
				t.Fatalf("%v: %v", peer, err)
			}
			r.send(peer, team.Tag(9), slices.Repeat([]byte(name), n))
		}
	}
	r.send(r.peer(2, 0), 9, []byte("p"))
	for name, teams := range map[string][]*tagged.Team{"a": a, "b": b, "w": r.worlds()} {
		rank := teams[0].RankOf(r.peer(0, 2))
		if got, want := to(teams), fmt.Sprintf("%s of 9 by %[2]d, %[1]s of 9 by %[2]d, ", name,
			rank); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if err := plain.Wait(ctx); err != nil || plain.Info().Tag != 9 {
		t.Errorf("%v: %v", plain.Info(), err)
	}
	// One that was sent before the receiver has the team is kept for it.
	early, header := []byte("early"), head(16, 0, 0, 0, b[0].Tag(3)+2<<32)
	if _, err := r.peer(2, 0).Transport().AMBcopy(tagged.FirstAMID, header,
		func(dst []byte) int { return copy(dst, early) }); err != nil {
		t.Fatal(err)
	}
	c := r.split(r.worlds(), zero, zero)
	got, _, err := r.workers[0].RecvAlloc(ctx, c[0].Tag(3), tagged.Exact, 8)
	if err != nil || string(got) != "early" {
		t.Errorf("%q: %v", got, err)
	}
}

// TestTeamClose: receives in a closed team end, further calls are refused, and messages that come
// late are dropped: their sends are done, and they take no place from others.
func TestTeamClose(t *testing.T) {
	r := newJoined(t, 2, tagged.Config{EagerLimit: 64, MaxUnexpected: 16})
	ctx := background(r)
	teams := r.split(r.worlds(), zero, zero)
	w, team := r.workers[0], teams[0]
	waits := []*tagged.Request{r.recv(w, team.Tag(1), tagged.Exact, make([]byte, 8)),
		r.recv(w, team.Tag(0), tagged.AnyOfTeam, make([]byte, 8))}
	own, err := r.peer(0, 1).Recv(team.Tag(2), tagged.Exact, make([]byte, 8))
	if err != nil {
		t.Fatal(err)
	}
	call, err := team.StartBarrier()
	if err != nil {
		t.Fatal(err)
	}
	waits[1].Cancel()
	unread, err := r.peer(1, 0).SendSync(teams[1].Tag(5), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { _, found := w.Probe(team.Tag(5), tagged.Exact); return found })
	if err := team.Close(); err != nil {
		t.Fatal(err)
	}
	for i, req := range []*tagged.Request{waits[0], own, call} {
		if err := req.Wait(ctx); !errors.Is(err, tagged.ErrClosed) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	_, errSend := r.peer(0, 1).Send(team.Tag(1), nil)
	_, errRecv := w.Recv(team.Tag(1), tagged.Exact)
	_, errProbe := w.ProbeWait(ctx, team.Tag(1), tagged.Exact)
	_, errSplit := team.Split(ctx, 0, 0)
	_, errShrink := team.Shrink(ctx, 1)
	for what, err := range map[string]error{"send": errSend, "recv": errRecv, "probe": errProbe,
		"split": errSplit, "shrink": errShrink, "barrier": team.Barrier(ctx), "close": team.Close()} {
		if !errors.Is(err, tagged.ErrClosed) || !strings.Contains(err.Error(), "team") {
			t.Errorf("%s: %v", what, err)
		}
	}
	sends := []*tagged.Request{unread}
	for i := range 40 { // more than there are places
		for _, n := range []int{1, 1000} {
			req := r.send(r.peer(1, 0), teams[1].Tag(uint32(i)), make([]byte, n))
			sync, err := r.peer(1, 0).SendSync(teams[1].Tag(uint32(i)), make([]byte, n))
			if err != nil {
				t.Fatal(err)
			}
			sends = append(sends, req, sync)
		}
	}
	if err := tagged.WaitAll(ctx, sends...); err != nil {
		t.Error(err)
	}
	if err := r.peer(1, 0).SendWait(ctx, 1, []byte("on")); err != nil {
		t.Error(err)
	}
	if _, err := w.RecvWait(ctx, 1, tagged.Exact, make([]byte, 2)); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.Unexpected != 0 {
		t.Errorf("%d messages wait", s.Unexpected)
	}
	r.must("barrier of the world", func(_ int, w *tagged.Worker) error { return w.Barrier(ctx) })
}

// TestTeamRefusals: what a team cannot do is refused, and says why.
func TestTeamRefusals(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	ctx := background(r)
	teams := r.split(r.worlds(), func(rank int) int { return rank / 2 }, zero)
	w, team := r.workers[0], teams[0]
	_, peer := team.Peer(2)
	_, outside := r.peer(0, 2).Send(team.Tag(1), nil)
	_, mask := w.Recv(team.Tag(1), tagged.Any)
	_, unknown := w.Recv(team.Tag(1)+1<<40, tagged.Exact)
	_, self := team.Shrink(ctx, 0)
	_, gone := team.Shrink(ctx, 2)
	_, none := team.Shrink(nil, 1) //nolint:staticcheck // it is refused
	root := tagged.Broadcast(ctx, team, []int8{1}, 2)
	var nobody *tagged.Team
	for want, err := range map[string]error{
		"rank 2: of 2 ranks of the team 1 the numbers are 0 to 1":         peer,
		"send: rank 2: invalid argument: it is not in the team 1":         outside,
		"mask 0x0: with the tag of a team it must have the upper 32 bits": mask,
		"the tag is above MaxTag, and that of no team":                    unknown,
		"rank 0: this one is 0 of 2: name others":                         self,
		"rank 2: this one is 0 of 2":                                      gone,
		"no context":                                                      none,
		"the world ends with its worker":                                  w.World().Close(),
		"tagged: barrier: invalid argument: the worker or team is nil":    nobody.Barrier(ctx),
		"broadcast 1 of team 1: invalid argument: root 2: of 2 ranks":     root,
	} {
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// What a rank sends that is not in the team does not reach the program, and ends nothing.
	got, err := w.Recv(team.Tag(0), tagged.AnyOfTeam, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.peer(2, 0).Transport().AMBcopy(tagged.FirstAMID, head(16, 0, 0, 0, team.Tag(1)),
		func([]byte) int { return 0 }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.peer(1, 0).Send(team.Tag(2), nil); err != nil {
		t.Fatal(err)
	}
	r.until(got.Done)
	if info := got.Info(); uint32(info.Tag) != 2 || r.peer(0, 2).Err() != nil {
		t.Errorf("%+v; %v", info, r.peer(0, 2).Err())
	}
}

// TestShrinkLists: a member that lives, and is left out, shrinks the team with another list. Both
// calls wait until their contexts end; messages and other teams of the two go on.
func TestShrinkLists(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	ctx := background(r)
	pairs := r.split(r.worlds(), func(rank int) int { return rank / 2 }, zero)
	for rank, err := range r.each(func(rank int, w *tagged.Worker) error {
		if rank == 2 {
			return nil
		}
		// Longer than until a question is asked.
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := w.World().Shrink(short, 1-rank)
		return err
	}) {
		if rank != 2 && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	for rank, err := range r.each(func(rank int, _ *tagged.Worker) error {
		return pairs[rank].Barrier(ctx)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestTeamNumberOfTwo: a team that only one rank has got, because the others gave up, has the
// number of a team that these make afterwards. Its calls end with their contexts, and nothing else
// does.
func TestTeamNumberOfTwo(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	for _, w := range r.workers {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := background(r)
	pairs := r.split(r.worlds(), func(rank int) int { return min(rank, 1) }, zero)
	half, own := make([]*tagged.Team, 3), make([]*tagged.Team, 3)
	stall := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(0), Count: -1})
	_ = r.each(func(rank int, w *tagged.Worker) (err error) {
		c, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		if rank == 0 {
			c, cancel = ctx, func() {}
		}
		defer cancel()
		half[rank], err = w.World().Split(c, 0, 0)
		return err
	})
	stall.Remove()
	if half[0] == nil || half[1] != nil || half[2] != nil {
		t.Skip("the ranks were too late for each other")
	}
	for rank, err := range r.each(func(rank int, _ *tagged.Worker) (err error) {
		if rank != 0 {
			own[rank], err = pairs[rank].Split(ctx, 0, 0)
		}
		return err
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := half[0].Barrier(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	for rank, err := range r.each(func(rank int, _ *tagged.Worker) error {
		if rank == 0 {
			return nil
		}
		return own[rank].Barrier(ctx)
	}) {
		if err != nil || r.peer(rank, (rank+1)%3).Err() != nil {
			t.Errorf("rank %d: %v, %v", rank, err, r.peer(rank, (rank+1)%3).Err())
		}
	}
}

// TestTeamMismatch: different calls of a team are refused on all of its members, with the numbers
// that these have in the world, and on no other team.
func TestTeamMismatch(t *testing.T) {
	r := newJoined(t, 4, tagged.Config{})
	ctx := background(r)
	teams := r.split(r.worlds(), func(rank int) int { return rank / 2 }, zero)
	named := false
	for rank, err := range r.each(func(rank int, _ *tagged.Worker) error {
		if rank == 3 {
			_, err := teams[rank].Split(ctx, 0, 0)
			return err
		}
		return tagged.AllGather(ctx, teams[rank], make([]int64, 6), make([]int64, 3))
	}) {
		if (rank < 2) != (err == nil) || rank >= 2 && !errors.Is(err, tagged.ErrMismatch) {
			t.Errorf("rank %d: %v", rank, err)
		}
		text := fmt.Sprint(err)
		named = named || strings.Contains(text, "of team 1: ") &&
			(strings.Contains(text, "rank 3 calls split") || strings.Contains(text, "rank 3, split"))
	}
	if !named {
		t.Error("nobody says what rank 3 has called")
	}
	r.must("the world", func(_ int, w *tagged.Worker) error { return w.Barrier(ctx) })
}

// TestTeamLate: a member whose deadline passes in a call of a team names those that are late, as
// ranks of the world.
func TestTeamLate(t *testing.T) {
	r := newJoined(t, 4, tagged.Config{OnDemand: true})
	ctx := background(r)
	teams := r.split(r.worlds(), func(rank int) int { return rank % 2 }, zero) // 0 2, 1 3
	call, err := teams[1].StartBarrier()
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	const want = "tagged: barrier 1 of team 1: context deadline exceeded: rank 3 of 4 has not "
	var late interface{ Late() ([]int, int) }
	if err := call.Wait(over); !errors.As(err, &late) || !strings.HasPrefix(err.Error(), want) {
		t.Fatalf("%v, want %s", err, want)
	}
	if who, size := late.Late(); !slices.Equal(who, []int{3}) || size != 4 {
		t.Errorf("ranks %v of %d are late", who, size)
	}
	if err := errors.Join(teams[3].Barrier(ctx), call.Wait(ctx)); err != nil {
		t.Error(err)
	}
}

// TestTeamDeath: a rank that dies ends the calls of its teams, with its name, and of no other; what
// is left of the world shrinks, again when another rank dies, and its numbers close up.
func TestTeamDeath(t *testing.T) {
	const ranks = 5
	r := newJoined(t, ranks, tagged.Config{})
	ctx := background(r)
	teams := r.split(r.worlds(), func(rank int) int { return rank / 2 }, zero) // 0 1, 2 3, 4
	die := func(dead int) {
		for other := range ranks {
			if e := r.peer(dead, other); other != dead && e.Err() == nil {
				if err := e.Abort(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	die(3)
	errs := r.each(func(rank int, w *tagged.Worker) error {
		if rank == 3 {
			return nil
		}
		if err := teams[rank].Barrier(ctx); err != nil || rank < 2 || rank == 4 {
			return err
		}
		return nil
	})
	for rank, err := range errs {
		if text := fmt.Sprint(err); (rank == 2) != (err != nil) || rank == 2 &&
			(!errors.Is(err, tagged.ErrPeerFailed) || !strings.Contains(text, "barrier 1 of team 1: ") ||
				!strings.Contains(text, "rank 3")) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	shrink := func(left []int, without ...int) (smaller [ranks]*tagged.Team) {
		t.Helper()
		for rank, err := range r.each(func(rank int, w *tagged.Worker) (err error) {
			if slices.Contains(left, rank) {
				smaller[rank], err = w.World().Shrink(ctx, without...)
			}
			return err
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", rank, err)
			}
		}
		for i, rank := range left {
			if s := smaller[rank]; s.Rank() != i || s.Size() != len(left) {
				t.Errorf("rank %d is %d of %d", rank, s.Rank(), s.Size())
			}
		}
		return smaller
	}
	sum := func(team [ranks]*tagged.Team, left []int, want int64) {
		t.Helper()
		r.must("sum", func(rank int, _ *tagged.Worker) error {
			if !slices.Contains(left, rank) {
				return nil
			}
			got := []int64{int64(rank)}
			if err := tagged.AllReduce(ctx, team[rank], got, got, tagged.OpSum); err != nil {
				return err
			}
			if got[0] != want {
				return fmt.Errorf("%d, want %d", got[0], want)
			}
			return nil
		})
	}
	// Rank 2 has not heard yet, and its list is too short: it fails, and joins the others.
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.workers[2].World().Shrink(over); !errors.Is(err, context.Canceled) {
		t.Errorf("rank 2 alone: %v", err)
	}
	left := []int{0, 1, 2, 4}
	smaller := shrink(left, 3)
	sum(smaller, left, 7)
	if err := r.workers[0].Barrier(ctx); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the world: %v", err)
	}
	die(4)
	if _, err := r.workers[2].World().Shrink(ctx, 4); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "1 ranks are left out: this call must leave out more") {
		t.Errorf("a list of the same length: %v", err)
	}
	left = []int{0, 1, 2}
	sum(shrink(left, 3, 4), left, 3)
}
