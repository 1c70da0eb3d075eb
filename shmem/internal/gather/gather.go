// Package gather is an all-gather over TCP, enough to let processes join: PE 0 listens, the others connect to it, and it gives everybody
// what all have sent.
package gather

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Group is one PE's end. It is used by one goroutine at a time.
type Group struct {
	id    int
	conns []net.Conn // PE 0: of each other PE; else that to PE 0
}

// maxEntry bounds what one PE may give, in bytes.
const maxEntry = 16 << 20

// retry is how long a PE waits before it tries again to reach PE 0, which may not listen yet.
const retry = 50 * time.Millisecond

// Listen is PE 0's way in: it takes the other pes-1 PEs from a listener, which stays the caller's.
func Listen(ctx context.Context, l net.Listener, pes int) (*Group, error) {
	g := &Group{conns: make([]net.Conn, pes)}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for missing := pes - 1; missing > 0; missing-- {
		conn, err := l.Accept()
		if err != nil {
			return nil, fmt.Errorf("gather: %d PEs have not come: %w", missing, err)
		}
		limit(ctx, conn)
		var id uint32
		if err := binary.Read(conn, binary.BigEndian, &id); err != nil || id == 0 || int(id) >= pes || g.conns[id] != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("gather: somebody came as PE %d of %d, or a second time: %w", id, pes, err)
		}
		g.conns[id] = conn
	}
	return g, nil
}

// Dial is the way in for PE id, which is not 0.
func Dial(ctx context.Context, addr string, id int) (*Group, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			limit(ctx, conn)
			err = binary.Write(conn, binary.BigEndian, uint32(id))
			return &Group{id: id, conns: []net.Conn{conn}}, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("gather: PE 0 at %s: %w", addr, err)
		case <-time.After(retry):
		}
	}
}

func limit(ctx context.Context, c net.Conn) {
	deadline, _ := ctx.Deadline() // the zero time is none
	_ = c.SetDeadline(deadline)
}

// Exchange gives mine to all and returns what each has given: it is a shmem.Config.Exchange.
func (g *Group) Exchange(ctx context.Context, mine []byte) ([][]byte, error) {
	for _, c := range g.conns {
		if c != nil {
			limit(ctx, c)
		}
	}
	if g.id != 0 {
		if err := write(g.conns[0], mine); err != nil {
			return nil, fmt.Errorf("gather: to PE 0: %w", err)
		}
		return g.receive()
	}
	all := make([][]byte, len(g.conns))
	all[0] = mine
	for i, c := range g.conns[1:] {
		var err error
		if all[i+1], err = read(c); err != nil {
			return nil, fmt.Errorf("gather: from PE %d: %w", i+1, err)
		}
	}
	for i, c := range g.conns[1:] {
		if err := binary.Write(c, binary.BigEndian, uint32(len(all))); err != nil {
			return nil, fmt.Errorf("gather: to PE %d: %w", i+1, err)
		}
		for _, b := range all {
			if err := write(c, b); err != nil {
				return nil, fmt.Errorf("gather: to PE %d: %w", i+1, err)
			}
		}
	}
	return all, nil
}

// receive takes the entries of all from PE 0.
func (g *Group) receive() ([][]byte, error) {
	var n uint32
	if err := binary.Read(g.conns[0], binary.BigEndian, &n); err != nil {
		return nil, fmt.Errorf("gather: from PE 0: %w", err)
	}
	var all [][]byte
	for range n {
		b, err := read(g.conns[0])
		if err != nil {
			return nil, fmt.Errorf("gather: from PE 0: %w", err)
		}
		all = append(all, b)
	}
	return all, nil
}

// Close ends the connections.
func (g *Group) Close() {
	for _, c := range g.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

func write(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func read(r io.Reader) ([]byte, error) {
	var n uint32
	if err := binary.Read(r, binary.BigEndian, &n); err != nil {
		return nil, err
	}
	if n > maxEntry {
		return nil, fmt.Errorf("an entry of %d bytes: at most %d", n, maxEntry)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}
