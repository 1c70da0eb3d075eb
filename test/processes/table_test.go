package processes_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ibverbx/rendezvous"
)

// A table lets the members of a team gather data: each sends some and gets that of all, any number
// of times. It runs in the process of the test, and each member has a conversation with it.

// The messages of a member and the table. The table ends a conversation when the team has failed,
// with the reason.
const (
	kindHello    = "hello"    // member: its first one, with its rank
	kindGather   = "gather"   // member: sends data
	kindGathered = "gathered" // table: the data of all, by rank; null for dead members
	kindKill     = "kill"     // member: may be killed
	kindBye      = "bye"      // member: has done its task
)

// tableConfig configures the conversations of a team, which others cannot join: its token is part
// of the protocol's name. 16 cards of 16 endpoints each are a tenth of the longest message.
func tableConfig(token string) rendezvous.Config {
	return rendezvous.Config{Protocol: "team " + token, Timeout: time.Minute, Greeting: time.Minute,
		MaxMessage: 4 << 20}
}

// table is the server.
type table struct {
	listener *rendezvous.Listener
	kill     func(rank int) // kills a member that asks for it
	serving  sync.WaitGroup

	mu      sync.Mutex
	members []tableMember
	failure error
	closed  bool
}

// tableMember is a member as the table sees it.
type tableMember struct {
	conn  *rendezvous.Conn // nil before its hello
	waits bool             // it has sent data, and waits for the others
	data  []byte
	gone  bool // it has done its task or is dead: others do not wait for it
}

func newTable(members int, token string, kill func(rank int)) (*table, error) {
	l, err := rendezvous.Listen(context.Background(), "127.0.0.1:0", tableConfig(token))
	if err != nil {
		return nil, err
	}
	t := &table{listener: l, kill: kill, members: make([]tableMember, members)}
	t.serving.Go(t.accept)
	return t, nil
}

func (t *table) addr() string { return t.listener.Addr().String() }

func (t *table) accept() {
	for {
		c, err := t.listener.Accept(context.Background())
		if err != nil {
			return // closed
		}
		t.serving.Go(func() { t.serve(c) })
	}
}

// serve serves a member until it has done its task.
func (t *table) serve(c *rendezvous.Conn) {
	defer c.Close()
	rank, err := t.welcome(c)
	if err != nil {
		c.Fail(err)
		return
	}
	for {
		m, err := c.Next(context.Background())
		if err != nil {
			t.leave(rank, err)
			return
		}
		var data []byte
		switch m.Kind {
		case kindGather:
			if err := m.Decode(&data); err != nil {
				t.fail(fmt.Errorf("member %d: %w", rank, err))
				return
			}
			t.put(rank, data)
		case kindKill:
			t.kill(rank)
			t.remove(rank)
		case kindBye:
			t.remove(rank)
			return
		default:
			t.fail(fmt.Errorf("member %d sent a message of kind %q", rank, m.Kind))
			return
		}
	}
}

// welcome waits for a hello and notes the conversation of the member.
func (t *table) welcome(c *rendezvous.Conn) (rank int, err error) {
	if err := c.Receive(context.Background(), kindHello, &rank); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed, uint(rank) >= uint(len(t.members)), t.members[rank].conn != nil:
		return 0, errors.New("not a member of this team")
	case t.failure != nil: // before the hello came
		return 0, t.failure
	}
	t.members[rank].conn = c
	return rank, nil
}

// put notes the data of a member. If it was the last, all get the data of all.
func (t *table) put(rank int, data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members[rank].waits, t.members[rank].data = true, data
	t.sendAll()
}

// sendAll sends the data of all members to all, if it is complete. It is called with mu held.
func (t *table) sendAll() {
	all, waiting := make([][]byte, len(t.members)), 0
	for i := range t.members {
		switch s := &t.members[i]; {
		case s.waits:
			all[i] = s.data
			waiting++
		case !s.gone:
			return
		}
	}
	if waiting == 0 {
		return
	}
	for i := range t.members {
		if s := &t.members[i]; s.waits {
			s.waits, s.data = false, nil
			// a failed one shows when the connection ends
			_ = s.conn.Send(context.Background(), kindGathered, all)
		}
	}
}

// remove removes a member: the others do not wait for it any more.
func (t *table) remove(rank int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.members[rank]
	s.gone, s.waits, s.data = true, false, nil
	t.sendAll()
}

// leave notes that a member's conversation has ended.
func (t *table) leave(rank int, why error) {
	t.mu.Lock()
	expected := t.members[rank].gone || t.closed
	t.mu.Unlock()
	if !expected {
		t.fail(fmt.Errorf("member %d has gone: %w", rank, why))
	}
}

// fail tells all members that the team has failed, and why. Only the first reason counts.
func (t *table) fail(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure != nil || t.closed {
		return
	}
	t.failure = why
	for i := range t.members {
		if s := &t.members[i]; s.conn != nil && !s.gone {
			t.serving.Go(func() { s.conn.Fail(why) })
		}
	}
}

// close closes the table and waits for its goroutines.
func (t *table) close() {
	t.mu.Lock()
	t.closed = true
	for i := range t.members {
		if c := t.members[i].conn; c != nil {
			t.serving.Go(func() { _ = c.Close() })
		}
	}
	t.mu.Unlock()
	_ = t.listener.Close()
	t.serving.Wait()
}
