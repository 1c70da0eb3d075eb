package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// sleepers are the goroutines that wait for the worker and have stopped polling. An event of the
// NICs wakes one of them. That one makes progress and wakes the others, because what they wait for
// may have happened.
type sleepers struct {
	count  atomic.Int32
	missed atomic.Bool // a goroutine could not make progress because another did: wake all
	mu     sync.Mutex
	list   []*sleeper
	spare  []*sleeper
	cancel context.CancelFunc // ends the goroutine of Start
	ended  chan struct{}
}

// sleeper is one of them. It is used again when its goroutine has left.
type sleeper struct {
	wake  chan struct{}
	timer *time.Timer
}

func (s *sleepers) any() bool { return s.count.Load() != 0 }

// enter adds the calling goroutine to the list.
func (s *sleepers) enter() *sleeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	var me *sleeper
	if n := len(s.spare); n != 0 {
		me, s.spare = s.spare[n-1], s.spare[:n-1]
		select {
		case <-me.wake: // left over from its last use
		default:
		}
	} else {
		me = &sleeper{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
		me.timer.Stop()
	}
	s.list = append(s.list, me)
	s.count.Store(int32(len(s.list)))
	return me
}

// leave removes a sleeper from the list.
func (s *sleepers) leave(me *sleeper) {
	me.timer.Stop()
	s.mu.Lock()
	for i := range s.list {
		if s.list[i] == me {
			s.list[i] = s.list[len(s.list)-1]
			s.list = s.list[:len(s.list)-1]
			break
		}
	}
	s.spare = append(s.spare, me)
	s.count.Store(int32(len(s.list)))
	s.mu.Unlock()
}

func (s *sleepers) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.list {
		select {
		case other.wake <- struct{}{}:
		default:
		}
	}
}

// stop ends the goroutine of Start and wakes all others.
func (s *sleepers) stop() {
	if s.cancel != nil {
		s.cancel()
		<-s.ended
	}
	s.wake()
}

// wakeForChores wakes the sleepers if there is something to do that no event announces. It is
// called with mu held after posts that may be refused for now, and after changes of the chores that
// no event announces.
func (w *Worker) wakeForChores() {
	if w.sleep.any() && (w.chores.urgent() || w.cq.Stats().Retrying != 0) {
		w.sleep.wake()
	}
}
