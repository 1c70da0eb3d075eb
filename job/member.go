package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
)

// member is a process's conversation with rank 0, which has one with itself.
type member struct {
	place  *Place
	cfg    Config
	conn   *rendezvous.Conn
	all    []Process      // those that rank 0 has listed
	list   chan []Process // rank 0 has listed all: they have joined
	met    chan struct{}  // closed when rank 0 has described itself: this process has joined
	failed chan struct{}  // closed when the job has failed; why has the reason
	why    error
	gone   chan struct{} // closed when rank 0 has gone: because the job has failed, or it has left
	ending sync.Once
	meet   sync.Once

	mu      sync.Mutex
	first   Process // rank 0, as far as it is known
	leaving bool
	lastID  uint64
	asked   map[uint64]chan answer
	found   assembly // the value of an answer that is not complete yet
	gathers *gathering

	putting chan struct{} // a lock: one value that needs several messages is put at a time
}

// gathering is a collective call under way.
type gathering struct {
	seq  uint64
	rows []assembly
	got  int // rows that are complete
	done chan struct{}
}

// talk begins to talk to rank 0.
func talk(ctx context.Context, p *Place, cfg *Config, conn *rendezvous.Conn) (*member, error) {
	m := &member{place: p, cfg: *cfg, conn: conn, first: Process{Host: p.Address},
		list: make(chan []Process, 1), met: make(chan struct{}), failed: make(chan struct{}),
		gone: make(chan struct{}), asked: map[uint64]chan answer{}, putting: make(chan struct{}, 1)}
	if err := conn.Send(ctx, kindJoin, newHello(p)); err != nil {
		_ = conn.Close()
		return nil, &RankError{m.rank0(), ended(err)}
	}
	go m.listen()
	go m.beat()
	return m, nil
}

// ready waits until all processes have joined.
func (m *member) ready(ctx context.Context) ([]Process, error) {
	return awaited(ctx, m, m.list)
}

// awaited waits for rank 0's answer. An answer that has come counts even if the job or ctx has
// ended.
func awaited[T any](ctx context.Context, m *member, answer <-chan T) (a T, err error) {
	select {
	case a = <-answer:
		return a, nil
	case <-m.gone:
	case <-ctx.Done():
	}
	select {
	case a = <-answer:
		return a, nil
	default:
	}
	if m.hasGone() {
		return a, m.reason()
	}
	return a, context.Cause(ctx)
}

// hasGone reports whether all calls have ended.
func (m *member) hasGone() bool {
	select {
	case <-m.gone:
		return true
	default:
		return false
	}
}

// beat tells rank 0 regularly that this process is alive.
func (m *member) beat() {
	tick := time.NewTicker(m.cfg.Patience / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = m.conn.Send(context.Background(), kindAlive, nil) // listen learns why it failed
		case <-m.conn.Done():
			return
		}
	}
}

// listen handles rank 0's messages until the conversation ends.
func (m *member) listen() {
	err := heed(m.conn, m.cfg.Patience, m.handle)
	switch {
	case errors.Is(err, errEnough):
	case m.isLeaving():
		m.end(nil)
	default:
		var of *RankError
		if !errors.As(err, &of) && !errors.Is(err, ErrAbsent) {
			err = &RankError{m.rank0(), ended(err)}
		}
		m.hangUp(err)
		m.conn.Fail(err) // unless rank 0 has gone, it may still have to read why
	}
	_ = m.conn.Close()
}

// errEnough ends heed: no further message matters.
var errEnough = errors.New("nothing more to be said")

// heed passes each message to handle, until handle returns an error, or no byte comes for the time
// of patience. Silence is counted in ticks of a quarter of that: if this process was stopped for a
// while, only one tick has come, and messages that arrived meanwhile are read before the next.
func heed(c *rendezvous.Conn, patience time.Duration, handle func(rendezvous.Message) error) error {
	tick := time.NewTicker(max(patience/4, 1))
	defer tick.Stop()
	quiet, received := 0, c.Received()
	for {
		select {
		case m := <-c.Inbox():
			if err := handle(m); err != nil {
				return err
			}
			quiet = 0
		case <-c.Done():
			for { // messages that came before the end
				select {
				case m := <-c.Inbox():
					if err := handle(m); err != nil {
						return err
					}
					continue
				default:
				}
				return c.Err()
			}
		case <-tick.C:
			now := c.Received()
			if quiet++; now != received {
				quiet, received = 0, now
			}
			if quiet > 4 {
				return silent(patience)
			}
		}
	}
}

// handle handles a message of rank 0.
func (m *member) handle(msg rendezvous.Message) error {
	switch msg.Kind {
	case kindAlive:
	case kindMet:
		var first Process
		if err := msg.Decode(&first); err != nil {
			return err
		}
		first.Host = peertext.Line(first.Host, maxHost)
		m.mu.Lock()
		m.first = first
		m.mu.Unlock()
		m.meet.Do(func() { close(m.met) })
		m.cfg.Logger.Debug("ibverbx: job: rank 0 knows this process", "rank", m.place.Rank, "rank 0",
			first.String())
	case kindReady:
		var part []Process
		if err := msg.Decode(&part); err != nil {
			return err
		}
		m.all = append(m.all, part...)
		if len(m.all) > m.place.Size || len(part) == 0 {
			return fmt.Errorf("%w: it lists %d processes of %d", rendezvous.ErrProtocol, len(m.all),
				m.place.Size)
		}
		if len(m.all) == m.place.Size {
			m.list <- m.all
		}
	case kindRows:
		var part rows
		if err := msg.Decode(&part); err != nil {
			return err
		}
		return m.take(&part)
	case kindAnswer:
		var a answer
		if err := msg.Decode(&a); err != nil {
			return err
		}
		m.mu.Lock()
		m.found.add(a.Data, maxMaxValue)
		if !a.More {
			a.Data, m.found = m.found.data, assembly{}
			if to, ok := m.asked[a.ID]; ok {
				delete(m.asked, a.ID)
				to <- a
			}
		}
		m.mu.Unlock()
	case kindBye: // to a leave of this process, or rank 0 leaves itself
		m.end(nil)
		return errEnough
	case kindEnd:
		var v verdict
		if err := msg.Decode(&v); err != nil {
			return err
		}
		m.end(v.err())
		return errEnough
	default:
		return fmt.Errorf("%w: message %q", rendezvous.ErrProtocol, msg.Kind)
	}
	return nil
}

// take stores a part of the contributions of all to a collective call.
func (m *member) take(part *rows) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	complete, ok := false, m.gathers != nil
	if ok {
		complete, ok = m.gathers.take(part)
	}
	if !ok {
		return fmt.Errorf("%w: rows %d of call %d", rendezvous.ErrProtocol, part.First, part.Seq)
	}
	if complete {
		close(m.gathers.done)
		m.gathers = nil
	}
	return nil
}

// end ends all calls: with a reason if the job has failed, without one if rank 0 or this process
// has left it.
func (m *member) end(why error) {
	m.ending.Do(func() {
		if why != nil {
			m.why = why
			if !errors.Is(why, rendezvous.ErrBusy) { // then dial tries again
				tellLauncher(m.place, why)
			}
			close(m.failed)
		}
		close(m.gone)
	})
}

// reason returns the error of a call after the conversation has ended.
func (m *member) reason() error {
	select {
	case <-m.failed:
		return m.why
	default:
	}
	if m.isLeaving() {
		return ErrClosed
	}
	return &RankError{m.rank0(), ErrLeft}
}

// rank0 returns rank 0, as far as it is known.
func (m *member) rank0() Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first
}

func (m *member) isLeaving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving
}

// gather contributes to a collective call, and waits for the contributions of the others.
func (m *member) gather(ctx context.Context, op string, seq uint64, mine []byte) ([][]byte, error) {
	g := &gathering{seq: seq, rows: make([]assembly, m.place.Size), done: make(chan struct{})}
	m.mu.Lock()
	m.gathers = g
	m.mu.Unlock()
	err := parts(mine, func(part []byte, more bool) error {
		return m.send(ctx, kindGather, contribution{seq, op, part, more})
	})
	if err != nil {
		return nil, m.abandon(ctx, op, seq, err)
	}
	if _, err = awaited(ctx, m, g.done); err != nil {
		return nil, m.abandon(ctx, op, seq, err)
	}
	return g.all(), nil
}

// abandon ends the job because this process has given up a collective call. Rank 0 knows who has
// not entered it, and answers with a verdict that names them.
func (m *member) abandon(ctx context.Context, op string, seq uint64, err error) error {
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	wait := parting
	if late {
		wait = lateness
	}
	answer, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	q := quit{seq, op, late, peertext.Clean(err.Error())}
	if !m.hasGone() && m.conn.Send(answer, kindQuit, q) == nil {
		select {
		case <-m.gone:
		case <-answer.Done():
		}
	}
	if m.hasGone() {
		return &abandoned{verdict: m.reason(), err: err}
	}
	err = fmt.Errorf("%w: %v, which knows who has not entered %s %d, does not answer", err, m.rank0(), op,
		seq)
	m.giveUp(err)
	return err
}

// send sends rank 0 a message.
func (m *member) send(ctx context.Context, kind string, body any) error {
	if m.hasGone() { // the conversation may not have ended yet
		return m.reason()
	}
	err := m.conn.Send(ctx, kind, body)
	if err == nil || ctx.Err() != nil {
		return err
	}
	select { // the reason is known soon
	case <-m.gone:
		return m.reason()
	case <-time.After(time.Second):
		return &RankError{m.rank0(), ended(err)}
	}
}

// ask sends a request to the store, and waits for its answer.
func (m *member) ask(ctx context.Context, kind, key string, value []byte) ([]byte, error) {
	answered := make(chan answer, 1)
	m.mu.Lock()
	m.lastID++
	id := m.lastID
	m.asked[id] = answered
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		_, unanswered := m.asked[id]
		delete(m.asked, id)
		m.mu.Unlock()
		if unanswered && kind == kindGet {
			_ = m.conn.Send(context.Background(), kindForget, request{ID: id, Key: key})
		}
	}()
	if err := m.request(ctx, kind, id, key, value); err != nil {
		return nil, err
	}
	switch a, err := awaited(ctx, m, answered); {
	case a.Full != "":
		return nil, fmt.Errorf("%w: %.200q", ErrFull, a.Full)
	case err == nil:
		return a.Data, nil
	case m.hasGone():
		return nil, m.reason()
	case kind == kindGet:
		return nil, fmt.Errorf("%w: %v has no such value yet, or does not answer", err, m.rank0())
	default:
		return nil, fmt.Errorf("%w: %v does not answer", err, m.rank0())
	}
}

// request sends a request to the store.
func (m *member) request(ctx context.Context, kind string, id uint64, key string, value []byte) error {
	if len(value) > partLen {
		select {
		case m.putting <- struct{}{}:
			defer func() { <-m.putting }()
		case <-m.gone:
			return m.reason()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return parts(value, func(part []byte, more bool) error {
		return m.send(ctx, kind, request{id, key, part, more})
	})
}

// leave tells rank 0 that this process closes the job, and waits until it knows.
func (m *member) leave() {
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), lateness)
	defer cancel()
	if m.conn.Send(ctx, kindLeave, nil) == nil {
		select {
		case <-m.gone:
		case <-ctx.Done():
		}
	}
	m.end(nil)
	_ = m.conn.Close()
}

// giveUp ends the job because this process gives up.
func (m *member) giveUp(why error) {
	m.hangUp(&RankError{self(m.place.Rank), fmt.Errorf("%w: %w", ErrFailed, why)})
	time.AfterFunc(lateness, func() { _ = m.conn.Close() }) // unless rank 0 has answered, and listen has
}

// parting is how long a process may take to say why it hangs up.
const parting = 100 * time.Millisecond

// hangUp tells rank 0, and with it all, why the job has failed, unless it knows, and ends all
// calls. A rank 0 that was stopped thus learns when it goes on that it was taken for dead itself.
func (m *member) hangUp(why error) {
	if m.hasGone() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), parting)
	defer cancel()
	if m.conn.Err() == nil {
		_ = m.conn.Send(ctx, kindEnd, verdictOf(why))
	}
	m.end(why)
}
