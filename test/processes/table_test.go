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

// A table is where the members of a team meet: each lays something down and gets what all have laid
// down, any number of times. It lives in the process of the test and is reached over TCP on the
// loopback.

// note is what travels between a member and the table: four bytes of length, little-endian, and
// then JSON.
type note struct {
	Kind  noteKind `json:"kind"`
	Token string   `json:"token,omitempty"` // hello: says that it is a member of this team
	Rank  int      `json:"rank,omitempty"`  // hello
	Data  []byte   `json:"data,omitempty"`  // gather
	All   [][]byte `json:"all,omitempty"`   // gathered: by rank; null for members that are dead
	Error string   `json:"error,omitempty"` // failed
}

type noteKind string

const (
	noteHello    noteKind = "hello"    // member: the first one
	noteGather   noteKind = "gather"   // member: lays something down
	noteGathered noteKind = "gathered" // table: everybody has
	noteKill     noteKind = "kill"     // member: is ready to be killed
	noteBye      noteKind = "bye"      // member: has done its part
	noteFailed   noteKind = "failed"   // table: the team has failed
)

const (
	// maxNote is the longest note in bytes: 16 cards of 16 endpoints each are a tenth of it.
	maxNote = 4 << 20
	// tablePatience is how long a note may take once it has begun, and a member until it says
	// hello.
	tablePatience = 20 * time.Second
)

func writeNote(c net.Conn, n *note) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if len(body) > maxNote {
		return fmt.Errorf("a note of %d bytes: at most %d", len(body), maxNote)
	}
	if err := c.SetWriteDeadline(time.Now().Add(tablePatience)); err != nil {
		return err
	}
	_, err = c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readNote waits for a note as long as it takes, and then for its end as long as tablePatience.
func readNote(c net.Conn, n *note) error {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint32(size[:])
	if length > maxNote {
		return fmt.Errorf("a note of %d bytes: at most %d", length, maxNote)
	}
	if err := c.SetReadDeadline(time.Now().Add(tablePatience)); err != nil {
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

// table is the side of the test.
type table struct {
	listener net.Listener
	token    string
	kill     func(rank int) // kills a member that is ready for it
	serving  sync.WaitGroup

	mu      sync.Mutex
	seats   []seat
	failure error
	closed  bool
}

// seat is a member as the table sees it.
type seat struct {
	conn net.Conn // nil before its hello
	laid bool     // waits for the others
	data []byte
	gone bool // has done its part, or is dead: nobody waits for it
}

func newTable(members int, token string, kill func(rank int)) (*table, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &table{listener: l, token: token, kill: kill, seats: make([]seat, members)}
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

// serve listens to one member until it has done its part.
func (t *table) serve(c net.Conn) {
	defer c.Close()
	rank, err := t.welcome(c)
	if err != nil {
		return // some stranger
	}
	for {
		var n note
		if err := readNote(c, &n); err != nil {
			t.leave(rank, err)
			return
		}
		switch n.Kind {
		case noteGather:
			t.lay(rank, n.Data)
		case noteKill:
			t.kill(rank)
			t.bury(rank)
		case noteBye:
			t.bury(rank)
			return
		default:
			t.fail(fmt.Errorf("member %d wrote a note of kind %q", rank, n.Kind))
			return
		}
	}
}

// welcome waits for a hello and gives the member its seat.
func (t *table) welcome(c net.Conn) (rank int, err error) {
	if err := c.SetReadDeadline(time.Now().Add(tablePatience)); err != nil {
		return 0, err
	}
	var n note
	if err := readNote(c, &n); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed, n.Kind != noteHello, n.Token != t.token, uint(n.Rank) >= uint(len(t.seats)),
		t.seats[n.Rank].conn != nil:
		return 0, errors.New("not a member of this team")
	}
	t.seats[n.Rank].conn = c
	if t.failure != nil { // while it was on its way
		_ = writeNote(c, &note{Kind: noteFailed, Error: t.failure.Error()})
	}
	return n.Rank, nil
}

// lay puts something down, and hands everything out once it is complete.
func (t *table) lay(rank int, data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seats[rank].laid, t.seats[rank].data = true, data
	t.handOut()
}

// handOut is called with mu held.
func (t *table) handOut() {
	all, waiting := make([][]byte, len(t.seats)), 0
	for i := range t.seats {
		switch s := &t.seats[i]; {
		case s.laid:
			all[i] = s.data
			waiting++
		case !s.gone:
			return
		}
	}
	if waiting == 0 {
		return
	}
	for i := range t.seats {
		if s := &t.seats[i]; s.laid {
			s.laid, s.data = false, nil
			// one that does not read is missed when it leaves
			_ = writeNote(s.conn, &note{Kind: noteGathered, All: all})
		}
	}
}

// bury takes a member out: the others wait for it no more.
func (t *table) bury(rank int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.seats[rank]
	s.gone, s.laid, s.data = true, false, nil
	t.handOut()
}

// leave notes that a member's connection has ended.
func (t *table) leave(rank int, why error) {
	t.mu.Lock()
	expected := t.seats[rank].gone || t.closed
	t.mu.Unlock()
	if !expected {
		t.fail(fmt.Errorf("member %d has gone: %w", rank, why))
	}
}

// fail tells all members that the team has failed, for the first reason that comes.
func (t *table) fail(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure != nil || t.closed {
		return
	}
	t.failure = why
	for i := range t.seats {
		if s := &t.seats[i]; s.conn != nil && !s.gone {
			_ = writeNote(s.conn, &note{Kind: noteFailed, Error: why.Error()})
		}
	}
}

// close ends the table and everything that serves it.
func (t *table) close() {
	t.mu.Lock()
	t.closed = true
	for i := range t.seats {
		if c := t.seats[i].conn; c != nil {
			c.Close()
		}
	}
	t.mu.Unlock()
	t.listener.Close()
	t.serving.Wait()
}
