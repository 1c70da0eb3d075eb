package transport

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/internal/roster"
)

// awaited is what a wait is for; the zero value stands for anything.
type awaited struct {
	comp *Completion // its operations
	peer *peerState  // all operations of an endpoint
}

// late adds to the error of a wait that ctx has ended which peers have not answered. Of those that
// it waits for, none may be left: their operations wait to start, or have just ended.
func (w *Worker) late(ctx context.Context, err error, a awaited) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) {
		return err
	}
	who := w.unanswered(a)
	if who == nil {
		who = w.unanswered(awaited{})
	}
	if who == nil {
		return err
	}
	return fmt.Errorf("%w: %s", err, roster.Named(who, "has not answered", "have not answered"))
}

// Unanswered names the endpoints with operations that have not completed, those of the transport
// itself included, such as the probes of Config.KeepAlive. It is for errors about peers that are
// late: it walks all operations.
func (w *Worker) Unanswered() []string { return w.unanswered(awaited{}) }

func (w *Worker) unanswered(a awaited) (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.endpoints.all {
		if (a.peer == nil || a.peer == p) && p.sending.awaits(a.comp) {
			names = append(names, p.cfg.Name)
		}
	}
	return names
}

// awaits reports whether operations that comp counts are outstanding, or flushes that wait to
// start; for nil, whether any operation is outstanding.
func (s *sending) awaits(comp *Completion) bool {
	if comp == nil {
		return !s.idle()
	}
	for n := s.ops.Head; n != s.ops.Tail; n++ {
		if s.ops.At(n).comp == comp {
			return true
		}
	}
	for l := s.pending.list.Front(); l != nil; l = l.Next() {
		if l.Owner().internal {
			return true
		}
	}
	return false
}
