package processes_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A table lets the members of a team gather data: each sends some and gets that of all, any number
// of times. It runs in the process of the test and is reached over TCP on the loopback.

// note is a message between a member and the table: four bytes of length, little-endian, and JSON.
type note struct {
	Kind  noteKind `json:"kind"`
	Token string   `json:"token,omitempty"` // hello: of this team
	Rank  int      `json:"rank,omitempty"`  // hello
	Data  []byte   `json:"data,omitempty"`  // gather
	All   [][]byte `json:"all,omitempty"`   // gathered: by rank; null for dead members
	Error string   `json:"error,omitempty"` // failed
}

type noteKind string

const (
	noteHello    noteKind = "hello"    // member: its first note
	noteGather   noteKind = "gather"   // member: sends data
	noteGathered noteKind = "gathered" // table: the data of all
	noteKill     noteKind = "kill"     // member: may be killed
	noteBye      noteKind = "bye"      // member: has done its task
	noteFailed   noteKind = "failed"   // table: the team has failed
)

const (
	// maxNote is the longest note in bytes: 16 cards of 16 endpoints each are a tenth of it.
	maxNote = 4 << 20
	// noteTimeout is how long a note may take from its first byte on, and a member until its
	// hello.
	noteTimeout = 20 * time.Second
)

func writeNote(c net.Conn, n *note) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if len(body) > maxNote {
		return fmt.Errorf("a note of %d bytes: at most %d", len(body), maxNote)
	}
	if err := c.SetWriteDeadline(time.Now().Add(noteTimeout)); err != nil {
		return err
	}
	_, err = c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readNote waits for a note without limit, and for its rest up to noteTimeout.
func readNote(c net.Conn, n *note) error {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint32(size[:])
	if length > maxNote {
		return fmt.Errorf("a note of %d bytes: at most %d", length, maxNote)
	}
	if err := c.SetReadDeadline(time.Now().Add(noteTimeout)); err != nil {
		return err
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c, body); err != nil {
		return fmt.Errorf("a note ended early: %w", err)
	}
	if err := json.Unmarshal(body, n); err != nil {
		return fmt.Errorf("a note that cannot be read: %w", err)
	}
	return c.SetReadDeadline(time.Time{})
}

// table is the server.
type table struct {
	listener net.Listener
	token    string
	kill     func(rank int) // kills a member that asks for it
	serving  sync.WaitGroup

	mu      sync.Mutex
	members []tableMember
	failure error
	closed  bool
}

// tableMember is a member as the table sees it.
type tableMember struct {
	conn  net.Conn // nil before its hello
	waits bool     // it has sent data, and waits for the others
	data  []byte
	gone  bool // it has done its task or is dead: others do not wait for it
}

func newTable(members int, token string, kill func(rank int)) (*table, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &table{listener: l, token: token, kill: kill, members: make([]tableMember, members)}
	t.serving.Go(t.accept)
	return t, nil
}

func (t *table) addr() string { return t.listener.Addr().String() }

func (t *table) accept() {
	for {
		c, err := t.listener.Accept()
		if err != nil {
			return // closed
		}
		t.serving.Go(func() { t.serve(c) })
	}
}

// serve serves a member until it has done its task.
func (t *table) serve(c net.Conn) {
	defer c.Close()
	rank, err := t.welcome(c)
	if err != nil {
		return // not a member
	}
	for {
		var n note
		if err := readNote(c, &n); err != nil {
			t.leave(rank, err)
			return
		}
		switch n.Kind {
		case noteGather:
			t.put(rank, n.Data)
		case noteKill:
			t.kill(rank)
			t.remove(rank)
		case noteBye:
			t.remove(rank)
			return
		default:
			t.fail(fmt.Errorf("member %d wrote a note of kind %q", rank, n.Kind))
			return
		}
	}
}

// welcome waits for a hello and notes the connection of the member.
func (t *table) welcome(c net.Conn) (rank int, err error) {
	if err := c.SetReadDeadline(time.Now().Add(noteTimeout)); err != nil {
		return 0, err
	}
	var n note
	if err := readNote(c, &n); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed, n.Kind != noteHello, n.Token != t.token, uint(n.Rank) >= uint(len(t.members)),
		t.members[n.Rank].conn != nil:
		return 0, errors.New("not a member of this team")
	}
	t.members[n.Rank].conn = c
	if t.failure != nil { // before the hello came
		_ = writeNote(c, &note{Kind: noteFailed, Error: t.failure.Error()})
	}
	return n.Rank, nil
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
			// a failed write shows when the connection ends
			_ = writeNote(s.conn, &note{Kind: noteGathered, All: all})
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

// leave notes that a member's connection has ended.
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
			_ = writeNote(s.conn, &note{Kind: noteFailed, Error: why.Error()})
		}
	}
}

// close closes the table and waits for its goroutines.
func (t *table) close() {
	t.mu.Lock()
	t.closed = true
	for i := range t.members {
		if c := t.members[i].conn; c != nil {
			c.Close()
		}
	}
	t.mu.Unlock()
	t.listener.Close()
	t.serving.Wait()
}
