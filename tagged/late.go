package tagged

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ibverbx/internal/errwrap"
	"ibverbx/internal/roster"
)

// A collective call whose deadline has passed says which ranks have not made it. The rank that this
// one waits for often waits itself, so this one calls the roll: it asks those that it waits for,
// and then those that they wait for. A rank answers whenever its worker makes progress. One that
// does not answer is named, too: its program is neither in a call, nor has it started the worker.

// answerTime is how long to wait for answers.
const answerTime = 500 * time.Millisecond

// roll is a roll call under way.
type roll struct {
	step uint64
	said map[int]answer // by rank; those that were asked
	next []int          // ranks to be asked
}

// answer is what a rank has said about a call.
type answer uint8

const (
	saidNothing answer = iota
	saidAbsent         // it has not made the call
	saidEntered
)

// heard handles the answer of a rank: the step that it has come to, and the ranks that it waits
// for.
func (l *roll) heard(from int, step uint64, waits []int) {
	if _, asked := l.said[from]; !asked {
		return
	}
	if step < l.step {
		l.said[from] = saidAbsent
		return
	}
	l.said[from] = saidEntered
	l.next = append(l.next, waits...)
}

// silent reports whether a rank that was asked has not answered.
func (l *roll) silent() bool {
	for _, a := range l.said {
		if a == saidNothing {
			return true
		}
	}
	return false
}

// entered is the note that answers a roll call about a step.
func (x *exchange) entered(step uint64) []byte {
	note := newNote(noteEntered, x.record.Step, step)
	for _, c := range x.calls {
		if c.step == step {
			for rank := range c.peers {
				if len(note)+4 <= maxNote {
					note = binary.LittleEndian.AppendUint32(note, uint32(rank))
				}
			}
		}
	}
	return note
}

// peers yields the ranks that the call waits for.
func (c *flight) peers(yield func(rank int) bool) {
	for i, b := range c.waiting {
		rank := c.run.Step(b.step).Peer
		before := func(b begun) bool { return c.run.Step(b.step).Peer == rank }
		if !slices.ContainsFunc(c.waiting[:i], before) && !yield(rank) {
			return
		}
	}
}

// callRoll asks which ranks have not made the call of a request. It releases mu meanwhile, so that
// all calls go on, and returns early if this one ends.
func (x *exchange) callRoll(r *Request) *roll {
	c := x.callOf(r)
	l := &roll{step: c.step, said: map[int]answer{}}
	for rank := range c.peers {
		l.next = append(l.next, rank)
	}
	x.rolls = append(x.rolls, l)
	x.release()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	looks := 0
	_ = x.w.tw.WaitFor(ctx, time.Millisecond, func() bool {
		if looks++; looks > 1000 && x.w.cfg.Transport.Idle != nil {
			return true // its scheduler has its own clock
		}
		x.mu.Lock()
		defer x.release()
		x.askNext(l)
		return r.Done() || len(l.next) == 0 && !l.silent()
	})
	x.mu.Lock()
	x.rolls = slices.DeleteFunc(x.rolls, func(other *roll) bool { return other == l })
	return l
}

// askNext asks the ranks that have not been asked.
func (x *exchange) askNext(l *roll) {
	for _, rank := range l.next {
		if _, asked := l.said[rank]; asked || rank == x.t.rank {
			continue
		}
		l.said[rank] = saidNothing
		if e, err := x.t.Peer(rank); err == nil {
			x.sendNote(e, newNote(noteRoll, l.step, 0))
		}
	}
	l.next = l.next[:0]
}

// late says which ranks the call of a request waits for, after the error of a context that has
// ended. If that was a deadline, it finds out which have not made the call, and which do not
// answer; the call may end meanwhile.
func (x *exchange) late(ctx context.Context, r *Request, err error) error {
	ended := ctx.Err()
	if ended == nil || !errors.Is(err, ended) {
		return err
	}
	if !errors.Is(ended, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %s", errwrap.ContextErr(ctx), x.awaited(x.callOf(r)))
	}
	l := x.callRoll(r)
	c := x.callOf(r)
	if c == nil {
		return err
	}
	e := &lateError{size: x.w.cfg.Size}
	named := func(which answer, one, many string) (text string) {
		return x.named(func(rank int) bool {
			a, asked := l.said[rank]
			return asked && a == which
		}, one, many)
	}
	var said []string
	for _, text := range []string{
		named(saidAbsent, "has not called it", "have not called it"),
		named(saidNothing, "has not answered", "have not answered"),
	} {
		if text != "" {
			said = append(said, text)
		}
	}
	for rank, a := range l.said {
		if a != saidEntered {
			e.late = append(e.late, x.t.world(rank))
		}
	}
	slices.Sort(e.late)
	if len(said) == 0 {
		said = append(said, "all have called it, "+x.awaited(c))
	}
	e.err = fmt.Errorf("%w: %s", errwrap.ContextErr(ctx), strings.Join(said, "; "))
	return e
}

// awaited says which ranks the call waits for.
func (x *exchange) awaited(c *flight) string {
	return x.named(func(rank int) bool {
		return slices.ContainsFunc(c.waiting, func(b begun) bool { return c.run.Step(b.step).Peer == rank })
	}, "is awaited", "are awaited")
}

// named says which members are late, by their ranks in the world.
func (x *exchange) named(late func(rank int) bool, one, many string) string {
	is := func(world int) bool {
		rank := x.t.find(world)
		return rank >= 0 && late(rank)
	}
	if x.w.ranks.hosts == nil {
		return roster.Late("rank", x.w.cfg.Size, is, one, many)
	}
	var names []string
	for world := range x.w.cfg.Size {
		if is(world) {
			names = append(names, x.w.ranks.name(world))
		}
	}
	return roster.Named(names, one, many)
}

// name names a member by its rank in the world.
func (x *exchange) name(rank int) string { return x.w.ranks.name(x.t.world(rank)) }

// lateError is the error of a collective call whose deadline has passed.
type lateError struct {
	err  error // its text names the ranks
	late []int
	size int
}

func (e *lateError) Error() string { return e.err.Error() }
func (e *lateError) Unwrap() error { return e.err }

// Late returns which of how many ranks have not made the call or do not answer. Job.Fail of package
// job looks for it.
func (e *lateError) Late() (ranks []int, size int) { return e.late, e.size }
