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
// Events merge: any number of events that nobody has taken yet count as one. So take an event as a
// reason to poll every CQ of the channel, not as a count of completions.
type CompChannel struct {
	_     guard.NoCopy
	event chan struct{}
}

// NewCompChannel makes a completion channel.
func NewCompChannel() *CompChannel { return &CompChannel{event: make(chan struct{}, 1)} }

// Wait blocks until there is an event, and takes it. If ctx ends first it returns ctx's error.
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

// Events returns the channel on which events arrive, for use in a select. Receiving takes the
// event.
func (c *CompChannel) Events() <-chan struct{} { return c.event }

// Signal raises an event. It is for providers; it never blocks.
func (c *CompChannel) Signal() {
	select {
	case c.event <- struct{}{}:
	default:
	}
}
