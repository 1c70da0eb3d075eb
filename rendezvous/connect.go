package rendezvous

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"ibverbx/internal/peertext"
	"ibverbx/verbs"
)

// The messages of the steps.
const (
	kindCard      = "card"
	kindConnected = "connected"
	kindValue     = "value"
	kindBarrier   = "barrier"
)

// Endpoint is an end of a connection that has a card and connects to its peer's card:
// *ibverbx.VirtualQP, *transport.Endpoint, *tagged.Endpoint. Cards travel as JSON.
type Endpoint[Card any] interface {
	Card() (Card, error)
	Connect(peer Card) error
}

// cardBody is a card on the wire. Its type tells ends of different layers apart.
type cardBody struct {
	Type string          `json:"type"`
	Card json.RawMessage `json:"card"`
}

// Connect connects e with the peer's endpoint, and returns when both are connected. The peer does
// the same. If a message that the peer may send at once needs a receive, post the receive after
// Connect, and then have both ends call [Conn.Barrier].
//
// An error, an [*OpError], ends the conversation and tells the peer the reason. The endpoint may
// then be connected or not: close or reset it.
func Connect[Card any](ctx context.Context, c *Conn, e Endpoint[Card]) error {
	return c.step(ctx, "connect", func() error {
		if v := reflect.ValueOf(e); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Errorf("%w: the endpoint is nil", verbs.ErrInvalid)
		}
		mine, err := e.Card()
		if err != nil {
			return err
		}
		theirs, err := swapCards(ctx, c, mine)
		if err != nil {
			return err
		}
		if err := e.Connect(theirs); err != nil {
			return err
		}
		return c.meet(ctx, kindConnected)
	})
}

// swapCards sends this end's card and receives the peer's.
func swapCards[Card any](ctx context.Context, c *Conn, mine Card) (theirs Card, err error) {
	body := cardBody{Type: reflect.TypeFor[Card]().String()}
	if body.Card, err = json.Marshal(mine); err != nil {
		return theirs, err
	}
	if err := c.Send(ctx, kindCard, body); err != nil {
		return theirs, err
	}
	var peer cardBody
	if err := c.receiveStep(ctx, kindCard, &peer); err != nil {
		return theirs, err
	}
	if peer.Type != body.Type {
		return theirs, fmt.Errorf("%w: the peer shows %s, this end %s: connect the same on both sides",
			ErrProtocol, peertext.Line(peer.Type, 60), body.Type)
	}
	m := Message{Kind: kindCard, Body: peer.Card}
	return theirs, m.Decode(&theirs)
}

// Exchange sends the peer a value as JSON and returns the peer's value. The peer does the same. The
// value may be the location of memory that the peer may use (ibverbx.RemoteMR), bytes, or a struct
// with everything that the peer must know. An error, an [*OpError], ends the conversation and tells
// the peer the reason.
func Exchange[T any](ctx context.Context, c *Conn, mine T) (theirs T, err error) {
	err = c.step(ctx, "exchange", func() error {
		text, err := json.Marshal(mine)
		if err != nil {
			return err
		}
		if err := c.Send(ctx, kindValue, json.RawMessage(text)); err != nil {
			return err
		}
		return c.receiveStep(ctx, kindValue, &theirs)
	})
	if err != nil {
		var none T
		return none, err
	}
	return theirs, nil
}

// AllGather passes mine to the peer, and returns mine and what the peer has passed, which does the
// same. An error, an [*OpError], ends the conversation.
func (c *Conn) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	theirs, err := Exchange(ctx, c, mine)
	return [][]byte{mine, theirs}, err
}

// Barrier returns when both ends have called it. An error, an [*OpError], ends the conversation.
func (c *Conn) Barrier(ctx context.Context) error {
	return c.step(ctx, "barrier", func() error { return c.meet(ctx, kindBarrier) })
}

// meet sends a message without a body and waits for the same one from the peer.
func (c *Conn) meet(ctx context.Context, kind string) error {
	if err := c.Send(ctx, kind, nil); err != nil {
		return err
	}
	return c.receiveStep(ctx, kind, nil)
}

// receiveStep receives what the peer sends in the same step.
func (c *Conn) receiveStep(ctx context.Context, kind string, body any) error {
	m, err := c.ReceiveAny(ctx)
	if err != nil {
		return err
	}
	if m.Kind != kind {
		return fmt.Errorf("%w: the two ends are not in step: %q came in place of %q", ErrProtocol,
			peertext.Line(m.Kind, maxKind), kind)
	}
	if body == nil {
		return nil
	}
	return m.Decode(body)
}

// step takes a step of the conversation. A failed step ends the conversation, because the two ends
// are out of step.
func (c *Conn) step(ctx context.Context, op string, take func() error) error {
	if c == nil {
		return &OpError{op, "nobody", fmt.Errorf("%w: the conversation is nil", verbs.ErrInvalid)}
	}
	err := errNoContext
	if ctx != nil {
		if err = take(); err == nil {
			return nil
		}
		patience := failTimeout
		if ctx.Err() != nil {
			patience = shortFailTimeout
		}
		c.fail(err, patience)
	}
	return &OpError{op, c.RemoteAddr().String(), err}
}
