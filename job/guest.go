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
	ended   bool // the end of the job was queued
	waiting int  // gets without an answer
	left    bool

	// The parts that read has taken.
	mine  assembly // its contribution to a collective call
	value assembly // the value that it puts with the requests of the number putID
	putID uint64
}

// message is a message to a guest: some frames, or a value of the store.
type message struct {
	kind   string
	frames []rendezvous.Frame // nil: the answer to a get
	id     uint64             // of the get
	value  *stored            // shared by all answers with it; write encodes it
}

// encoded encodes a message of one frame.
func encoded(kind string, body any) message {
	return message{kind: kind, frames: []rendezvous.Frame{encode(kind, body)}}
}

// encode encodes a frame. An empty one, which cannot be sent, ends the conversation.
func encode(kind string, body any) rendezvous.Frame {
	f, _ := rendezvous.Encode(kind, body)
	return f
}

const (
	// maxQueue is the most messages queued for a process that does not read.
	maxQueue = 4096
	// maxWaiting is the most gets of a process that may wait for their values.
	maxWaiting = 1024
)

// errUnread means that a process does not read its messages.
var errUnread = fmt.Errorf("%w: it does not take what it is told", ErrDied)

// send queues a message. The server's mu is held.
func (g *guest) send(kind string, body any) { g.queue(encoded(kind, body)) }

// queue queues a message, and none behind the end of the job. The server's mu is held.
func (g *guest) queue(m message) {
	if len(g.out) == maxQueue && !g.ended { // it must only learn the end
		g.out = nil
		g.s.failLocked(&RankError{g.Process, errUnread})
	}
	if g.ended {
		return
	}
	g.ended = m.kind == kindEnd
	g.out = append(g.out, m)
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
			if err := g.tell(m); err != nil {
				if g.conn.Err() == nil { // otherwise read knows why, and may have more to handle
					g.lost(fmt.Errorf("%w: %w", errUnread, err))
					_ = g.conn.Close()
				}
				return
			}
			if m.value != nil {
				g.s.mu.Lock()
				g.s.values.written(m.value)
				g.s.mu.Unlock()
			}
			if m.kind == kindEnd {
				close(g.told)
				return // nothing follows
			}
		}
	}
}

// tell sends a message. It encodes a value a part at a time, without the server's mu.
func (g *guest) tell(m message) error {
	if m.frames == nil {
		return parts(m.value.data, func(part []byte, more bool) error {
			return g.conn.SendFrame(g.s.ctx, encode(m.kind, answer{ID: m.id, Data: part, More: more}))
		})
	}
	for _, f := range m.frames {
		if err := g.conn.SendFrame(g.s.ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// read handles the process's messages, until there are no more.
func (g *guest) read() {
	err := heed(g.conn, g.s.cfg.Patience, g.handle)
	g.lost(ended(err))
	if g.s.ctx.Err() == nil {
		select { // it may not know the end yet, as when it was silent
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
	if (m.Kind == kindGather || m.Kind == kindQuit) && !s.complete() {
		return fmt.Errorf("%w: message %q before all have joined", rendezvous.ErrProtocol, m.Kind)
	}
	switch m.Kind {
	case kindAlive:
		return nil
	case kindGather:
		var c contribution
		if err := m.Decode(&c); err != nil {
			return err
		}
		if g.mine.add(c.Data, s.cfg.MaxValue); g.mine.size > s.cfg.MaxValue {
			return fmt.Errorf("%w: it passes %d bytes: at most %d (Config.MaxValue of rank 0)", ErrMismatch,
				g.mine.size, s.cfg.MaxValue)
		}
		if c.More {
			return nil
		}
		c.Data, g.mine = g.mine.data, assembly{}
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
		if v.Process == nil && v.Code != codeAbsent ||
			v.Process != nil && uint(v.Rank) >= uint(s.place.Size) {
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
		size := len(r.Data)
		if r.More || r.ID == g.putID { // a value in parts
			if r.ID != g.putID {
				g.value, g.putID = assembly{}, r.ID
			}
			if g.value.add(r.Data, s.cfg.MaxValue); r.More {
				return nil
			}
			r.Data, size = g.value.data, g.value.size
			g.value, g.putID = assembly{}, 0
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch m.Kind {
		case kindPut:
			s.values.put(g, &r, size, s.cfg.MaxValue)
		case kindGet:
			s.values.get(g, &r)
		default:
			s.values.forget(g, &r)
		}
		return nil
	}
	return fmt.Errorf("%w: message %q", rendezvous.ErrProtocol, m.Kind)
}
