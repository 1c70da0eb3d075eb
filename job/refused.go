package job

import (
	"errors"
	"fmt"
	"math/bits"
	"net"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// refused counts and describes connections that did not become a process of the job. The server's
// mu guards it.
type refused struct {
	count int    // all of them
	last  string // the last one that was turned away, and why
}

// maxReason is the most characters kept of a reason.
const maxReason = 300

// turnAway counts a connection that is not from a process of this job, and logs it: the first, the
// second, the fourth and so on.
func (s *server) turnAway(remote net.Addr, why error) {
	if s.ctx.Err() != nil {
		return
	}
	reason := peertext.Line(why.Error(), maxReason)
	s.mu.Lock()
	s.refused.count++
	n := s.refused.count
	if !errors.Is(why, rendezvous.ErrGone) { // a connection without a word only checks that somebody listens
		s.refused.last = fmt.Sprintf("%v was turned away: %s", remote, reason)
	}
	s.mu.Unlock()
	if bits.OnesCount(uint(n)) == 1 {
		s.cfg.Logger.Warn("ibverbx: job: rank 0 turned a connection away", "from", remote, "because", reason,
			"turned away", n)
	}
}

// lastRefused adds the connection that was turned away last to a text about missing processes.
func (s *server) lastRefused(missing string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused.last == "" {
		return missing
	}
	return missing + "; " + s.refused.last
}
