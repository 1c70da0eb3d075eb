package job

import (
	"errors"
	"fmt"
	"math/bits"
	"net"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// refused is what rank 0 knows of connections that brought no conversation. The server's mu guards
// it.
type refused struct {
	count int    // since the last one was logged, and before
	last  string // whom it turned away last, and why: a process that would not be of this job
}

// maxReason is how many characters of a reason are kept.
const maxReason = 300

// turnAway notes that somebody has come and is no process of this job, and logs it: of many the
// first, the second, the fourth and so on.
func (s *server) turnAway(remote net.Addr, why error) {
	if s.ctx.Err() != nil {
		return
	}
	reason := peertext.Line(why.Error(), maxReason)
	s.mu.Lock()
	s.refused.count++
	n := s.refused.count
	if !errors.Is(why, rendezvous.ErrGone) { // who says nothing checks that somebody listens
		s.refused.last = fmt.Sprintf("%v was turned away: %s", remote, reason)
	}
	s.mu.Unlock()
	if bits.OnesCount(uint(n)) == 1 {
		s.cfg.Logger.Warn("ibverbx: job: rank 0 turned a connection away", "from", remote, "because", reason,
			"turned away", n)
	}
}

// lastRefused adds to who is missing whom rank 0 has turned away.
func (s *server) lastRefused(missing string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused.last == "" {
		return missing
	}
	return missing + "; " + s.refused.last
}
