package processes_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"ibverbx/rendezvous"
)

// tableConn is a member's conversation with the table.
type tableConn struct {
	conn    *rendezvous.Conn
	replies chan [][]byte
	lost    context.CancelCauseFunc // called when the table is gone or reports that the team has failed
	reading sync.WaitGroup
}

// dialTable connects to the table. The context that it returns ends with the team.
func dialTable(ctx context.Context, addr, token string, rank int) (context.Context, *tableConn, error) {
	c, err := rendezvous.Dial(ctx, addr, tableConfig(token))
	if err != nil {
		return ctx, nil, fmt.Errorf("table: %w", err)
	}
	if err := c.Send(ctx, kindHello, rank); err != nil {
		return ctx, nil, errors.Join(fmt.Errorf("table: hello: %w", err), c.Close())
	}
	p := &tableConn{conn: c, replies: make(chan [][]byte, 1)}
	ctx, p.lost = context.WithCancelCause(ctx)
	p.reading.Go(p.read)
	return ctx, p, nil
}

func (p *tableConn) read() {
	for {
		m, err := p.conn.Next(context.Background())
		var all [][]byte
		if err == nil {
			err = m.Decode(&all)
		}
		var said *rendezvous.PeerError
		switch {
		case errors.As(err, &said):
			p.lost(fmt.Errorf("the team has failed: %s", said.Text))
			_ = p.conn.Close() // the table waits for that
			return
		case err != nil:
			p.lost(fmt.Errorf("table: %w", err))
			return
		}
		p.replies <- all // there is one gather at a time
	}
}

// gather sends data and returns that of all members, nil for the dead.
func (p *tableConn) gather(ctx context.Context, mine []byte) ([][]byte, error) {
	if err := p.conn.Send(ctx, kindGather, mine); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // why the conversation has ended
		}
		return nil, fmt.Errorf("gather: %w", err)
	}
	select {
	case all := <-p.replies:
		return all, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("gather: %w", context.Cause(ctx))
	}
}

// leave closes the conversation. kind is kindBye if the member has done its task; without a kind
// the team fails.
func (p *tableConn) leave(kind string) error {
	var err error
	if kind != "" {
		err = p.conn.Send(context.Background(), kind, nil)
	}
	err = errors.Join(err, p.conn.Close())
	p.reading.Wait()
	p.lost(nil)
	return err
}
