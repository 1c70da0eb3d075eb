package tagged

import "fmt"

// check panics if an invariant of the endpoint is broken. Builds with the race detector call it
// before they release the lock after a call or a callback on an endpoint.
func (e *Endpoint) check() {
	if err := e.broken(); err != nil {
		panic(fmt.Sprintf("tagged: %s: invariant: %v", e.name, err))
	}
}

// broken says which invariant does not hold; nil if all do.
func (e *Endpoint) broken() error {
	if err := e.ledger.Check(); err != nil {
		return err
	}
	a := &e.partial
	switch {
	case e.reads < 0 || e.reads > e.w.cfg.Window:
		return fmt.Errorf("%d reads under way: the window is %d", e.reads, e.w.cfg.Window)
	case e.active < e.readQueue.Len():
		return fmt.Errorf("%d messages are being read, and %d in the queue", e.active, e.readQueue.Len())
	case e.notices.Len() > e.w.cfg.MaxUnexpected:
		return fmt.Errorf("%d notices wait: the window is %d", e.notices.Len(), e.w.cfg.MaxUnexpected)
	case a.length == 0 && *a != assembly{}, a.length != 0 && (a.got <= 0 || a.got >= a.length),
		a.req != nil && a.in != nil:
		return fmt.Errorf("a message in fragments: %d of %d bytes", a.got, a.length)
	case e.err == nil:
		return nil
	case !e.queue.Empty() || e.waiting.count() != 0 || !e.readQueue.Empty() || a.req != nil ||
		e.posted.count != 0:
		return fmt.Errorf("the endpoint has failed, and has requests: %d, %d, %d, receive %t", e.queue.Len(),
			e.waiting.count(), e.readQueue.Len(), a.req != nil)
	}
	return nil
}
