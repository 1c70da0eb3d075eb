package tagged

import (
	"context"

	"ibverbx/transport"
)

// Info tells of a message.
type Info struct {
	Tag    uint64
	Length int       // bytes; of a truncated message what the sender had
	Source *Endpoint // where it came from; nil for sends, and for receives that nothing has matched
}

// Request is a send or a receive that goes on. It is safe for concurrent use, but for Free.
type Request struct {
	w     *Worker
	comp  transport.Completion
	stage requestStage
	freed bool // goes back to the pool when it is done
	info  Info
	data  pieces

	// Of receives.
	match entry

	// Of sends.
	ep         *Endpoint
	next, prev *Request
	sync       bool // completes only after the match
	long       bool // is announced and read
	matched    bool
	id         uint32 // in Endpoint.waiting, plus one; 0 for none
	sent       int    // bytes
	pins       pinList
}

// requestStage is how far a request has come.
type requestStage uint8

const (
	requestFree   requestStage = iota // in the pool, or the program's after Free
	requestQueued                     // nothing has happened: it can be cancelled
	requestActive                     // a receive that is matched; a send of which something has gone out
	requestDone
)

// requestPool keeps requests for use again.
type requestPool struct {
	free []*Request
	most int
	busy int // not done
	made uint64
}

// newRequest makes a request ready.
func (w *Worker) newRequest(tag uint64, bufs [][]byte, n int) *Request {
	p := &w.requests
	var r *Request
	if k := len(p.free); k != 0 {
		r = p.free[k-1]
		p.free = p.free[:k-1]
	} else {
		r = &Request{w: w}
		p.made++
	}
	p.busy++
	r.comp.Init(1, nil)
	r.stage = requestQueued
	r.info = Info{Tag: tag, Length: n}
	r.data.set(bufs, n)
	return r
}

// put gives a request back that nobody has in his hands.
func (r *Request) put() {
	r.data.clear()
	r.stage, r.freed = requestFree, false
	r.info = Info{}
	r.match.req = nil
	r.ep, r.sync, r.long, r.matched, r.id, r.sent = nil, false, false, false, 0, 0
	if p := &r.w.requests; len(p.free) < p.most {
		p.free = append(p.free, r)
	}
}

// complete ends a request: its buffers are the caller's again.
func (r *Request) complete(err error) {
	r.stage = requestDone
	r.w.requests.busy--
	r.data.clear()
	r.pins.release(r.w)
	r.comp.Done(err)
	if r.freed {
		r.put()
	}
}

// Done reports whether the request has ended, well or not: its buffers are the caller's again. A
// program that polls makes progress until it does. A nil request, which Send returns where there is
// nothing to wait for, has ended well; all methods take it.
func (r *Request) Done() bool { return r == nil || r.comp.Fired() }

// Err is nil while the request goes on, and when it ended well.
func (r *Request) Err() error {
	if r == nil || !r.comp.Fired() {
		return nil
	}
	return r.comp.Err()
}

// Info tells, once the request is done, of the message: for a receive its tag, its length and where
// it came from. For a send it repeats what was asked.
func (r *Request) Info() Info {
	if r == nil || !r.comp.Fired() {
		return Info{}
	}
	return r.info
}

// Wait makes progress until the request is done, and returns its error. A ctx that ends does not
// cancel the request: Wait returns an [*InterruptedError], and can be called again.
func (r *Request) Wait(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if r.comp.Fired() {
		return r.comp.Err()
	}
	err := r.w.tw.Wait(ctx, &r.comp)
	if r.comp.Fired() {
		return r.comp.Err()
	}
	return &InterruptedError{Req: r, Err: err}
}

// waitAndFree is Wait for the calls that block: nobody else has the request. If ctx ends it is
// cancelled where that is possible.
func (r *Request) waitAndFree(ctx context.Context) (Info, error) {
	var err error
	if !r.comp.Fired() {
		err = r.w.tw.Wait(ctx, &r.comp)
	}
	canceled := false
	if !r.comp.Fired() {
		if canceled = r.Cancel(); !canceled && !r.comp.Fired() {
			return Info{}, &InterruptedError{Req: r, Err: err}
		}
	}
	info := r.info
	if !canceled {
		err = r.comp.Err()
	}
	r.Free()
	return info, err
}

// Cancel cancels a receive that no message has matched, and a send of which nothing has gone out:
// it is done then, with ErrCanceled, and its buffers are the caller's. Otherwise Cancel returns
// false and has no effect: the request completes, or has. Of a receive that is cancelled while its
// message arrives, one of the two wins.
func (r *Request) Cancel() bool {
	if r == nil {
		return false
	}
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.stage != requestQueued {
		return false
	}
	if r.ep == nil {
		w.posted.remove(&r.match)
	} else {
		r.ep.queue.remove(r)
		r.ep.waiting.remove(r)
	}
	r.complete(errCanceled)
	return true
}

// Free gives the request back, for use by another call; it must not be used any more. One that is
// not done is given back when it is: its buffers belong to it until then all the same. Calling Free
// is optional, and panics the second time.
func (r *Request) Free() {
	if r == nil {
		return
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	switch {
	case r.stage == requestFree || r.freed:
		panic("tagged: request freed twice")
	case r.stage == requestDone:
		r.put()
	default:
		r.freed = true
	}
}

// requestList is the queue of an endpoint's sends.
type requestList struct {
	head, tail *Request
	count      int
}

func (l *requestList) push(r *Request) {
	r.next, r.prev = nil, l.tail
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
	l.count++
}

func (l *requestList) remove(r *Request) {
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.next, r.prev = nil, nil
	l.count--
}

// sendTable holds the sends of an endpoint that wait to hear from the peer, by their number.
type sendTable struct {
	slots []*Request
	free  []uint32
}

func (t *sendTable) count() int { return len(t.slots) - len(t.free) }

// add numbers a send, once.
func (t *sendTable) add(r *Request) {
	if r.id != 0 {
		return
	}
	if n := len(t.free); n != 0 {
		r.id = t.free[n-1] + 1
		t.free = t.free[:n-1]
		t.slots[r.id-1] = r
		return
	}
	t.slots = append(t.slots, r)
	r.id = uint32(len(t.slots))
}

func (t *sendTable) get(id uint32) *Request {
	if id == 0 || id > uint32(len(t.slots)) {
		return nil
	}
	return t.slots[id-1]
}

func (t *sendTable) remove(r *Request) {
	if r.id == 0 {
		return
	}
	t.slots[r.id-1] = nil
	t.free = append(t.free, r.id-1)
	r.id = 0
}
