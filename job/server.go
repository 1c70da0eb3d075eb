package job

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/internal/roster"
	"ibverbx/rendezvous"
)

// server is rank 0's part of the job: it has a conversation with every process, its own included,
// and knows which ones are alive.
type server struct {
	place  *Place
	cfg    Config
	l      *rendezvous.Listener // nil in a job of one process
	ctx    context.Context      // ends with the server
	cancel context.CancelCauseFunc
	all    sync.WaitGroup

	meeting context.Context // ends once all have joined, or with the server
	met     context.CancelFunc
	watched chan struct{} // closed when watch has stopped using the store; nil without a store

	mu     sync.Mutex
	guests []*guest // by rank; nil if it has not joined
	joined int
	came   map[int]bool  // ranks that have joined, or were told why they cannot
	heard  chan struct{} // closed when came is complete
	over   bool          // the job has failed, or rank 0 has left
	why    error         // the reason for over
	call   *call         // the collective call under way
	calls  uint64        // collective calls that are complete
	left   *guest
	values values

	refused   refused
	dismissed chan struct{} // a place for each conversation that is being told why it ends
}

// call is a collective call that some processes have made.
type call struct {
	seq  uint64
	op   string
	by   *guest // the first
	rows [][]byte
	has  []bool
	got  int
}

// serve begins to serve a job.
func serve(ctx context.Context, p *Place, cfg *Config) (*server, error) {
	s := &server{place: p, cfg: *cfg, guests: make([]*guest, p.Size), values: newValues(cfg.MaxStore),
		came: map[int]bool{}, heard: make(chan struct{}), dismissed: make(chan struct{}, maxGreeted)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.meeting, s.met = context.WithCancel(s.ctx)
	if p.Size > 1 {
		var err error
		if s.l, err = s.listen(ctx, p, cfg); err != nil {
			s.cancel(&RankError{self(0), ErrLeft})
			return nil, err
		}
	}
	if s.l != nil {
		s.all.Go(s.accept)
	}
	s.all.Go(s.attend)
	if s.l != nil && cfg.Store != nil {
		if err := announce(ctx, p, cfg.Store); err != nil {
			s.close()
			return nil, err
		}
		s.watched = make(chan struct{})
		s.all.Go(func() {
			s.watch()
			close(s.watched)
		})
	}
	return s, nil
}

// listen listens at rank 0's address.
func (s *server) listen(ctx context.Context, p *Place, cfg *Config) (*rendezvous.Listener, error) {
	host, port, err := net.SplitHostPort(p.Address)
	at := site{listenHost(host), host, port}
	if cfg.Store != nil {
		p.incarnation = rand.Text()
		at, err = choose(ctx, p.Address, cfg.Store)
	}
	if err != nil {
		return nil, err
	}
	talk := conversation(p, cfg)
	talk.Refused = s.turnAway
	l, err := rendezvous.Listen(ctx, net.JoinHostPort(at.listen, at.port), talk)
	if at.port == "0" && err == nil {
		_, at.port, _ = net.SplitHostPort(l.Addr().String()) // it is one of TCP
	}
	p.Address = net.JoinHostPort(at.reach, at.port)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	return nil, taken(ctx, p, cfg, err)
}

// first begins rank 0's own conversation.
func (s *server) first(ctx context.Context) (*member, error) {
	here, there := net.Pipe()
	cfg := conversation(s.place, &s.cfg)
	s.all.Go(func() {
		if c, err := rendezvous.Start(s.ctx, there, cfg); err == nil {
			s.greet(c, nil)
		}
	})
	c, err := rendezvous.Start(ctx, here, cfg)
	if err != nil {
		return nil, err
	}
	return talk(ctx, s.place, &s.cfg, c)
}

// arrived records that a process has joined, or knows why it cannot.
func (s *server) arrived(rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank < 0 || rank >= s.place.Size || s.came[rank] {
		return
	}
	if s.came[rank] = true; len(s.came) == s.place.Size {
		close(s.heard)
	}
}

// linger waits some time for late processes, to tell them why there is no job.
func (s *server) linger(ctx context.Context) {
	late := time.NewTimer(lateness)
	defer late.Stop()
	select {
	case <-s.heard:
	case <-late.C:
	case <-ctx.Done():
	}
}

// admit adds a process to the job.
func (s *server) admit(h *hello, c *rendezvous.Conn, own bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wrong error
	switch here := s.place.Size; {
	case h.Size != here:
		wrong = fmt.Errorf("%w: it says that the job has %d processes, rank 0 says %d", ErrMismatch, h.Size,
			here)
	case h.Rank < 0 || h.Rank >= here:
		wrong = fmt.Errorf("%w: of %d processes the ranks are 0 to %d", ErrMismatch, here, here-1)
	case h.Rank == 0 && !own: // even before this process has joined itself
		wrong = errTwoFirst(s.place)
	case s.guests[h.Rank] != nil:
		wrong = fmt.Errorf("%w: two processes have this rank, the other one is %v", ErrMismatch,
			s.guests[h.Rank].Process)
	case s.over:
		return s.why
	}
	if wrong != nil {
		wrong = &RankError{h.Process, wrong}
		if s.joined < s.place.Size { // the job is complete without it
			s.failLocked(wrong)
		}
		return wrong
	}
	g := &guest{Process: h.Process, s: s, conn: c, wake: make(chan struct{}, 1), told: make(chan struct{})}
	s.guests[h.Rank] = g
	s.joined++
	s.all.Go(g.read)
	s.all.Go(g.write)
	g.send(kindMet, self(0))
	if s.joined == s.place.Size {
		s.met()
		list := make([]Process, 0, s.joined)
		for _, g := range s.guests {
			list = append(list, g.Process)
		}
		s.queueAll(message{kind: kindReady, frames: encodeList(list)})
	}
	return nil
}

// attend tells all processes regularly that rank 0 is alive, and ends the wait for those that do
// not come.
func (s *server) attend() {
	tick := time.NewTicker(s.cfg.Patience / 4)
	defer tick.Stop()
	wait, log := time.NewTimer(s.cfg.Wait), time.NewTimer(patienceOfLogs)
	late := time.NewTicker(s.cfg.Patience)
	defer wait.Stop()
	defer log.Stop()
	defer late.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			alive := encoded(kindAlive, nil)
			s.mu.Lock()
			for _, g := range s.guests {
				if g != nil && len(g.out) == 0 {
					g.queue(alive)
				}
			}
			s.mu.Unlock()
		case <-log.C:
			if who := s.missing(); who != "" {
				s.cfg.Logger.Info("ibverbx: job: waiting for others", "missing", who, "address",
					s.place.Address)
			}
		case <-late.C:
			if ranks := s.absent(); len(ranks) > 0 {
				tellMissing(s.place, ranks...)
			}
		case <-wait.C:
			if who := s.missing(); who != "" {
				s.fail(fmt.Errorf("%w: %s", errWaited(s.cfg.Wait), s.lastRefused(who)))
			}
		}
	}
}

// complete reports whether all have joined.
func (s *server) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joined == s.place.Size
}

// missing names the ranks that have not joined; empty if all have.
func (s *server) missing() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return roster.Late("rank", s.place.Size, func(rank int) bool { return s.guests[rank] == nil },
		"is missing", "are missing")
}

// absent returns the ranks that have not joined.
func (s *server) absent() (ranks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rank, g := range s.guests {
		if g == nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// fail ends the job for all.
func (s *server) fail(why error) {
	s.mu.Lock()
	s.failLocked(why)
	s.mu.Unlock()
}

// failLocked is fail with mu held. It tells this process last, because that may exit at once, and
// the others would mistake its end for the reason.
func (s *server) failLocked(why error) {
	if s.over {
		return
	}
	s.over, s.why = true, why
	v := verdictOf(why)
	var others []*guest
	for rank, g := range s.guests {
		if g != nil && rank != 0 {
			g.send(kindEnd, v)
			others = append(others, g)
		}
	}
	first := s.guests[0]
	if first == nil {
		return // it is about to join, and is told then
	}
	s.all.Go(func() {
		late := time.NewTimer(lateness / 2)
		defer late.Stop()
		for _, g := range others {
			select {
			case <-g.told:
			case <-g.conn.Done():
			case <-late.C:
				late.Reset(0)
			}
		}
		s.mu.Lock()
		first.send(kindEnd, v)
		s.mu.Unlock()
	})
}

// sendAll queues a message for all. mu is held.
func (s *server) sendAll(kind string, body any) { s.queueAll(encoded(kind, body)) }

// queueAll is sendAll for an encoded message.
func (s *server) queueAll(m message) {
	for _, g := range s.guests {
		if g != nil {
			g.queue(m)
		}
	}
}

// contribute handles a process's contribution to a collective call. mu is held.
func (s *server) contribute(g *guest, c *contribution) {
	switch now := s.call; {
	case s.left != nil:
		s.failLocked(&RankError{s.left.Process, fmt.Errorf("%w before a call of %s", ErrLeft, c.Op)})
		return
	case c.Seq != s.calls+1: // it knows that all before have ended, and which one is next
		s.failLocked(&RankError{g.Process, fmt.Errorf("%w: it contributes to collective call %d, %.40q, "+
			"where call %d is due", ErrMismatch, c.Seq, c.Op, s.calls+1)})
		return
	case now == nil:
		n := s.place.Size
		s.call = &call{seq: c.Seq, op: c.Op, by: g, rows: make([][]byte, n), has: make([]bool, n)}
	case now.op != c.Op || now.has[g.Rank]:
		s.failLocked(&RankError{g.Process, fmt.Errorf("%w: its collective call %d is %.40q, where call %d "+
			"of %v "+
			"is %q", ErrMismatch, c.Seq, c.Op, now.seq, now.by.Process, now.op)})
		return
	}
	now := s.call
	now.rows[g.Rank], now.has[g.Rank] = c.Data, true
	now.got++
	if now.got < s.place.Size {
		return
	}
	s.call = nil
	s.calls++
	// Encode once, not for each process: in large jobs this is most of the work.
	frames, err := encodeRows(now.seq, now.rows)
	if err != nil {
		s.failLocked(err)
		return
	}
	s.queueAll(message{kind: kindRows, frames: frames})
}

// giveUp handles a process that gives up a collective call. If the deadline of its context has
// passed, the processes that have not entered the call are to blame. mu is held.
func (s *server) giveUp(g *guest, q *quit) {
	name := fmt.Sprintf("%s %d", peertext.Line(q.Op, maxKey), q.Seq)
	late, last, who := 0, g, ""
	if c := s.call; c != nil && c.seq == q.Seq { // otherwise it is complete
		who = roster.Late("rank", s.place.Size, func(rank int) bool {
			if c.has[rank] || rank == g.Rank {
				return false
			}
			late, last = late+1, s.guests[rank]
			return true
		}, "has not entered "+name, "have not entered "+name)
	}
	why := peertext.Clean(q.Text)
	switch {
	case late == 0:
		s.failLocked(&RankError{g.Process, fmt.Errorf("%w: %s: %s", ErrFailed, name, why)})
	case !q.Late:
		s.failLocked(&RankError{g.Process, fmt.Errorf("%w: %s: %s; %s", ErrFailed, name, why, who)})
	case late == 1:
		s.failLocked(&RankError{last.Process, &said{fmt.Sprintf("it has not entered %s; %v stopped waiting: "+
			"%s", name, g.Process, why), ErrAbsent}})
	default:
		s.failLocked(&said{fmt.Sprintf("%s; %v stopped waiting: %s", who, g.Process, why), ErrAbsent})
	}
}

// leave handles the leave of a process. mu is held.
func (s *server) leave(g *guest) {
	g.left = true
	g.send(kindBye, nil)
	if s.left == nil {
		s.left = g
	}
	switch {
	case s.over:
	case s.call != nil:
		s.failLocked(&RankError{g.Process, fmt.Errorf("%w during a call of %s", ErrLeft, s.call.op)})
	case g.Rank == 0:
		s.over, s.why = true, &RankError{g.Process, ErrLeft}
		s.sendAll(kindBye, nil)
	}
}

// close ends the server, after the others had some time to learn of the end of the job.
func (s *server) close() {
	if s.l != nil {
		_ = s.l.Close()
	}
	late := time.NewTimer(lateness)
	defer late.Stop()
	s.mu.Lock()
	guests := append([]*guest(nil), s.guests...)
	s.mu.Unlock()
	for _, g := range guests {
		if g == nil {
			continue
		}
		select {
		case <-g.conn.Done():
		case <-late.C:
			late.Reset(0)
		}
	}
	s.cancel(&RankError{self(0), ErrLeft})
	for _, g := range guests {
		if g != nil {
			_ = g.conn.Close()
		}
	}
	s.all.Wait()
}

// route returns the ends of a connection to a process on another host, or of any connection.
func (s *server) route() route {
	lo := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	r := route{lo, lo}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.guests[1:] {
		r = route{g.conn.LocalAddr(), g.conn.RemoteAddr()}
		here, ok := r.local.(*net.TCPAddr)
		there, too := r.remote.(*net.TCPAddr)
		if ok && too && !here.IP.Equal(there.IP) {
			break
		}
	}
	return r
}
