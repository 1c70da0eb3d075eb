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

// taken explains which program has the port at which this rank 0 cannot listen (inUse is the
// error). Another rank 0 of the same job learns of this one.
func taken(ctx context.Context, p *Place, cfg *Config, inUse error) error {
	ctx, cancel := context.WithTimeout(ctx, lateness)
	defer cancel()
	probe := challenge(ctx, p, cfg)
	for errors.Is(probe, rendezvous.ErrVersion) && cfg.Store != nil {
		// It may be another run or this one: its rank 0 shows that in the store as soon as it
		// listens.
		other := *p
		e, err := findEntry(ctx, p, cfg.Store)
		if err != nil || e.Address != p.Address {
			break
		}
		other.incarnation = e.Incarnation
		if probe = challenge(ctx, &other, cfg); probe == nil {
			break
		}
		select {
		case <-time.After(pause(0)):
			continue
		case <-ctx.Done():
		}
		break
	}
	switch {
	case probe == nil:
		perhaps := ""
		if p.Job == "" {
			perhaps = ", or is it another job that has no name either (set " + EnvJob + ")"
		}
		return fmt.Errorf("%w: another process is rank 0 of this job already: do all have rank 0%s? This "+
			"one has it from %s: %w", ErrMismatch, perhaps, p.Source, inUse)
	case errors.Is(probe, rendezvous.ErrVersion):
		return fmt.Errorf("%w: another job has the port: give one of them another in %s: %w", ErrMismatch,
			EnvAddress, probe)
	}
	return fmt.Errorf("%w: another program has the port: choose another in %s", inUse, EnvAddress)
}

// challenge tells the rank 0 at an address that this process has rank 0 as well: a job that is not
// complete ends there too. The error says why it could not be told.
func challenge(ctx context.Context, p *Place, cfg *Config) error {
	c, err := rendezvous.Dial(ctx, p.Address, conversation(p, cfg))
	if err != nil {
		return err
	}
	if c.Send(ctx, kindJoin, newHello(p)) == nil {
		var v verdict
		_ = c.Receive(ctx, kindEnd, &v) // whatever it says, it has been told
	}
	return c.Close()
}

// errTwoFirst is the error of a second rank 0.
func errTwoFirst(p *Place) error {
	perhaps := ""
	if p.Job == "" {
		perhaps = ", or have two jobs no name (set " + EnvJob + ")"
	}
	return fmt.Errorf("%w: two processes have this rank, the other one is %v: do all have rank 0%s? That "+
		"one has it from %s", ErrMismatch, self(0), perhaps, p.Source)
}
