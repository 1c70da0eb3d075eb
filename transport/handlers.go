package transport

import (
	"fmt"
	"strconv"
	"strings"

	"ibverbx/verbs"
)

// AMID names a handler of active messages: 0 to MaxAMID.
type AMID uint8

// MaxAMID is the largest id of an active message.
const MaxAMID AMID = 63

// Handler handles an active message. It runs inside progress; see the package's rules for
// callbacks.
type Handler func(m *Message)

// handlerTable is the handlers of active messages by id. Worker.mu guards it.
//
// Invariant: set has the ids whose handler is not nil; a handler that is set stays; once announced,
// the table does not change. So callbacks read handlers without the lock: a message arrives only
// after its id was announced.
type handlerTable struct {
	list      [MaxAMID + 1]Handler
	set       uint64
	announced bool // a card was given out, which lists the ids
}

// add sets the handler of an id, which must have none.
func (t *handlerTable) add(id AMID, h Handler) {
	t.list[id] = h
	t.set |= 1 << id
}

// has reports whether an id has a handler.
func (t *handlerTable) has(id AMID) bool { return t.list[id] != nil }

// announce returns the set of the ids for a card. The table takes no more.
func (t *handlerTable) announce() uint64 {
	t.announced = true
	return t.set
}

// Handle sets the handler for active messages with an id. It is refused for an id that has one, and
// once an endpoint has given out its card, which lists the ids.
func (w *Worker) Handle(id AMID, h Handler) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &w.handlers
	switch {
	case w.life.closed():
		return fmt.Errorf("transport: handle: %w", ErrClosed)
	case w.life.dead():
		return w.life.deadError("handle")
	case id > MaxAMID || h == nil:
		return fmt.Errorf("transport: handle: %w: id %d must be 0 to %d, and the handler not nil",
			verbs.ErrInvalid, id, MaxAMID)
	case t.has(id):
		return fmt.Errorf("transport: handle: %w: id %d has a handler", verbs.ErrInvalid, id)
	case t.announced:
		return fmt.Errorf("transport: handle: %w: id %d: an endpoint has given out its card, which lists "+
			"the handlers: set them before", verbs.ErrInvalid, id)
	}
	t.add(id, h)
	return nil
}

// handlerList writes a set of ids as "1, 2, 7".
func handlerList(set uint64) string {
	var ids []string
	for id := AMID(0); id <= MaxAMID; id++ {
		if set&(1<<id) != 0 {
			ids = append(ids, strconv.Itoa(int(id)))
		}
	}
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}
