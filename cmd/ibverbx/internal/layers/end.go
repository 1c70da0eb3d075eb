package layers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/pattern"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Config says what an end is made of.
type Config struct {
	Name      string // of the end, in errors
	Shape     Shape
	Kind      Kind
	Endpoints int            // connections to the peer, at least 1; of queue pairs there is one
	Window    int            // operations outstanding on each
	Largest   int            // bytes of the largest message
	Inline    int            // up to so many bytes queue pairs send inline; QP.MaxInline allows it
	QP        ibverbx.Config // of every endpoint
	Spin      time.Duration  // as transport.Config.Spin
	Devices   []verbs.Device
	Src       []byte // messages are read there, by this end or, with Shape.Reads, by the peer
	Dst       []byte // messages arrive there; behind the slots lie the words of Tail
	Tail      int    // offset in Dst, a multiple of 8, of the words of this package, TailSize bytes
}

// Task is a round as one end sees it.
type Task struct {
	Round     pattern.Round
	Endpoints int  // in use: the first ones
	Send      int  // messages that this end sends
	Take      int  // messages of the peer that it sees
	Answers   bool // it sends one for each that has come, and not before
	Alone     bool // one message at a time, as Series sends them

	// Check looks at message i of the peer as soon as this end has seen it; nil for no check.
	Check func(i int) error
	// Meanwhile is called again and again while Run plays the end's part; nil for nothing.
	Meanwhile func()
	// Look is called with the messages posted whenever this end looks for something to do; its
	// error ends the round. Nil for nothing.
	Look func(posted int) error

	// The rest is for queue pairs alone.

	Slots   int          // message i is in slot i modulo Slots; the layers have one for each message
	Window  int          // messages outstanding at most
	Brake   *atomic.Bool // once set, the end sends no further message: the round is cut short
	Counter uint64       // what the peer's counter of atomics holds before the round
}

// traffic is what a layer does for an end. Its methods are called by the goroutine that plays the
// end's part.
type traffic interface {
	// begin prepares for a round: receives are posted when it returns.
	begin(t *Task) error
	// post starts up to n messages from message i on, and says how many it has started.
	// [transport.ErrNoResource]: the others not yet.
	post(i, n int) (int, error)
	// settle makes completed become true once everything posted has completed.
	// [transport.ErrNoResource]: call it again.
	settle() error
	// seal makes completed become true once what was put is visible
	// to the peer's processor, likewise.
	seal() error
	// completed says whether everything posted has completed;
	// in a series, whether the one message has.
	completed() (bool, error)
	// arrived is how many messages of the round have come.
	arrived() (int, error)
	// target is the memory that messages land in, and counter the number there that the peer's
	// atomics work on.
	target() []byte
	counter() uint64
	// results are what atomics brought.
	results() []uint64
	// kind is how a message of a size is moved, and longest what the kind that was asked for takes;
	// 0 for anything.
	kind(size int) Kind
	longest() int
	card() (Card, error)
	connect(peer *Card) error
	close(ctx context.Context) error
}

// engine makes progress for an end.
type engine interface {
	Progress() int
	WaitFor(ctx context.Context, every time.Duration, done func() bool) error
	Stats() transport.Stats
}

// End is one end of a connection through a layer.
//
// Invariant: posted <= task.Send. over implies that all posted messages have completed and that
// take messages have come.
type End struct {
	t       traffic
	engine  engine
	moved   func() // called whenever something has moved
	advance func() bool
	until   func() bool

	task   Task
	posted int // messages of the round that this end has started
	came   int // messages of the peer that it has seen
	stage  stage
	err    error
	// take is how many messages of the peer this end waits for: task.Take, or fewer where the
	// peer's part was cut short. Another goroutine may lower it.
	take    atomic.Int64
	over    atomic.Bool // its part is played
	endedAt time.Time   // when the last message had completed or come
}

// stage is how far an end has come with the messages that it sends in a round.
type stage uint8

const (
	playing  stage = iota
	settling       // its messages complete
	ended          // all has completed: the clock stops
	sealing        // the peer may look at its memory after that
	sent           // nothing is left to do for the messages of this end
)

// ErrMessages says that the messages that arrived are not those that were sent.
var ErrMessages = errors.New("other messages came than were sent")

// New makes an end that is not connected.
func New(cfg *Config) (*End, error) {
	e := &End{}
	var err error
	switch cfg.Shape.Layer {
	case QP:
		var q *QueuePair
		q, err = newQueuePair(cfg)
		e.t, e.engine = q, q
	case Transport:
		e.t, e.engine, err = newTransport(cfg)
	case Tagged:
		e.t, e.engine, err = newTagged(cfg)
	default:
		err = fmt.Errorf("an end of layer %.20q is not made alone", string(cfg.Shape.Layer))
	}
	if err != nil {
		return nil, err
	}
	e.advance = e.step
	return e, nil
}

// NewPair makes two ends in this process and connects them.
func NewPair(cfgs *[2]Config) (ends [2]*End, err error) {
	defer func() {
		for i, e := range ends {
			if err != nil && e != nil {
				err = errors.Join(err, e.Close(context.Background()))
				ends[i] = nil
			}
		}
	}()
	if cfgs[0].Shape.Layer == SHMEM {
		pes, err := newSHMEM(cfgs)
		for i, pe := range pes {
			if err == nil {
				ends[i] = &End{t: pe, engine: pe}
				ends[i].advance = ends[i].step
			}
		}
		return ends, err
	}
	for i := range ends {
		if ends[i], err = New(&cfgs[i]); err != nil {
			return ends, err
		}
	}
	return ends, ConnectPair(ends)
}

// ConnectPair connects two ends in this process to each other.
func ConnectPair(ends [2]*End) error {
	var cards [2]Card
	for i, e := range ends {
		var err error
		if cards[i], err = e.Card(); err != nil {
			return err
		}
	}
	return errors.Join(ends[0].Connect(&cards[1]), ends[1].Connect(&cards[0]))
}

// QueuePair is the end's virtual queue pair where it is an end of one; nil through a layer.
func (e *End) QueuePair() *QueuePair {
	q, _ := e.t.(*QueuePair)
	return q
}

// Card describes the end to its peer.
func (e *End) Card() (Card, error) { return e.t.card() }

// Connect connects to the end that sent the card.
func (e *End) Connect(peer *Card) error { return e.t.connect(peer) }

// Kind is how a message of a size is moved.
func (e *End) Kind(size int) Kind { return e.t.kind(size) }

// Longest is how many bytes the kind that was asked for takes over these NICs; 0 for any number.
func (e *End) Longest() int { return e.t.longest() }

// Stats is what the transport under the layer has counted.
func (e *End) Stats() transport.Stats { return e.engine.Stats() }

// Target is the memory that messages land in.
func (e *End) Target() []byte { return e.t.target() }

// Counter is the number that the peer's atomics work on.
func (e *End) Counter() uint64 { return e.t.counter() }

// Results are what the atomics of the round brought, in the order in which they were started.
func (e *End) Results() []uint64 { return e.t.results()[:e.posted] }

// PeerCounter is what the peer's counter holds when the atomics of the round have changed it.
func (e *End) PeerCounter() uint64 {
	if q := e.QueuePair(); q != nil {
		return q.next
	}
	return e.task.Counter + uint64(e.posted)
}

// Close ends the end. What is outstanding is cut off when ctx ends.
func (e *End) Close(ctx context.Context) error { return e.t.close(ctx) }

// Begin prepares for a round. moved is called whenever something has moved. The peer may send when
// it returns.
func (e *End) Begin(t Task, moved func()) error {
	e.task, e.moved = t, moved
	e.posted, e.came, e.stage, e.err = 0, 0, playing, nil
	e.take.Store(int64(t.Take))
	e.over.Store(false)
	return e.t.begin(&e.task)
}

// Over says whether the end has played its part in the round. Any goroutine may ask.
func (e *End) Over() bool { return e.over.Load() }

// Posted is how many messages of the round the end has started.
func (e *End) Posted() int { return e.posted }

// Came is how many messages of the peer the end has seen in the round.
func (e *End) Came() int { return e.came }

// Sent says whether nothing is left to do for the messages of this end.
func (e *End) Sent() bool { return e.stage == sent }

// EndedAt is when the last message of the end had completed or come. It is defined once Over, of
// what it sends once Sent.
func (e *End) EndedAt() time.Time { return e.endedAt }

// Stop ends the end's part early: it sends no further message.
func (e *End) Stop() { e.task.Send = e.posted }

// Abort ends the end's part with err, unless it has failed already. It is for Task.Meanwhile.
func (e *End) Abort(err error) {
	if e.err == nil {
		e.err = err
	}
}

// toSend is how many messages the end sends in all. Answers are sent one for one: a peer that was
// stopped gets fewer.
func (e *End) toSend() int {
	if e.task.Answers {
		return min(e.task.Send, int(e.take.Load()))
	}
	return e.task.Send
}

// Expect says that the peer sends n messages in the round, and not more. Any goroutine may call it.
func (e *End) Expect(n int) {
	if e.task.Take > 0 {
		e.take.Store(int64(n))
	}
}

// otherwise is how often an end that sleeps calls until.
const otherwise = time.Millisecond

// Run plays the end's part in the round, and serves the peer until that is over too, as until says.
// It spins and sleeps as the layer's calls that wait do.
func (e *End) Run(ctx context.Context, until func() bool) error {
	e.until = until
	e.bind(ctx)
	if err := e.engine.WaitFor(ctx, otherwise, e.advance); err != nil {
		return errors.Join(e.err, err)
	}
	return e.err
}

// bind passes ctx to a layer whose operations block.
func (e *End) bind(ctx context.Context) {
	if b, ok := e.t.(interface{ bind(ctx context.Context) }); ok {
		b.bind(ctx)
	}
}

// step does what can be done now, and says whether there is nothing more to do. Until then it reads
// nothing that the peer's goroutine writes:
// fetching it from another core takes longer than the rest.
func (e *End) step() bool {
	if e.task.Meanwhile != nil {
		e.task.Meanwhile()
	}
	e.glance()
	switch {
	case e.err != nil:
	case e.over.Load():
		_, e.err = e.t.arrived() // an end that only serves can fail too
	default:
		e.err = e.play()
	}
	return e.err != nil || e.over.Load() && e.until()
}

// glance lets Task.Look see to what it wants.
func (e *End) glance() {
	if e.task.Look != nil && e.err == nil {
		e.err = e.task.Look(e.posted)
	}
}

func (e *End) play() error {
	if err := e.pump(); err != nil {
		return err
	}
	if e.posted < e.toSend() {
		return nil
	}
	if err := e.conclude(); err != nil || e.stage != sent {
		return err
	}
	switch take := int(e.take.Load()); {
	case e.came < take:
	case e.came > take:
		return fmt.Errorf("%w: %d came, %d were to come", ErrMessages, e.came, take)
	default:
		e.over.Store(true)
	}
	return nil
}

// pump handles what has come, and starts what can be started.
func (e *End) pump() error {
	before := e.posted
	came, err := e.look()
	if err != nil {
		return err
	}
	// An end that answers is stopped by the peer, whose last message still gets its answer.
	if b := e.task.Brake; b != nil && b.Load() && !e.task.Answers {
		e.Stop()
	}
	for {
		n := e.task.Send - e.posted
		if e.task.Answers {
			n = min(n, e.came-e.posted)
		}
		if n <= 0 {
			break
		}
		k, err := e.t.post(e.posted, n)
		e.posted += k
		if err != nil {
			if errors.Is(err, transport.ErrNoResource) {
				break
			}
			return err
		}
	}
	if came || e.posted != before {
		e.moved()
	}
	return nil
}

// look says whether messages have come, and checks them.
func (e *End) look() (bool, error) {
	came, err := e.t.arrived()
	if err != nil || came == e.came {
		return false, err
	}
	if e.task.Check != nil {
		for i := e.came; i < came; i++ {
			if err := e.task.Check(i); err != nil {
				return false, err
			}
		}
	}
	e.came = came
	if e.stage >= ended && came >= int(e.take.Load()) {
		e.endedAt = time.Now()
	}
	return true, nil
}

// conclude completes what the end has sent. What is not timed any more makes what was put visible
// to the peer: an acknowledgement alone proves arrival at its NIC.
func (e *End) conclude() error {
	for e.stage != sent {
		var err error
		on := true // to the next stage
		switch e.stage {
		case playing:
			err = e.t.settle()
		case settling:
			if on, err = e.t.completed(); on {
				e.endedAt = time.Now()
			}
		case ended:
			err = e.t.seal()
		case sealing:
			on, err = e.t.completed()
		}
		if err != nil {
			return later(err)
		}
		if !on {
			return nil
		}
		e.stage++
	}
	return nil
}

// later drops the error that only says that an operation cannot start yet.
func later(err error) error {
	if errors.Is(err, transport.ErrNoResource) {
		return nil
	}
	return err
}
