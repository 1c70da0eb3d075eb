package layers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"ibverbx"
	"ibverbx/debug"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Config describes an end.
type Config struct {
	Name    string // of the end, in errors
	Shape   Shape
	Window  int            // messages outstanding
	Inline  int            // queue pairs send up to so many bytes inline; QP.MaxInline allows it
	QP      ibverbx.Config // of the virtual queue pair
	Devices []verbs.Device
	Src     []byte // messages are read from it, by this end or, with Shape.Reads, by the peer
	Dst     []byte // messages arrive in it; behind the slots lies the counter of atomics
	Tail    int    // offset of the counter in Dst, a multiple of 8

	Watch   *debug.Server // shows the end while it is open; nil for none
	WatchAs string        // by this name
}

// Task is a round as one end sees it.
type Task struct {
	Ctx     context.Context // ends blocking operations of layers
	Round   Round
	Send    int     // messages that this end sends
	Take    int     // messages of the peer that it sees
	Answers bool    // it answers each message that has come with one of its own
	Times   []int64 // if not nil it sends one at a time, and records the nanoseconds of each
	Window  int     // messages outstanding at most

	// Check verifies message i of the peer as soon as this end has seen it; nil for no check.
	Check func(i int) error
	// Look, if not nil, is called repeatedly with the number of messages posted; its error ends the
	// round.
	Look func(posted int) error
}

// Card is what two ends exchange to connect: it has the card of their layer. It travels as JSON.
type Card struct {
	QP        ibverbx.BusinessCard `json:"card,omitzero"`
	Transport *transport.Card      `json:"transport,omitempty"`
	Tagged    *tagged.Card         `json:"tagged,omitempty"`
	Src       ibverbx.RemoteMR     `json:"src"`
	Dst       ibverbx.RemoteMR     `json:"dst"`
}

// traffic is the part of an end that depends on its layer.
type traffic interface {
	// begin prepares for a round: receives are posted when it returns.
	begin(t *Task) error
	// post starts up to n messages from message i on, and returns how many it has started.
	// [transport.ErrNoResource] means that the others cannot start yet.
	post(i, n int) (int, error)
	// flush makes completed return true once everything posted has completed; with remote, once it
	// is visible to the peer's processor. [transport.ErrNoResource] means: call it again.
	flush(remote bool) error
	completed() (bool, error)
	// arrived returns how many messages of the round have come.
	arrived() (int, error)
	progress() int
	// arm returns a channel that announces a completion, or nil if there is none.
	arm() (<-chan struct{}, error)
	// Card describes the end to its peer, and Connect connects to the end that sent a card.
	Card() (Card, error)
	Connect(peer *Card) error
	// Target is the memory in which messages land, Counter the number there that the peer's atomics
	// change, and Old the result of atomic i of the round. Round.Counter has their values.
	Target() []byte
	Counter() uint64
	Old(i int) uint64
	// Close closes the end. When ctx ends it cuts off outstanding work.
	Close(ctx context.Context) error
}

// These are the errors of an end.
var (
	// ErrVerify means that completions came out of order or in the wrong number, or that the
	// received data differs from the sent data.
	ErrVerify = errors.New("verification failed")
	// ErrRequests means that requests failed. The virtual queue pair knows why.
	ErrRequests = errors.New("requests failed")
	// ErrStalled means that the round was given up because nothing moved for too long.
	ErrStalled = errors.New("no completion")
	// ErrMessages means that the received messages are not those that were sent.
	ErrMessages = errors.New("other messages came than were sent")
)

// End is one end of a connection.
//
// Invariant: Timed <= Posted <= task.Send, came <= task.Take. over implies that all messages have
// completed and come.
type End struct {
	traffic

	Posted  int       // messages of the round that this end has started
	Timed   int       // of them, those whose time is recorded
	EndedAt time.Time // when the last message of the round had completed or come
	Sent    bool      // all messages of this end have completed, and are visible to the peer

	task    Task
	came    int // messages of the peer that it has seen
	started time.Time
	flushed bool // posted messages are being flushed
	ended   bool // everything posted has completed: the clock stops
	over    bool // its part is played
}

// New makes an end that is not connected.
func New(cfg *Config) (e *End, err error) {
	e = &End{}
	all := *cfg
	all.QP.Conn.Access = verbs.AccessAll // any operation may be measured
	cfg = &all
	switch cfg.Shape.Layer {
	case QP:
		e.traffic, err = newQueuePair(cfg)
	case Transport:
		e.traffic, err = newTransport(cfg)
	case Tagged:
		e.traffic, err = newTagged(cfg)
	default:
		err = fmt.Errorf("an end of layer %.20q is not made alone", string(cfg.Shape.Layer))
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// NewPair makes two ends in this process and connects them.
func NewPair(cfgs *[2]Config) (ends [2]*End, err error) {
	if cfgs[0].Shape.Layer == SHMEM {
		return newSHMEM(cfgs)
	}
	defer func() {
		for i, e := range ends {
			if err != nil && e != nil {
				err = errors.Join(err, e.Close(context.Background()))
				ends[i] = nil
			}
		}
	}()
	var cards [2]Card
	for i := range ends {
		if ends[i], err = New(&cfgs[i]); err != nil {
			return ends, err
		}
		if cards[i], err = ends[i].Card(); err != nil {
			return ends, err
		}
	}
	return ends, errors.Join(ends[0].Connect(&cards[1]), ends[1].Connect(&cards[0]))
}

// QueuePair returns the end's virtual queue pair; nil with a layer.
func (e *End) QueuePair() *QueuePair {
	q, _ := e.traffic.(*QueuePair)
	return q
}

// Begin prepares for a round. The peer may send when it returns.
func (e *End) Begin(t Task) error {
	*e = End{traffic: e.traffic, task: t}
	return e.begin(&e.task)
}

const (
	// idlePolls is how many idle turns pass before the goroutine yields its core: a software NIC of
	// this process may need it.
	idlePolls = 8
	// checkTurns is how many turns pass between checks whether a busy round must end.
	checkTurns = 4096
	// nap is how long ends sleep at most, because some messages arrive without a completion.
	nap = time.Millisecond
	// shortNap is how long ends sleep whose layer announces no completions.
	shortNap = 50 * time.Microsecond
)

// Pace is how a round is played: with nothing to do Run polls for Spin and then sleeps; with a
// negative Spin it sleeps at once. When nothing has moved for Stall, it gives up.
type Pace struct{ Spin, Stall time.Duration }

// Run plays a round in this goroutine until the parts of the ends are over and until, if not nil,
// returns true.
func Run(ctx context.Context, pace Pace, until func() bool, ends ...*End) error {
	idle, fresh := 0, true // fresh: something has moved since last was set
	var idleSince, last time.Time
	for turn := 1; ; turn++ {
		moved, over := 0, true
		for _, e := range ends {
			n := e.progress()
			before := e.Posted + e.came + e.Timed
			if err := e.step(); err != nil {
				return err
			}
			fresh = fresh || e.Posted+e.came+e.Timed != before || n > 0 && e.QueuePair() != nil
			over = over && e.over
			moved += n
		}
		if over && (until == nil || until()) {
			return nil
		}
		if turn%checkTurns == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if moved > 0 {
			idle = 0
			continue
		}
		if idle++; idle%idlePolls != 0 && pace.Spin >= 0 {
			continue
		}
		now := time.Now()
		if idle <= idlePolls {
			idleSince = now
		}
		if fresh {
			last, fresh = now, false
		}
		if now.Sub(last) > pace.Stall {
			return fmt.Errorf("%w within %v", ErrStalled, pace.Stall.Round(time.Millisecond))
		}
		if q := ends[0].QueuePair(); q != nil && len(ends) == 1 && q.VQP.Err() != nil {
			q.failed = true // even if no request of this end reports it
		}
		if now.Sub(idleSince) < pace.Spin {
			runtime.Gosched()
			continue
		}
		if err := sleep(ctx, ends); err != nil {
			return err
		}
	}
}

// sleep waits for a moment, or until something happens at one of the ends, at most two. It arms,
// polls, and sleeps only if the poll found nothing.
func sleep(ctx context.Context, ends []*End) error {
	var events [2]<-chan struct{}
	for i, e := range ends {
		var err error
		if events[i], err = e.arm(); err != nil {
			return err
		}
	}
	moved := 0
	for _, e := range ends {
		moved += e.progress()
	}
	if moved > 0 {
		return nil
	}
	long := nap
	if events[0] == nil {
		long = shortNap
	}
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-events[0]:
	case <-events[1]:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// step does everything that is possible now.
func (e *End) step() error {
	if e.task.Look != nil {
		if err := e.task.Look(e.Posted); err != nil {
			return err
		}
	}
	if e.over {
		_, err := e.arrived() // an end that only serves can fail too
		return err
	}
	return e.play()
}

func (e *End) play() error {
	if err := e.take(); err != nil {
		return err
	}
	if err := e.send(); err != nil {
		return later(err)
	}
	if e.Posted < e.task.Send || e.task.Times != nil && e.Timed < e.task.Send {
		return nil
	}
	if err := e.conclude(); err != nil {
		return later(err)
	}
	if e.came > e.task.Take {
		return fmt.Errorf("%w: %d came, %d were to come", ErrMessages, e.came, e.task.Take)
	}
	e.over = e.Sent && e.came == e.task.Take
	return nil
}

// take handles and checks the messages that have come.
func (e *End) take() error {
	came, err := e.arrived()
	if err != nil || came == e.came {
		return err
	}
	if e.task.Check != nil {
		for i := e.came; i < came; i++ {
			if err := e.task.Check(i); err != nil {
				return err
			}
		}
	}
	e.came = came
	if e.ended && came >= e.task.Take {
		e.EndedAt = time.Now()
	}
	return nil
}

// send starts as many messages as possible. If their times are recorded that is one, once the one
// before is over: answered if the peer answers, else completed.
func (e *End) send() error {
	for {
		if e.Timed < e.Posted && e.task.Times != nil {
			over, err := e.single()
			if !over || err != nil {
				return err
			}
			e.task.Times[e.Timed] = int64(time.Since(e.started))
			e.Timed++
			e.started = time.Time{}
		}
		n := e.task.Send - e.Posted
		if e.task.Answers {
			n = min(n, e.came-e.Posted)
		}
		if n <= 0 {
			return nil
		}
		if e.task.Times != nil {
			n = 1
			if e.started.IsZero() {
				e.started = time.Now()
			}
		}
		k, err := e.post(e.Posted, n)
		if e.Posted += k; k == 0 || err != nil {
			return err
		}
	}
}

// single reports whether the one message under way is over.
func (e *End) single() (bool, error) {
	if e.task.Take > 0 {
		return e.came > e.Timed, nil
	}
	return e.drained(false)
}

// drained flushes the posted messages, and reports whether all have completed; with remote, whether
// they are visible to the peer's processor.
func (e *End) drained(remote bool) (bool, error) {
	if !e.flushed {
		if err := e.flush(remote); err != nil {
			return false, err
		}
		e.flushed = true
	}
	done, err := e.completed()
	e.flushed = !done
	return done, err
}

// conclude completes the end's messages, and then, untimed, makes them visible to the peer, because
// an acknowledgement only proves arrival at its NIC.
func (e *End) conclude() (err error) {
	if !e.ended {
		if e.ended, err = e.drained(false); !e.ended || err != nil {
			return err
		}
		e.EndedAt = time.Now()
	}
	if !e.Sent {
		e.Sent, err = e.drained(true)
	}
	return err
}

// later drops the error of an operation that cannot start yet.
func later(err error) error {
	if errors.Is(err, transport.ErrNoResource) {
		return nil
	}
	return err
}
