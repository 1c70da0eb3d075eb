package job

import (
	"fmt"

	"ibverbx/rendezvous"
)

// guest is a process of the job, as rank 0 sees it. Messages to it wait in a queue, so a process
// that does not read holds up nobody.
type guest struct {
	Process

	s    *server
	conn *rendezvous.Conn
	wake chan struct{} // out is not empty
	told chan struct{} // closed once the end of the job was written

	// Guarded by the server's mu.
	out     []message
	waiting int // gets without an answer
	left    bool
}

type message struct {
	kind string
	body any
}

const (
	// maxQueue is the most messages queued for a process that does not read.
	maxQueue = 4096
	// maxWaiting is the most gets of a process that may wait for their values.
	maxWaiting = 1024
)

// send queues a message. The server's mu is held.
func (g *guest) send(kind string, body any) {
	if len(g.out) == maxQueue {
		_ = g.conn.Close() // read notices
		return
	}
	g.out = append(g.out, message{kind, body})
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// write sends the queued messages.
func (g *guest) write() {
	for {
		select {
		case <-g.wake:
		case <-g.conn.Done():
			return
		}
		g.s.mu.Lock()
		batch := g.out
		g.out = nil
		g.s.mu.Unlock()
		for _, m := range batch {
			if err := g.conn.Send(g.s.ctx, m.kind, m.body); err != nil {
				if g.conn.Err() == nil { // otherwise read knows why, and may still have messages to handle
					g.lost(fmt.Errorf("%w: it does not take what it is told", ErrDied))
					_ = g.conn.Close()
				}
				return
			}
			if m.kind == kindEnd {
				close(g.told)
				return // nothing follows
			}
		}
	}
}

// read handles what it says, until it says no more.
func (g *guest) read() {
	err := heed(g.conn, g.s.cfg.Patience, g.handle)
	g.lost(ended(err))
	if g.s.ctx.Err() == nil {
		select { // it may not know the end yet, as where it was silent
		case <-g.told:
		case <-g.conn.Done():
		case <-g.s.ctx.Done():
		}
	}
	_ = g.conn.Close()
}

// lost ends the job because of this process.
func (g *guest) lost(why error) {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if !g.left && g.s.ctx.Err() == nil {
		g.s.failLocked(&RankError{g.Process, why})
	}
}

// handle handles a message.
func (g *guest) handle(m rendezvous.Message) error {
	s := g.s
	switch m.Kind {
	case kindAlive:
		return nil
	case kindGather:
		var c contribution
		if err := m.Decode(&c); err != nil {
			return err
		}
		if len(c.Data) > s.cfg.MaxValue {
			return fmt.Errorf("%w: it passes %d bytes: at most %d (Config.MaxValue of rank 0)", ErrMismatch,
				len(c.Data), s.cfg.MaxValue)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.over {
			s.contribute(g, &c)
		}
		return nil
	case kindEnd:
		var v verdict
		if err := m.Decode(&v); err != nil {
			return err
		}
		if v.Process == nil {
			v.Process = &g.Process
		}
		s.fail(v.err())
		return nil
	case kindQuit:
		var q quit
		if err := m.Decode(&q); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.over {
			s.giveUp(g, &q)
		}
		return nil
	case kindLeave:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leave(g)
		return nil
	case kindPut, kindGet, kindForget:
		var r request
		if err := m.Decode(&r); err != nil {
			return err
		}
		if err := checkKey(r.Key); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch m.Kind {
		case kindPut:
			s.values.put(g, &r, s.cfg.MaxValue)
		case kindGet:
			s.values.get(g, &r)
		default:
			s.values.forget(g, &r)
		}
		return nil
	}
	return fmt.Errorf("%w: message %q", rendezvous.ErrProtocol, m.Kind)
}
