package processes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"ibverbx/tagged"
)

// A member is killed while another one reads a long message from it, and while it reads one from a
// third, which waits for that. Both requests fail, and so do those that had not begun. Receives
// without a match stay, and take what the live members send each other.
func TestTaggedMemberKilled(t *testing.T) {
	t.Parallel() // as its shapes do
	eachShape(t, team{program: "tagged killed", members: 3, victim: true})
}

const (
	tagLong   = 1 // the victim dies while this message is read
	tagGo     = 2 // its reader has begun
	tagNever  = 3 // it is never received
	tagAfter  = 4 // from a live member
	longBytes = 24 << 20
)

func taggedKilled(ctx context.Context, m *member) (err error) {
	// one read at a time, or two
	o, err := newTagMesh(ctx, m, tagged.Config{Chunk: 64 << 10, Window: m.QPs})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.w.Close()) }()
	var after [30_000]byte
	var failing []*tagged.Request
	long := make([]byte, longBytes)
	begun := func(rank int) func() bool {
		return func() bool { return o.eps[rank].Stats().Reading > 0 }
	}
	switch m.Rank {
	case victim:
		return o.dieReading(ctx, long, begun(1))
	case 0: // reads from the victim, and stops making progress
		read, err := o.w.Recv(tagLong, tagged.Exact, long)
		if err != nil {
			return err
		}
		if err := o.w.Transport().WaitFor(ctx, 0, begun(victim)); err != nil {
			return err
		}
		if err := o.eps[victim].SendWait(ctx, tagGo, nil); err != nil {
			return err
		}
		failing = append(failing, read)
	case 1: // the victim reads from it
		send, err := o.eps[victim].Send(tagLong, long)
		if err != nil {
			return err
		}
		failing = append(failing, send)
	}
	peer := 1 - m.Rank
	never, err := o.eps[victim].SendSync(tagNever, []byte{1})
	if err != nil {
		return err
	}
	stays, err := o.w.Recv(tagAfter, tagged.Exact, after[:])
	if err != nil {
		return err
	}
	if _, err := m.gatherIdle(ctx, nil); err != nil { // until the victim is dead; without progress
		return err
	}
	for i, req := range append(failing, never) {
		if err := req.Wait(ctx); !errors.Is(err, tagged.ErrPeerFailed) {
			return fmt.Errorf("request %d to the dead: %w, want ErrPeerFailed", i, err)
		}
		req.Free()
	}
	if err := o.checkDead(ctx); err != nil {
		return err
	}
	if stays.Done() {
		return fmt.Errorf("a receive that nothing has matched is done: %w", stays.Err())
	}
	if err := m.meet(ctx); err != nil {
		return err
	}
	if err := o.eps[peer].SendWait(ctx, tagAfter, filled(len(after), seed(m.Rank, peer, 0))); err != nil {
		return err
	}
	if err := errors.Join(o.wait(ctx, stays), verify(after[:], seed(peer, m.Rank, 0))); err != nil {
		return err
	}
	return o.closeAll(ctx)
}

// dieReading has the victim killed when another member has begun to read from it, and it from the
// third. Neither makes progress from then on, so that no read ends before.
func (o *tagMesh) dieReading(ctx context.Context, long []byte, begun func() bool) error {
	if _, err := o.eps[0].Send(tagLong, make([]byte, longBytes)); err != nil {
		return err
	}
	if _, err := o.w.RecvWait(ctx, tagGo, tagged.Exact); err != nil {
		return fmt.Errorf("to be read from: %w; %+v, %+v", err, o.w.Stats(), o.w.Transport().Stats())
	}
	if _, err := o.w.Recv(tagLong, tagged.Exact, long); err != nil {
		return err
	}
	if err := o.w.Transport().WaitFor(ctx, 0, begun); err != nil {
		return fmt.Errorf("to read: %w; %+v, %+v; endpoints ended %q", err, o.w.Stats(), o.eps[1].Stats(),
			fmt.Sprint(o.ended))
	}
	o.m.die()
	<-ctx.Done()
	return context.Cause(ctx)
}

// checkDead checks the error of the endpoint to the dead member.
func (o *tagMesh) checkDead(ctx context.Context) error {
	ep := o.eps[victim]
	if err := o.w.Transport().WaitFor(ctx, 0, func() bool { return o.calls[victim] != 0 }); err != nil {
		return fmt.Errorf("OnError was not called: %w", err)
	}
	if err := o.ended[victim]; !errors.Is(err, tagged.ErrPeerFailed) {
		return fmt.Errorf("OnError said %w; want ErrPeerFailed", err)
	}
	if _, err := ep.Send(tagNever, nil); !errors.Is(err, tagged.ErrPeerFailed) {
		return fmt.Errorf("a message to the dead: %w, want ErrPeerFailed", err)
	}
	if err := ep.Close(ctx); err != nil {
		return fmt.Errorf("close of the endpoint to the dead: %w", err)
	}
	if o.calls[victim] != 1 {
		return fmt.Errorf("OnError was called %d times, want once", o.calls[victim])
	}
	o.eps[victim] = nil
	return nil
}
