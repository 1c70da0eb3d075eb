package shmem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
	"ibverbx/internal/roster"
)

// A collective call whose deadline has passed says which PEs have not entered it. The PE that this
// one waits for often waits itself, so this one reads from every PE of the team how many calls of
// the team it has entered. This costs nothing until then. A PE that gives up tells the others,
// because it may end and not answer them any more.

// answerTime is how long to wait for answers. NICs answer in microseconds.
const answerTime = 500 * time.Millisecond

const (
	// leavingBit is a bit of the published number: the PE is in Close, after so many other calls.
	leavingBit = 1 << 63
	// ofTeam is a bit of what a PE writes that gives up in a call of a team without some PEs.
	ofTeam = 1 << 62
	// callsMask masks the calls in a published number. Above them are bits of the team's id.
	callsMask = 1<<40 - 1
)

// enterCall publishes how many collective calls of the team this PE has entered.
func (t *Team) enterCall(calls uint64) {
	word := word64(t.pe.heap, t.pe.layout.entered+8*uint64(t.slot))
	atomic.StoreUint64(word, t.idBits()|calls)
}

// idBits returns bits of the team's id, which tell that a word is about this team.
func (t *Team) idBits() uint64 { return t.id >> 42 * (callsMask + 1) }

// entered returns the word of a PE that has entered the call and no later one.
func (r *Request) entered() uint64 {
	if r.kind == kindClose {
		return leavingBit | r.step
	}
	return r.team.idBits() | r.step
}

// late adds the PEs that kept a collective call waiting to the error of its expired deadline. An
// error of a cancelled ctx stays as it is.
func (v *watcher) late(err error) error {
	if !errors.Is(v.ctx.Err(), context.DeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	p := v.p
	silent, absent := v.r.rollCall()
	n := len(p.peers)
	call := fmt.Sprintf(" entered %s %d of %v", v.op, v.r.step, v.r.team)
	var said []string
	if s := roster.Late("PE", n, func(i int) bool { return absent[i] }, "has not"+call,
		"have not"+call); s != "" {
		said = append(said, s)
	}
	if s := roster.Late("PE", n, func(i int) bool { return silent[i] }, "has not answered",
		"have not answered"); s != "" {
		said = append(said, s)
	}
	if len(said) == 0 {
		said = append(said, "all PEs have"+call)
		if s := roster.Late("PE", n, func(i int) bool {
			return v.r.waitsFor(&p.peers[i])
		}, "is behind", "are behind"); s != "" {
			said = append(said, s)
		}
	}
	e := &lateError{err: fmt.Errorf("%w: %s", errwrap.ContextErr(v.ctx), strings.Join(said, "; ")), size: n}
	for i := range n {
		if absent[i] || silent[i] {
			e.late = append(e.late, i)
		}
	}
	return e
}

// lateError is the error of a collective call whose deadline has passed.
type lateError struct {
	err  error // its text names the PEs
	late []int
	size int
}

func (e *lateError) Error() string { return e.err.Error() }
func (e *lateError) Unwrap() error { return e.err }

// Late returns which of how many PEs have not entered the call or do not answer. Job.Fail of
// package job looks for it.
func (e *lateError) Late() (ranks []int, size int) { return e.late, e.size }

// rollCall asks the PEs of the team how many of its calls they have entered. It returns, by their
// numbers, which have not answered, and which have not entered the current call.
func (r *Request) rollCall() (silent, absent []bool) {
	p, in, published := r.pe, r.team, r.entered()
	if !in.isWorld() {
		published |= ofTeam
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	now, stop := context.WithCancel(ctx) // a peer whose queue is full must not hold up the others
	stop()
	asked := make([]*call, len(in.members))
	for i, t := range in.members {
		if i == in.rank || t.putWord(now, p.layout.gaveUp(p.id), published) != nil {
			continue
		}
		c := p.getCall()
		c.comp.Init(1, nil)
		at := p.layout.entered + 8*uint64(in.slot)
		if t.getBuffered(now, &c.comp, collective.Bytes(c.word[:]), at) != nil {
			p.putCall(c) // nothing has begun
			continue
		}
		asked[i] = c
	}
	looks := 0
	_ = p.worker.WaitFor(ctx, time.Millisecond, func() bool {
		for i, c := range asked {
			if c != nil && !c.comp.Fired() && !in.members[i].gaveUp(published) {
				looks++
				return p.cfg.Transport.Idle != nil && looks > lookRounds // its scheduler has its own clock
			}
		}
		return true
	})
	silent, absent = make([]bool, len(p.peers)), make([]bool, len(p.peers))
	for i, c := range asked {
		t := in.members[i]
		switch {
		case i == in.rank:
		case c == nil || !c.comp.Fired() || c.comp.Err() != nil:
			silent[t.id] = !t.gaveUp(published)
		default:
			absent[t.id] = r.isBehind(c.word[0])
			p.putCall(c)
		}
	}
	return silent, absent
}

// isBehind reports whether a PE that has published this has not entered the call.
func (r *Request) isBehind(theirs uint64) bool {
	mine := r.entered()
	if r.team.isWorld() {
		return theirs&leavingBit < mine&leavingBit || mine&leavingBit == 0 && theirs&^leavingBit < mine
	}
	return theirs&^callsMask != r.team.idBits() || theirs&callsMask < r.step
}

// gaveUp reports whether the peer has given up waiting in the call in which this PE published this.
func (t *peer) gaveUp(published uint64) bool {
	said := atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.gaveUp(t.id)))
	if (published|said)&ofTeam != 0 {
		return published == said
	}
	return said >= min(published, leavingBit)
}
