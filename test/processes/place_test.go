package processes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// place is a member's own place at the table.
type place struct {
	conn    net.Conn
	replies chan [][]byte
	lost    context.CancelCauseFunc // called when the table is gone, or says that the team has failed
	reading sync.WaitGroup
}

// sitDown takes a place. The context that it returns ends with the team.
func sitDown(ctx context.Context, addr, token string, rank int) (context.Context, *place, error) {
	c, err := (&net.Dialer{Timeout: tablePatience}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return ctx, nil, fmt.Errorf("table: %w", err)
	}
	if err := writeNote(c, &note{Kind: noteHello, Token: token, Rank: rank}); err != nil {
		return ctx, nil, errors.Join(fmt.Errorf("table: hello: %w", err), c.Close())
	}
	p := &place{conn: c, replies: make(chan [][]byte, 1)}
	ctx, p.lost = context.WithCancelCause(ctx)
	p.reading.Go(p.read)
	return ctx, p, nil
}

func (p *place) read() {
	for {
		var n note
		err := readNote(p.conn, &n)
		switch {
		case err != nil:
			p.lost(fmt.Errorf("table: %w", err))
			return
		case n.Kind == noteGathered:
			p.replies <- n.All // one gather at a time, so there is room
		default:
			p.lost(fmt.Errorf("the team has failed: %s", n.Error))
			return
		}
	}
}

// gather lays something down and returns what all members have laid down, nil for the dead.
func (p *place) gather(ctx context.Context, mine []byte) ([][]byte, error) {
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

// leave gives the place back: kind is noteBye from who has done its part; without a kind the team
// takes it for a failure.
func (p *place) leave(kind noteKind) error {
	var err error
	if kind != "" {
		err = writeNote(p.conn, &note{Kind: kind})
	}
	err = errors.Join(err, p.conn.Close())
	p.reading.Wait()
	p.lost(nil)
	return err
}
