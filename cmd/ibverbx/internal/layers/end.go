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
	Shape     Shape
	Kind      Kind
	Endpoints int            // connections to the peer, at least 1
	Window    int            // operations outstanding on each
	Largest   int            // bytes of the largest message
	QP        ibverbx.Config // of every endpoint
	Spin      time.Duration  // as transport.Config.Spin
	Devices   []verbs.Device
	Src       []byte // messages are read there, by this end or, with Shape.Reads, by the peer
	Dst       []byte // what comes goes there; behind the slots lie the words of Tail
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
}

// traffic is what a layer does for an end. Its methods are called by the goroutine that plays the
// end's part.
type traffic interface {
	// begin prepares for a round: receives are posted when it returns.
	begin(t *Task) error
	// post starts message i. [transport.ErrNoResource]: not yet, and nothing has happened.
	post(i int) error
	// settle makes completed become true once everything posted has completed.
	// [transport.ErrNoResource]: call it again.
	settle() error
	// seal makes completed become true once what was put is visible to the peer's processor,
	// likewise.
	seal() error
	// completed says whether everything posted has completed; in a series, whether the one message
	// has.
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
type End struct {
	t       traffic
	engine  engine
	moved   func() // told whenever something has moved
	advance func() bool
	until   func() bool

	task    Task
	posted  int
	came    int
	stage   stage
	err     error
	over    atomic.Bool // its part is played
	endedAt time.Time   // when it was
}

// stage is how far an end has come in a round.
type stage uint8

const (
	playing  stage = iota
	settling       // what it has sent completes
	ended          // all has completed and come: the clock stops
	sealing        // the peer may look at its memory after that
)

// ErrMessages says that other messages came than were sent.
var ErrMessages = errors.New("other messages came than were sent")

// New makes an end, not connected yet.
func New(cfg *Config) (*End, error) {
	e := &End{}
	var err error
	switch cfg.Shape.Layer {
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
	var cards [2]Card
	for i := range ends {
		if ends[i], err = New(&cfgs[i]); err != nil {
			return ends, err
		}
		if cards[i], err = ends[i].Card(); err != nil {
			return ends, err
		}
	}
	for i, e := range ends {
		if err := e.Connect(&cards[1-i]); err != nil {
			return ends, err
		}
	}
	return ends, nil
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

// Close ends the end. What is outstanding is cut off when ctx ends.
func (e *End) Close(ctx context.Context) error { return e.t.close(ctx) }

// Begin prepares for a round. moved is called whenever something has moved. The peer may send when
// it returns.
func (e *End) Begin(t Task, moved func()) error {
	e.task, e.moved = t, moved
	e.posted, e.came, e.stage, e.err = 0, 0, playing, nil
	e.over.Store(false)
	return e.t.begin(&e.task)
}

// Over says whether the end has played its part in the round. Any goroutine may ask.
func (e *End) Over() bool { return e.over.Load() }

// EndedAt is when the end had played its part. It is defined once Over.
func (e *End) EndedAt() time.Time { return e.endedAt }

// otherwise is how often until is asked by an end that sleeps.
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

// bind tells a layer whose operations block when to give up.
func (e *End) bind(ctx context.Context) {
	if b, ok := e.t.(interface{ bind(ctx context.Context) }); ok {
		b.bind(ctx)
	}
}

// step does what can be done now, and says whether there is nothing more to do.
func (e *End) step() bool {
	if e.err == nil && !e.over.Load() {
		e.err = e.play()
	}
	return e.err != nil || e.over.Load() && e.until()
}

func (e *End) play() error {
	if err := e.pump(); err != nil {
		return err
	}
	if e.came < e.task.Take || e.posted < e.task.Send {
		return nil
	}
	return e.conclude()
}

// pump takes in what has come, and starts what can be started.
func (e *End) pump() error {
	came, err := e.t.arrived()
	if err != nil {
		return err
	}
	limit, before := e.task.Send, e.posted
	if e.task.Answers {
		limit = min(limit, came)
	}
	for e.posted < limit {
		if err := e.t.post(e.posted); err != nil {
			if errors.Is(err, transport.ErrNoResource) {
				break
			}
			return err
		}
		e.posted++
	}
	if came != e.came || e.posted != before {
		e.came = came
		e.moved()
	}
	return nil
}

// conclude ends the round once everything was started and has come. What is not timed any more
// makes what was put visible to the peer: an acknowledgement alone proves arrival at its NIC.
func (e *End) conclude() error {
	for !e.over.Load() {
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
			if on, err = e.t.completed(); on && e.came > e.task.Take {
				err = fmt.Errorf("%w: %d came, %d were to come", ErrMessages, e.came, e.task.Take)
			} else if on && err == nil {
				e.over.Store(true)
			}
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

// later takes the error out that only says not yet.
func later(err error) error {
	if errors.Is(err, transport.ErrNoResource) {
		return nil
	}
	return err
}
