package bench

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/rendezvous"
)

// goodbye is how a round ends where another process drives the other end: each end that sends
// reports how many messages it has sent once they have completed, and neither ends the round before
// it has received that number from the other.
type goodbye struct {
	said, heard bool
	theirs      int // messages that the other end has sent, once it has said so
}

// playApart plays this end's part, and serves the other end until that is done too.
func (c *cell) playApart(ctx context.Context, n int) (err error) {
	end, _ := c.pair.here()
	if c.p.Mode == Latency && c.peer.leads {
		if c.taken, err = end.SeriesAsleep(ctx, c.room(n)); err != nil {
			return cause(ctx, err)
		}
	}
	return cause(ctx, end.Run(ctx, c.parted))
}

// converse tells the other process that this end has sent its messages, as soon as it has, and
// receives the same from the other. A peer that was stopped says so before this end is done.
func (c *cell) converse() {
	end, at := c.pair.here()
	if !c.said && c.sends(at) && end.Sent() {
		c.said = true
		if err := c.peer.conn.Send(c.peer.steps, kindDone, doneBody{end.Posted()}); err != nil {
			end.Abort(err)
		}
	}
	if !c.heard && c.sends(1-at) {
		select {
		case m := <-c.peer.conn.Inbox():
			c.heard = true
			c.watch.feed()
			if err := c.hear(&m); err != nil {
				end.Abort(err)
			}
		default:
		}
	}
}

// parted reports whether both messages of the round have been exchanged.
func (c *cell) parted() bool {
	_, at := c.pair.here()
	return (c.said || !c.sends(at)) && (c.heard || !c.sends(1-at))
}

// hear handles the message that the other end has sent its messages, the only one of a round. An
// end that was stopped early stops this end too: one direction alone is not what is measured.
func (c *cell) hear(m *rendezvous.Message) error {
	if m.Kind != kindDone {
		return fmt.Errorf("%w: message %q came in place of %q", rendezvous.ErrProtocol, m.Kind, kindDone)
	}
	var done doneBody
	if err := m.Decode(&done); err != nil {
		return err
	}
	end, at := c.pair.here()
	limit := c.tasks[1-at].Send
	if done.Posted < end.Came() || done.Posted > limit || c.p.Layered() && done.Posted < limit {
		return fmt.Errorf("%w: an end says that it sent %d messages in a round of %d, %d of which came",
			rendezvous.ErrProtocol, done.Posted, limit, end.Came())
	}
	c.theirs = done.Posted
	end.Expect(done.Posted)
	if done.Posted < limit && !c.tasks[at].Answers {
		end.Stop()
	}
	return nil
}

// errSilent reports that the peer did not acknowledge the report of a failure:
// it may be gone, or busy.
var errSilent = errors.New("the peer took no note of that in time")

// part tells the peer why this end gives up, ends the conversation, and returns the reason together
// with the peer's answer.
func (p *peer) part(why error) error {
	var said *rendezvous.PeerError
	if errors.As(why, &said) {
		_ = p.conn.Close()
		return why // the peer knows it already
	}
	before := p.conn.Err()
	p.conn.Fail(why)
	after := p.conn.Err()
	switch {
	case before != nil && errors.Is(why, before):
		return why
	case before != nil:
		return errors.Join(why, before)
	case errors.As(after, &said):
		return errors.Join(why, after)
	case errors.Is(after, rendezvous.ErrClosed):
		return errors.Join(why, errSilent)
	}
	return why
}
