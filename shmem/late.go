package shmem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"ibverbx/internal/errwrap"
	"ibverbx/internal/roster"
)

// A collective call whose deadline has passed says which PEs have not entered it. The PE that this
// one waits for often waits itself, so this one reads from every PE how many calls it has entered.
// This costs nothing until then. A PE that gives up tells the others, because it may end and not
// answer them any more.

// answerTime is how long to wait for answers. NICs answer in microseconds.
const answerTime = 500 * time.Millisecond

// leaving is a bit of the published number: the PE is in Close, after so many other calls.
const leaving = 1 << 63

// enterCall publishes how many collective calls this PE has entered.
func (p *PE) enterCall(calls uint64) { atomic.StoreUint64(word64(p.heap, p.layout.entered), calls) }

// late adds the PEs that kept a collective call waiting to the error of its expired deadline. An
// error of a cancelled ctx stays as it is.
func (v *watcher) late(err error) error {
	if !errors.Is(v.ctx.Err(), context.DeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	p := v.p
	silent, absent := p.rollCall()
	n := len(p.peers)
	var said []string
	if s := roster.Late("PE", n, func(i int) bool { return absent[i] }, "has not entered it",
		"have not entered it"); s != "" {
		said = append(said, s)
	}
	if s := roster.Late("PE", n, func(i int) bool { return silent[i] }, "has not answered",
		"have not answered"); s != "" {
		said = append(said, s)
	}
	if len(said) == 0 {
		said = append(said, "all PEs have entered it")
		if s := roster.Late("PE", n, func(i int) bool {
			t := &p.peers[i]
			return t == v.from || v.from == nil && t.waits()
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

// rollCall asks all PEs how many calls they have entered. It returns which have not answered, and
// which have not entered the current call.
func (p *PE) rollCall() (silent, absent []bool) {
	mine := atomic.LoadUint64(word64(p.heap, p.layout.entered))
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	now, stop := context.WithCancel(ctx) // a peer whose queue is full must not hold up the others
	stop()
	asked := make([]*call, len(p.peers))
	for i := range p.peers {
		t := &p.peers[i]
		if i == p.id || t.putWord(now, p.layout.gaveUp(p.id), mine) != nil {
			continue
		}
		c := p.getCall()
		c.comp.Init(1, nil)
		if t.getBuffered(now, &c.comp, bytesOf(c.word[:]), p.layout.entered) != nil {
			p.putCall(c) // nothing has begun
			continue
		}
		asked[i] = c
	}
	looks := 0
	_ = p.worker.WaitFor(ctx, time.Millisecond, func() bool {
		for i, c := range asked {
			if c != nil && !c.comp.Fired() && !p.peers[i].gaveUp(mine) {
				looks++
				return p.cfg.Transport.Idle != nil && looks > lookRounds // its scheduler has its own clock
			}
		}
		return true
	})
	silent, absent = make([]bool, len(p.peers)), make([]bool, len(p.peers))
	for i, c := range asked {
		switch {
		case i == p.id:
		case c == nil || !c.comp.Fired() || c.comp.Err() != nil:
			silent[i] = !p.peers[i].gaveUp(mine)
		default:
			absent[i] = c.word[0]&leaving < mine&leaving || mine&leaving == 0 && c.word[0]&^leaving < mine
			p.putCall(c)
		}
	}
	return silent, absent
}

// gaveUp reports whether the peer has given up waiting in the call with this number.
func (t *peer) gaveUp(calls uint64) bool {
	return atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.gaveUp(t.id))) >= min(calls, leaving)
}
