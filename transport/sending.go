package transport

import (
	"fmt"
	"math/bits"

	"ibverbx/internal/ring"
)

// sending is the send direction of an endpoint: what is outstanding, in which order it goes, and
// what waits to start.
//
// Invariant: 0 <= controlOps <= controlSlots, and the other operations are 0 to limit; the oldest
// operation is not an opFlush, since one fires with the operation before it.
type sending struct {
	// ops holds the outstanding operations, oldest first. A virtual queue pair completes in posting
	// order, so the next completion is always the oldest one's. All but those of kind opFlush have
	// a completion to come.
	ops ring.Window[op]
	// limit is the most operations of the program that may be outstanding.
	limit int
	// controlOps counts the outstanding operations of the transport itself: credits, a goodbye, a
	// probe. They are not counted against limit.
	controlOps int
	traffic    traffic // of the program's calls
	ownBuffers uint8   // set of its own bounce buffers that are free
	fence      fence
	// lostAtomic is the error of an atomic without a completion that has failed by itself, until a
	// flush or Close returns it; nil if there is none.
	lostAtomic error
	// dirty reports that the peer's memory was written since the last remote flush.
	dirty bool
	// missing is what sends from outside the queue lacked, until a request enters the queue and
	// takes it over: see resources.
	missing resources
	// unreportedRound is the last round of progress whose events have a completion of this
	// endpoint: the present one, or the next. Until it is over the program may not have seen that.
	unreportedRound uint64
	pending         pendingQueue
	readyRequest    Pending // calls OnReady, for the views of NotifyReady
}

// fence is the order that Endpoint.Fence leaves to the next operations.
type fence struct {
	now bool // the next operation waits for all before it
	// later reports that Fence was called while requests were pending: the next operation that does
	// not come from the queue waits. A request that enters the queue before takes it over.
	later bool
}

// posted clears the fence that an operation has carried out.
func (f *fence) posted(ordinary bool) {
	f.now = false
	if ordinary {
		f.later = false
	}
}

// userOps returns the number of the program's operations that are outstanding.
func (s *sending) userOps() int { return s.ops.Len() - s.controlOps }

// full reports whether the program has as many operations outstanding as it may.
func (s *sending) full() bool { return s.ops.Len()-s.controlOps >= s.limit }

// idle reports whether nothing is outstanding.
func (s *sending) idle() bool { return s.ops.Head == s.ops.Tail }

// busy reports whether operations or requests of the program are not finished.
func (s *sending) busy() bool { return s.pending.any() || s.userOps() != 0 }

// takeLostAtomic returns lostAtomic to the program.
func (s *sending) takeLostAtomic() error {
	err := s.lostAtomic
	s.lostAtomic = nil
	return err
}

// takeOwnBuffer takes one of the endpoint's own bounce buffers, of which one must be free.
func (s *sending) takeOwnBuffer() int32 {
	k := bits.TrailingZeros8(s.ownBuffers)
	s.ownBuffers &^= 1 << k
	return firstOwn - int32(k)
}

// pushControl adds one of the transport's own operations.
func (s *sending) pushControl(kind opKind) {
	*s.ops.Push() = op{kind: kind, buf: noBuffer}
	s.controlOps++
}

// check returns how the invariant is broken; nil while it holds.
func (s *sending) check() error {
	if s.controlOps < 0 || s.controlOps > controlSlots || s.userOps() < 0 || s.userOps() > s.limit {
		return fmt.Errorf("%d operations outstanding, %d of them the transport's own: at most %d and %d",
			s.ops.Len(), s.controlOps, s.limit+controlSlots, controlSlots)
	}
	if !s.idle() && s.ops.Front().kind == opFlush {
		return fmt.Errorf("a flush is the oldest of %d operations", s.ops.Len())
	}
	return s.pending.check()
}
