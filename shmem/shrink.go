package shmem

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
	"ibverbx/internal/roster"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// The PEs of a team that are left agree on who is gone: each writes what it knows to all others,
// and again when it finds another one gone, until all that are left have written the same. With it
// each writes how many messages it has posted to the other. Those that were not taken belong to
// calls that have failed, and are dropped.

// Shrink makes a team of those PEs of t that have not failed or closed, in the order of their
// ranks, after calls of t have ended with a [PEError]. All PEs that are left call it, each after
// its own call has failed; if none has, the team has the same PEs. It promises this:
//
//   - The PEs that return a team have the same one. No PE that any of them knew to be gone before
//     is in it. Its calls meet no message of a call of t.
//   - What the failed calls of t were to write is undefined. PEs that are left write nothing more
//     to it.
//   - Calls of other teams must not be under way on any of the PEs. Those teams go on as before.
//   - Blocks of the heap stay where they are; only the team of all PEs allocates, so that is over.
//     Puts, gets and atomics among the PEs that are left go on.
//   - If another PE is lost meanwhile, the others leave it out as well, or the next call of the new
//     team fails: call Shrink of that team then. If one PE has returned before it noticed and
//     another one has not, this one waits until its ctx ends, and can then only Close. So do PEs of
//     which some reach a PE and others do not.
//   - The PEs that are left must outlive the failure: ibverbx run lets them with --continue.
//   - Close of the PEs that are left waits for each other, in the team of the last Shrink.
//
// If ctx ends first, the error names the PEs that have not called Shrink. If those that are left
// are in 64 teams already, all get [verbs.ErrNotSupported].
func (t *Team) Shrink(ctx context.Context) (*Team, error) {
	const op = "shrink"
	if err := needContext(op, ctx); err != nil {
		return nil, err
	}
	if err := t.enter(op); err != nil {
		return nil, err
	}
	defer t.pe.collective.Unlock()
	p := t.pe
	if err := p.checkInStep(ctx, op); err != nil {
		return nil, err
	}
	if p.drive(ctx); p.exchange.under.Load() != 0 {
		return nil, opError(op, fmt.Errorf("%w: calls are under way: wait for their ends", ErrBusy))
	}
	s := &shrinking{team: t, told: make([]telling, len(t.members))}
	err := p.worker.WaitFor(ctx, p.cfg.Step, func() bool { return s.agreed() || p.mustStop() != 0 })
	switch w := p.mustStop(); {
	case s.err != nil:
		return nil, opError(op, s.err)
	case w != 0:
		return nil, p.stopped(op, w)
	case err != nil:
		return nil, s.giveUp(ctx, opError(op, s.late(ctx, err)))
	}
	child, err := s.finish()
	if err == nil {
		err = p.flushLocal(ctx, op, child)
	}
	if err != nil {
		return nil, err
	}
	return child, nil
}

// shrinking is a Shrink under way.
type shrinking struct {
	team *Team
	view uint64    // what this PE knows: a hash of the team, the number of the Shrink, and who is gone
	told []telling // by rank
	err  error
}

// telling is how far a PE is told.
type telling struct {
	view uint64 // that is written to it, or was
	step int    // the next of orders and words; all are done at shrinkSteps
}

// isLeft reports whether a PE is not gone.
func (s *shrinking) isLeft(t *peer) bool { return t.id == s.team.pe.id || t.gone.Load() == nil }

// agreed tells the others what this PE knows, and reports whether all that are left know the same.
func (s *shrinking) agreed() bool {
	in := s.team
	s.view = collective.Mix(in.id+1, in.shrinks+1)
	for _, t := range in.members {
		if !s.isLeft(t) {
			s.view = collective.Mix(s.view, uint64(t.id)+1)
		}
	}
	s.view |= 1 // not the zero of a PE that has written nothing
	all := true
	for rank, t := range in.members {
		if t.id == in.pe.id || !s.isLeft(t) {
			continue
		}
		told := s.tell(t, &s.told[rank])
		all = all && told
		all = all && t.shrinkWord(shrinkView) == s.view
	}
	return all
}

// The words of a Shrink, in the order in which they are written.
const (
	shrinkPosted = iota // messages posted to the PE
	shrinkTaken         // slots of teams that are taken
	shrinkView
	shrinkSteps = 2 * (shrinkView + 1) // each behind the one before
)

// tell writes to a peer what this PE knows, behind all that it has sent, and reports whether it has
// written all. What finds no room is tried again.
func (s *shrinking) tell(t *peer, told *telling) bool {
	p := s.team.pe
	if told.view != s.view {
		*told = telling{view: s.view}
	}
	words := [...]uint64{shrinkPosted: t.posted, shrinkTaken: p.taken(), shrinkView: s.view}
	for ; told.step < shrinkSteps; told.step++ {
		var err error
		if i := told.step / 2; told.step%2 == 0 {
			err = t.order(noWait{})
		} else {
			err = t.putOwnWord(noWait{}, p.layout.word(p.id, wordShrink+i), words[i])
		}
		if ok, err := tried(err); !ok {
			if err != nil && t.gone.Load() == nil && !errors.As(err, new(*transport.EndpointError)) {
				s.err = err
			}
			return false
		}
	}
	return true
}

// finish drops the messages of calls that have failed, and makes the team.
func (s *shrinking) finish() (*Team, error) {
	in, p := s.team, s.team.pe
	c := &Team{pe: p, name: in.name + "/shrunk", id: collective.Mix(s.view, in.id)}
	c.record.Hash = c.id
	taken := p.taken()
	p.lock()
	for _, t := range in.members {
		if t.id == p.id {
			c.rank = len(c.members)
		} else if !s.isLeft(t) {
			continue
		} else {
			taken |= t.shrinkWord(shrinkTaken)
			t.drain(t.shrinkWord(shrinkPosted))
		}
		c.members = append(c.members, t)
	}
	p.exchange.mu.Unlock()
	in.shrinks++
	if taken == 1<<maxTeams-1 {
		return nil, opError("shrink", fmt.Errorf("%w: the PEs left have %d teams: close some",
			verbs.ErrNotSupported, maxTeams))
	}
	c.slot = bits.TrailingZeros64(^taken)
	p.enlist(c)
	p.survivors = c
	return c, nil
}

// late adds the PEs that have not called Shrink to the error of an expired deadline.
func (s *shrinking) late(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) {
		return err
	}
	n := len(s.team.pe.peers)
	missing := make([]bool, n)
	for _, t := range s.team.members {
		missing[t.id] = t.id != s.team.pe.id && s.isLeft(t) && t.shrinkWord(shrinkView) != s.view
	}
	call := fmt.Sprintf("called shrink of %v, or not with the same PEs gone", s.team)
	who := roster.Late("PE", n, func(i int) bool { return missing[i] }, "has not "+call, "have not "+call)
	if who == "" {
		return err
	}
	return fmt.Errorf("%w: %s", errwrap.ContextErr(ctx), who)
}

// giveUp records that this PE is out of step.
func (s *shrinking) giveUp(ctx context.Context, err error) error {
	p := s.team.pe
	if ctx.Err() == nil {
		return err
	}
	p.lock()
	defer p.exchange.mu.Unlock()
	p.failed = failure{kind: kindSplit, err: err}
	return err
}
