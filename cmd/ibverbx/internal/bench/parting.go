package bench

import (
	"context"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/rendezvous"
)

// parting is how a round ends where another process drives the other end: each end says how many
// messages it has sent once they are reported, and neither is over before the other is.
type parting struct {
	peer   *peer
	end    *end
	mine   *flow // that this process sends; nil if it sends nothing
	theirs *flow // that the other one sends, likewise

	told, heard bool
	over        time.Time // when all that this end sends was reported
	armed       bool      // the next completion raises an event
}

func newParting(p *peer, flows []*flow, e *end) *parting {
	s := &parting{peer: p, end: e}
	for _, f := range flows {
		if f.from == nil {
			s.theirs = f
		} else {
			s.mine = f
		}
	}
	return s
}

func (s *parting) start() { s.told, s.heard = false, false }

// tell says how many messages this end has sent, as soon as all of them are reported: one that was
// stopped early stops the other one too.
func (s *parting) tell(ctx context.Context) error {
	if s.mine == nil || s.told || !s.mine.drained() {
		return nil
	}
	s.told, s.over = true, time.Now()
	return s.peer.conn.Send(ctx, kindDone, doneBody{s.mine.posted})
}

// agreed says whether the other end is over too.
func (s *parting) agreed() bool { return s.theirs == nil || s.heard }

// took is how long what this end sends has been under way.
func (s *parting) took(start time.Time) time.Duration {
	if s.mine == nil || s.over.Before(start) {
		return time.Since(start)
	}
	return s.over.Sub(start)
}

// glance sees in passing whether the other end has said something, and whether this one has failed
// although it does nothing. It reports whether it is the first to see so, and with it whether the
// round may be over.
func (s *parting) glance(r *round) (bool, error) {
	if !r.failed && s.end.vqp.Err() != nil {
		r.failed = true
		return true, nil
	}
	select {
	case m := <-s.inbox():
		return true, s.hear(&m)
	default:
		return false, nil
	}
}

// inbox is where the other end says that it is over. What it says after that is not of the round's
// rest.
func (s *parting) inbox() <-chan rendezvous.Message {
	if s.theirs == nil || s.heard {
		return nil
	}
	return s.peer.conn.Inbox()
}

// hear takes in that the other end is over, which is all that it says in a round.
func (s *parting) hear(m *rendezvous.Message) error {
	if err := m.Expect(kindDone); err != nil {
		return err
	}
	var done doneBody
	if err := m.Decode(&done); err != nil {
		return err
	}
	s.heard = true
	if err := s.theirs.announced(done.Posted); err != nil {
		return err
	}
	switch {
	case s.mine == nil || done.Posted == s.mine.limit:
	case s.mine.echoes == s.theirs:
		s.mine.limit = min(s.mine.limit, done.Posted) // there will be nothing more to answer
	default:
		s.mine.limit = s.mine.posted // the other end was stopped: to go on alone is not what is measured
	}
	return nil
}

// verdict looks whether what came is what the other end says.
func (s *parting) verdict() error {
	if f := s.theirs; f != nil && f.received > f.total {
		return fmt.Errorf("%w: end %s: %d messages came, sent were %d", ErrVerify, s.end.name, f.received,
			f.total)
	}
	return nil
}

// sleep waits until something happens here, or the other end says something. The order is arm,
// poll, and sleep only if that brought nothing.
func (s *parting) sleep(ctx context.Context) error {
	cq := s.end.cq
	if !s.armed {
		s.armed = true
		return cq.Arm()
	}
	s.armed = false
	var retry <-chan time.Time
	if cq.Stats().Retrying > 0 || s.mine != nil && s.mine.refused {
		timer := time.NewTimer(refusedPause)
		defer timer.Stop()
		retry = timer.C
	}
	select {
	case <-cq.Events():
	case <-retry:
	case m := <-s.inbox():
		return s.hear(&m)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
