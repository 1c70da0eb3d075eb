package job

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// maxGreeted bounds the conversations that have not sent their rank. If all places are taken, the
// one silent for longest gives its place to the next after grace.
const (
	maxGreeted = 256
	grace      = time.Second
)

// errStranger ends a conversation with a stranger that has only returned this end's greeting.
var errStranger = fmt.Errorf("%w: it does not know the name of the job", rendezvous.ErrProtocol)

// errSilent ends a conversation that has given its place away.
var errSilent = fmt.Errorf("%w: it has not said which rank it is, and others wait", rendezvous.ErrBusy)

// accept greets every connection. A stranger does not get past the greeting.
func (s *server) accept() {
	places := make(chan struct{}, maxGreeted)
	crowd := make(chan struct{}) // a newcomer that waits for a place takes that of a receiver
	for {
		c, err := s.l.Accept(s.ctx)
		if err != nil {
			if s.ctx.Err() == nil && !errors.Is(err, rendezvous.ErrClosed) {
				s.fail(fmt.Errorf("rank 0 cannot listen: %w", err))
			}
			return
		}
		select {
		case places <- struct{}{}:
		default:
			select {
			case places <- struct{}{}:
			case crowd <- struct{}{}:
			case <-s.ctx.Done():
				_ = c.Close()
				return
			}
		}
		s.all.Go(func() {
			if !s.greet(c, crowd) {
				<-places
			}
		})
	}
}

// greet learns which process a conversation is with. With crowd nil it is this one. It reports
// whether it has given the place of the conversation away.
func (s *server) greet(c *rendezvous.Conn, crowd <-chan struct{}) (gave bool) {
	h := hello{Process: Process{Rank: -1}}
	gave, err := s.hear(c, crowd, &h)
	if err == nil && !hmac.Equal([]byte(h.Proof), []byte(s.place.digest("join"))) {
		h.Rank, err = -1, errStranger
	}
	if err == nil {
		h.Host = peertext.Line(h.Host, maxHost)
		if h.Host == "" {
			h.Host = c.RemoteAddr().String()
		}
		err = s.admit(&h, c, crowd == nil)
	}
	if err != nil {
		s.dismiss(c, h.Rank, err)
	} else {
		s.arrived(h.Rank)
	}
	return gave
}

// dismiss tells a process why it is not part of the job. The conversation does not keep its place
// for that; if too many are being told already, it ends without a message.
func (s *server) dismiss(c *rendezvous.Conn, rank int, why error) {
	stranger := errors.Is(why, rendezvous.ErrBusy) || errors.Is(why, errStranger)
	if stranger {
		s.turnAway(c.RemoteAddr(), why)
	}
	select {
	case s.dismissed <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	s.all.Go(func() {
		if !stranger {
			_ = c.Send(s.ctx, kindEnd, verdictOf(why)) // Fail alone would have a text but no rank
		}
		c.Fail(why)
		s.arrived(rank)
		<-s.dismissed
	})
}

// hear waits for the first message of a process. After grace it gives its place to one of crowd:
// those that have waited longest come first, because a channel serves them in that order.
func (s *server) hear(c *rendezvous.Conn, crowd <-chan struct{}, h *hello) (gave bool, err error) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, grace, errSilent)
	err = c.Receive(ctx, kindJoin, h)
	cancel()
	if !errors.Is(err, errSilent) {
		return false, err
	}
	ctx, end := context.WithCancelCause(s.ctx)
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		select {
		case <-crowd:
			gave = true
			end(errSilent)
		case <-ctx.Done():
		}
	}()
	err = c.Receive(ctx, kindJoin, h)
	end(nil)
	<-decided
	return gave, err
}
