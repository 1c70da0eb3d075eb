package verbs

import (
	"context"
	"fmt"

	"ibverbx/internal/guard"
)

// CompChannel carries completion events: an armed CQ raises one when a completion is added to it.
// CQs of several devices and providers may share a channel, so that one wait covers them all. It is
// safe for concurrent use.
//
// Events merge: any number of them that nobody has waited for yet are one. An event is therefore a
// reason to poll every CQ of the channel, and never says how many completions there are.
type CompChannel struct {
	_     guard.NoCopy
	event chan struct{}
}

// NewCompChannel makes a completion channel.
func NewCompChannel() *CompChannel { return &CompChannel{event: make(chan struct{}, 1)} }

// Wait blocks until there is an event, and takes it, or until ctx ends; it then returns ctx's
// error.
func (c *CompChannel) Wait(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("verbs: wait: %w: no context", ErrInvalid)
	}
	select {
	case <-c.event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Events is the channel on which events arrive, for use in a select. Receiving takes the event.
func (c *CompChannel) Events() <-chan struct{} { return c.event }

// Signal raises an event. Providers call it; it never blocks.
func (c *CompChannel) Signal() {
	select {
	case c.event <- struct{}{}:
	default:
	}
}
