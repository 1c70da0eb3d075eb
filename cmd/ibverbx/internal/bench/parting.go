package bench

import (
	"context"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/rendezvous"
)

// parting is how a round ends where another process drives the other end: each end says how many messages it has sent once they
// are reported, and neither is over before the other is.
type parting struct {
	peer   *peer
	end    *end
	mine   *flow // that this process sends; nil if it sends nothing
	theirs *flow // that the other one sends, likewise

	told, heard bool
	armed       bool // the next completion raises an event
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

// agreed says whether the other end is over too, after telling it that this one is.
func (s *parting) agreed() (bool, error) {
	if s.mine != nil && !s.told {
		s.told = true
		if err := s.peer.conn.Send(kindDone, doneBody{s.mine.posted}); err != nil {
			return false, err
		}
	}
	return s.theirs == nil || s.heard, nil
}

// glance sees in passing whether the other end has said something, and whether this one has failed although it does nothing. It
// reports whether that was so, and with it whether the round may be over.
func (s *parting) glance(r *round) (bool, error) {
	if s.end.vqp.Err() != nil {
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

// inbox is where the other end says that it is over. What it says after that is not of the round's rest.
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
	if s.mine != nil && s.mine.echoes == s.theirs {
		s.mine.limit = min(s.mine.limit, done.Posted) // there will be nothing more to answer
	}
	return s.theirs.announced(done.Posted)
}

// verdict looks whether what came is what the other end says.
func (s *parting) verdict() error {
	if f := s.theirs; f != nil && f.received > f.total {
		return fmt.Errorf("%w: end %s: %d messages came, sent were %d", ErrVerify, s.end.name, f.received, f.total)
	}
	return nil
}

// sleep waits until something happens here, or the other end says something. The order is arm, poll, and sleep only if that
// brought nothing.
func (s *parting) sleep(ctx context.Context) error {
	cq := s.end.cq
	if !s.armed {
		s.armed = true
		return cq.Arm()
	}
	s.armed = false
	var retry <-chan time.Time
	if cq.Stats().Retrying > 0 {
		timer := time.NewTimer(time.Millisecond)
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
