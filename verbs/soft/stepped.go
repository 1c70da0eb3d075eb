package soft

import (
	"fmt"
	"strconv"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// ActionKind is what an action makes happen.
type ActionKind uint8

// The kinds of actions.
const (
	// Execute the head request of a send queue: its data moves, and a receive that it consumes
	// completes.
	Execute ActionKind = iota
	// Acknowledge the oldest executed request: the data of a read or atomic lands, and the request
	// completes.
	Acknowledge
	// Reveal a hidden completion: Poll can find it now.
	Reveal
	// Timer: a retry timer expires, or an injected delay ends.
	Timer
	// Arrive: a message whose sender has given up on it arrives at the queue pair; see ArriveLate.
	Arrive
	// Place: data that the queue pair has acknowledged reaches memory; see PlaceLate.
	Place
)

var actionNames = [...]string{"execute", "acknowledge", "reveal", "timer", "arrive", "place"}

// String names the kind.
func (k ActionKind) String() string {
	if int(k) < len(actionNames) {
		return actionNames[k]
	}
	return "action " + strconv.Itoa(int(k))
}

// Action is something that can happen next in a stepped fabric.
type Action struct {
	Kind   ActionKind
	Device verbs.DeviceID
	QPNum  uint32
	Recv   bool // Reveal: a completion of the receive queue, not of the send queue
	Index  int  // Reveal: which hidden completion, 0 the oldest; more than 0 only in a scrambled fabric
	// ID is the work-request id, for the reader of a trace; Do ignores it.
	ID uint64
}

// String returns a text like "reveal soft1 qp 17 recv wr 5".
func (a Action) String() string {
	s := fmt.Sprintf("%v soft%d qp %d", a.Kind, a.Device, a.QPNum)
	if a.Kind == Reveal {
		if a.Recv {
			s += " recv"
		} else {
			s += " send"
		}
		if a.Index > 0 {
			s += " +" + strconv.Itoa(a.Index)
		}
	}
	return s + " wr " + strconv.FormatUint(a.ID, 10)
}

// Actions appends to dst everything that can happen now, in an order that depends only on the calls
// made so far. In a fabric that is not stepped there is nothing.
func (f *Fabric) Actions(dst []Action) []Action {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stepped {
		return dst
	}
	return f.actions(dst)
}

// Do makes an action happen. It returns false if the action can no longer happen.
func (f *Fabric) Do(a Action) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stepped && f.do(a)
}

// In one of timerWeight choices Step lets a timer expire although something else could happen.
// Timers are slow compared with everything else.
const timerWeight = 16

// Step makes one action happen, chosen by the seeded generator, and returns it; it returns false if
// nothing can happen. Timers rarely expire while anything else can happen.
func (f *Fabric) Step() (Action, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stepped {
		return Action{}, false
	}
	f.scratch = f.actions(f.scratch[:0])
	if len(f.scratch) == 0 {
		return Action{}, false
	}
	a := f.choose(f.scratch)
	f.do(a)
	return a, true
}

// Run makes up to limit steps and returns how many it made: fewer if nothing more can happen.
func (f *Fabric) Run(limit int) int {
	n := 0
	for n < limit {
		if _, ok := f.Step(); !ok {
			break
		}
		n++
	}
	return n
}

func (f *Fabric) choose(list []Action) Action {
	timers := 0
	for i := range list {
		if list[i].Kind == Timer {
			timers++
		}
	}
	if timers == 0 || timers == len(list) {
		return list[f.rng.IntN(len(list))]
	}
	want := f.rng.IntN(timerWeight) == 0
	n := len(list) - timers
	if want {
		n = timers
	}
	n = f.rng.IntN(n)
	for i := range list {
		if (list[i].Kind == Timer) != want {
			continue
		}
		if n == 0 {
			return list[i]
		}
		n--
	}
	panic("unreachable")
}

func (f *Fabric) actions(dst []Action) []Action {
	for _, d := range f.devices {
		for _, q := range d.qps.All {
			a := Action{Device: d.id, QPNum: q.core.Num}
			if q.runnable() {
				a.Kind, a.ID = Execute, q.head().ID
				dst = append(dst, a)
			}
			if q.acknowledgeable() {
				a.Kind, a.ID = Acknowledge, q.core.SQ.At(q.core.SQ.Acked).ID
				dst = append(dst, a)
			}
			if q.timerRuns() {
				a.Kind, a.ID = Timer, q.core.SQ.At(q.core.SQ.Acked).ID
				dst = append(dst, a)
			}
			if l := q.late.stragglers; len(l) > 0 {
				a.Kind, a.ID = Arrive, l[0].id
				dst = append(dst, a)
			}
			if l := q.late.placements; len(l) > 0 {
				a.Kind, a.ID = Place, l[0].id
				dst = append(dst, a)
			}
			a.Kind = Reveal
			for dir := range q.hidden {
				a.Recv = nic.Direction(dir) == nic.Recv
				for i := range q.hidden[dir] {
					if i > 0 && !f.scramble {
						break
					}
					a.Index, a.ID = i, q.hidden[dir][i].WC.ID
					dst = append(dst, a)
				}
			}
		}
	}
	return dst
}

func (f *Fabric) do(a Action) bool {
	if int(a.Device) >= len(f.devices) {
		return false
	}
	q := f.devices[a.Device].qps.Find(a.QPNum)
	if q == nil {
		return false
	}
	switch a.Kind {
	case Execute:
		if !q.runnable() {
			return false
		}
		f.execute(q)
	case Acknowledge:
		if !q.acknowledgeable() {
			return false
		}
		f.acknowledge(q)
	case Timer:
		if !q.timerRuns() {
			return false
		}
		f.timeout(q)
	case Arrive:
		if len(q.late.stragglers) == 0 {
			return false
		}
		f.arriveLate(q)
	case Place:
		if len(q.late.placements) == 0 {
			return false
		}
		f.placeNext(q)
	case Reveal:
		dir := nic.Send
		if a.Recv {
			dir = nic.Recv
		}
		if a.Index < 0 || a.Index >= len(q.hidden[dir]) || a.Index > 0 && !f.scramble {
			return false
		}
		f.reveal(q, dir, a.Index)
	default:
		return false
	}
	return true
}

// acknowledgeable reports whether the acknowledgement of the oldest executed request can arrive. If
// the peer has failed since, it may still be in flight, or be lost.
func (q *QP) acknowledgeable() bool {
	return q.unacknowledged() && (q.core.SQ.At(q.core.SQ.Acked).Local || q.linked())
}

// timerRuns reports whether a retry timer of q is running. A timer that would only repeat forever
// does not count: what ends that wait wakes q anyway.
func (q *QP) timerRuns() bool {
	switch q.run.wait {
	case waitDelay:
		return true
	case waitRNR:
		return q.core.Attr.RNRRetry != verbs.RNRRetryForever || q.reach() == nil
	case waitPeer:
		return q.core.Attr.Timeout != 0
	}
	return q.core.Attr.Timeout != 0 && q.overdue()
}

// fetchLate keeps the data that a read fetches until its acknowledgement lets it land.
func (q *QP) fetchLate(x *transfer) {
	if q.run.late == nil {
		q.run.late = make(map[uint64][]byte)
	}
	data := make([]byte, len(x.src.Bytes[0]))
	nic.Move(data, x.src.Bytes[0])
	q.run.late[q.core.SQ.Executed] = data
}

// landLate lands the data of a read or atomic.
func (f *Fabric) landLate(q *QP, s *nic.SendSlot, seq uint64) verbs.Status {
	x := &q.run.xfer
	x.reset()
	if status := q.core.Landing(&x.dst, seq); status != verbs.StatusSuccess {
		return status
	}
	if s.Opcode.IsAtomic() {
		q.landAtomic(s)
		return verbs.StatusSuccess
	}
	x.src.Add(q.run.late[seq]) // nil if it reads nothing
	x.copy()
	delete(q.run.late, seq)
	return verbs.StatusSuccess
}

// steppedEngine is the engine in which the caller decides what happens when.
type steppedEngine struct{}

func (steppedEngine) posted(*QP)                                        {}
func (steppedEngine) ready(*QP)                                         {}
func (steppedEngine) transmit(_, _ *QP, _ *nic.SendSlot) (int64, int64) { return 0, 0 }
func (steppedEngine) executed(*QP)                                      {}
func (steppedEngine) hide(*QP, nic.Direction, int64) bool               { return true }
func (steppedEngine) retryAfter(*QP, time.Duration)                     {}
func (steppedEngine) after(time.Duration) int64                         { return 0 }
func (steppedEngine) awaitLate(*QP)                                     {}
func (steppedEngine) stopTimers(*QP)                                    {}
func (steppedEngine) close()                                            {}

var _ engine = steppedEngine{}
