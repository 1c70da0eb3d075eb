package processes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// tableConn is a member's connection to the table.
type tableConn struct {
	conn    net.Conn
	replies chan [][]byte
	lost    context.CancelCauseFunc // called when the table is gone or reports that the team has failed
	reading sync.WaitGroup
}

// dialTable connects to the table. The context that it returns ends with the team.
func dialTable(ctx context.Context, addr, token string, rank int) (context.Context, *tableConn, error) {
	c, err := (&net.Dialer{Timeout: noteTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return ctx, nil, fmt.Errorf("table: %w", err)
	}
	if err := writeNote(c, &note{Kind: noteHello, Token: token, Rank: rank}); err != nil {
		return ctx, nil, errors.Join(fmt.Errorf("table: hello: %w", err), c.Close())
	}
	p := &tableConn{conn: c, replies: make(chan [][]byte, 1)}
	ctx, p.lost = context.WithCancelCause(ctx)
	p.reading.Go(p.read)
	return ctx, p, nil
}

func (p *tableConn) read() {
	for {
		var n note
		err := readNote(p.conn, &n)
		switch {
		case err != nil:
			p.lost(fmt.Errorf("table: %w", err))
			return
		case n.Kind == noteGathered:
			p.replies <- n.All // there is one gather at a time
		default:
			p.lost(fmt.Errorf("the team has failed: %s", n.Error))
			return
		}
	}
}

// gather sends data and returns that of all members, nil for the dead.
func (p *tableConn) gather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := writeNote(p.conn, &note{Kind: noteGather, Data: mine}); err != nil {
		return nil, fmt.Errorf("gather: %w", err)
	}
	select {
	case all := <-p.replies:
		return all, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("gather: %w", context.Cause(ctx))
	}
}

// leave closes the connection. kind is noteBye if the member has done its task; without a kind the
// team fails.
func (p *tableConn) leave(kind noteKind) error {
	var err error
	if kind != "" {
		err = writeNote(p.conn, &note{Kind: kind})
	}
	err = errors.Join(err, p.conn.Close())
	p.reading.Wait()
	p.lost(nil)
	return err
}
