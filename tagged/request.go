package tagged

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"ibverbx/internal/errwrap"
	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Info describes a message.
type Info struct {
	Tag    uint64
	Length int       // bytes that the sender sent, even if the receive was too short
	Source *Endpoint // the sender; nil for sends, and for receives that nothing has matched
}

// String returns a line for a log: "tag 0x7, 5 bytes from bob".
func (i Info) String() string {
	s := fmt.Sprintf("tag %#x, %d bytes", i.Tag, i.Length)
	if i.Source != nil {
		s += " from " + i.Source.name
	}
	return s
}

// Request is a send, a receive or a collective call in progress. It is safe for concurrent use,
// except Free. It must not be copied.
type Request struct {
	// Invariant: a receive in stage requestQueued is in matching.posted of its Worker or, if it is
	// for one peer, in Endpoint.posted; a send is in Endpoint.queue. A send in stage requestActive
	// stays first in Endpoint.queue until all its bytes have gone out. A sendSync or sendLong is in
	// Endpoint.waiting from the first attempt to send it until the peer's notice.
	_ guard.NoCopy

	w     *Worker
	comp  transport.Completion // fires when the request is done
	stage requestStage
	freed bool // Free was called before the request was done: it goes to the pool when it is
	info  Info
	data  pieces

	match   entry // of receives
	inQueue list.Link[Request]
	pins    pinList // the memory that the peer reads (sendLong), or the device memory of a receive
	sendState

	from    *Endpoint // the peer that a receive is for; nil for any, and for sends
	awaited bool      // for Worker.RecvWait: the receive ends with the last endpoint

	call  *exchange     // of a collective call; nil for others
	poll  func() bool   // of collective calls, nil for others: reports whether the request is done
	polls atomic.Uint32 // calls of poll, by several goroutines
}

// sendState is the part of a request that only sends use.
type sendState struct {
	ep      *Endpoint
	kind    sendKind
	matched bool   // sendSync: the notice came before the whole message had gone out
	id      uint32 // in Endpoint.waiting; 0 for none
	sent    int    // bytes that have gone out in fragments
}

// requestStage is the progress of a request.
type requestStage uint8

const (
	requestFree   requestStage = iota // in the pool
	requestQueued                     // neither matched nor partly sent, so it can be cancelled
	requestActive                     // a receive that is matched; a send that has partly gone out
	requestDone                       // ended, with or without an error; the program may still hold it
)

// sendKind is how a send goes out, which decides when it is done.
type sendKind uint8

const (
	sendEager sendKind = iota // copied into active messages; done when they have gone out
	sendSync                  // copied, too; done when they have gone out and a receive has matched
	sendLong                  // announced; done when the peer has read its memory
)

// requestPool keeps requests for reuse.
//
// Invariant: len(free) <= most.
type requestPool struct {
	free []*Request
	most int    // Config.MaxRequests
	busy int    // requests that are not done
	made uint64 // requests that were allocated
}

// newRequest returns a request in stage requestQueued, from the pool if it has one.
func (w *Worker) newRequest(tag uint64, bufs [][]byte, n int) *Request {
	p := &w.spares.requests
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

// put gives a request back to the pool. Neither the program nor an endpoint uses it any more.
func (r *Request) put() {
	r.data.clear()
	r.stage, r.freed = requestFree, false
	r.info, r.match.req, r.sendState = Info{}, nil, sendState{}
	if r.from != nil || r.awaited {
		r.from, r.awaited = nil, false
	}
	if r.poll != nil {
		r.w.spares.calls = append(r.w.spares.calls, r)
		return
	}
	if p := &r.w.spares.requests; len(p.free) < p.most {
		p.free = append(p.free, r)
	}
}

// discard gives back a request that was refused.
func (r *Request) discard() {
	r.pins.release(r.w)
	r.w.spares.requests.busy--
	r.put()
}

// complete ends a request. The program owns its buffers again.
func (r *Request) complete(err error) {
	r.stage = requestDone
	r.w.spares.requests.busy--
	r.data.clear()
	r.pins.release(r.w)
	collective := r.info.Tag > MaxTag
	r.comp.Done(err)
	if collective { // not before: whoever sees due must see that the request is done
		r.w.teams.due.Store(true)
	}
	if r.freed {
		r.put()
	}
}

// newCall returns the request of a collective call. It has no data; exchange completes it.
func (w *Worker) newCall(x *exchange) *Request {
	p := &w.spares
	var r *Request
	if k := len(p.calls); k != 0 {
		r, p.calls = p.calls[k-1], p.calls[:k-1]
	} else {
		r = &Request{w: w}
		r.poll = r.pollCall
	}
	p.requests.busy++
	r.comp.Init(1, nil)
	r.stage, r.call = requestActive, x
	r.polls.Store(0)
	return r
}

// pollCall reports whether a collective call is done. Sometimes it finds out why not.
func (r *Request) pollCall() bool {
	if r.comp.Fired() {
		return true
	}
	x := r.call
	if r.polls.Add(1)&63 == 0 && x.mu.TryLock() {
		x.compare()
		x.mu.Unlock()
	}
	x.drive()
	return r.comp.Fired()
}

// Done reports whether the request has ended, with or without an error, so that the program owns
// its buffers again. A program that polls calls Progress until then. A nil request, which Send
// returns if there is nothing to wait for, has ended without an error; all methods accept it.
func (r *Request) Done() bool { return r == nil || r.comp.Fired() }

// Err returns the error with which the request ended; nil while it goes on, and after success.
func (r *Request) Err() error {
	if r == nil || !r.comp.Fired() {
		return nil
	}
	return r.comp.Err()
}

// Info describes the message once the request is done: for a receive its tag, length and source,
// for a send what the caller passed. That of a collective call is zero.
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
	if ctx == nil {
		return refuse("wait", verbs.ErrInvalid, "no context")
	}
	if r.poll != nil {
		return r.call.wait(ctx, r)
	}
	err := r.w.tw.Wait(ctx, &r.comp)
	if r.comp.Fired() {
		return r.comp.Err()
	}
	return &InterruptedError{Req: r, Err: r.late(ctx, err)}
}

// late adds the peer that a wait was for to the error of its ended ctx. If any peer would do, err
// names those that have not answered.
func (r *Request) late(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) {
		return err
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	switch why := errwrap.ContextErr(ctx); {
	case r.stage == requestDone:
		return err
	case r.ep != nil && r.ep.dial != dialDone:
		return fmt.Errorf("%w: %s has not connected", why, r.ep.name)
	case r.ep != nil:
		return fmt.Errorf("%w: %s has not taken the message", why, r.ep.name)
	case r.stage == requestActive:
		return fmt.Errorf("%w: %s has not sent all of the message", why, r.info.Source.name)
	case r.from != nil:
		return fmt.Errorf("%w: %s has sent no such message", why, r.from.name)
	}
	return err
}

// waitAndFree is Wait for the blocking calls, whose requests the program never sees. If ctx ends,
// it cancels the request if it still can.
func (r *Request) waitAndFree(ctx context.Context) (Info, error) {
	var err error
	if !r.comp.Fired() {
		err = r.w.tw.Wait(ctx, &r.comp)
	}
	canceled := false
	if !r.comp.Fired() {
		err = r.late(ctx, err)
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

// WaitAll waits until all requests are done, and returns the errors of those that failed, joined.
// If ctx ends before, that error is an [*InterruptedError]; every request that is not Done goes on.
// Requests of several workers need workers that are started.
func WaitAll(ctx context.Context, reqs ...*Request) error {
	var errs []error
	for _, r := range reqs {
		if err := r.Wait(ctx); err != nil {
			if errs = append(errs, err); !r.Done() {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// WaitAny waits until one of the requests is done, and returns its index. It skips those that are
// nil: set to nil what you have handled. If all are, the index is -1 and the error nil. The error
// is that of the wait; [Request.Err] has that of the request. When ctx ends, all go on. The
// requests must be of one worker.
func WaitAny(ctx context.Context, reqs ...*Request) (int, error) {
	i, w, err := firstDone(reqs)
	if i >= 0 || w == nil || err != nil {
		return i, err
	}
	err = w.tw.WaitFor(ctx, lookInterval, func() bool {
		i, _, _ = firstDone(reqs)
		return i >= 0
	})
	return i, err
}

// WaitSome is WaitAny that appends the indexes of all requests that are done to done, in order. It
// waits for one.
func WaitSome(ctx context.Context, done []int, reqs ...*Request) ([]int, error) {
	first, err := WaitAny(ctx, reqs...)
	if first < 0 || err != nil {
		return done, err
	}
	for i := first; i < len(reqs); i++ {
		if reqs[i] != nil && reqs[i].Done() {
			done = append(done, i)
		}
	}
	return done, nil
}

// firstDone returns the index of the first request that is done, or -1, and the worker of all, nil
// if there is no request.
func firstDone(reqs []*Request) (first int, w *Worker, err error) {
	for i, r := range reqs {
		switch {
		case r == nil:
		case r.comp.Fired() || r.poll != nil && r.poll():
			return i, r.w, nil
		case w != nil && w != r.w:
			return -1, nil, refuse("wait", verbs.ErrInvalid, "request %d is of another worker", i)
		default:
			w = r.w
		}
	}
	return -1, w, nil
}

// Cancel cancels a receive that no message has matched, or a send of which nothing has gone out:
// the request is then done, with ErrCanceled. Otherwise Cancel returns false and has no effect: the
// request has completed, or will. If a receive is cancelled while its message arrives, either may
// win. A collective call cannot be cancelled: other ranks take part in it.
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
	switch {
	case r.ep != nil:
		r.ep.queue.Remove(&r.inQueue)
		r.ep.waiting.remove(r)
	case r.from != nil:
		r.from.posted.remove(&r.match)
	default:
		w.matching.posted.remove(&r.match)
	}
	r.complete(errCanceled)
	return true
}

// Free returns the request to its worker for reuse; do not use it afterwards. A request that is not
// done yet is returned when it is, and owns its buffers until then. Calling Free is optional; a
// second call panics.
func (r *Request) Free() {
	if r == nil {
		return
	}
	w := r.w
	w.mu.Lock()
	switch {
	case r.stage == requestFree || r.freed:
		w.mu.Unlock()
		panic("tagged: request freed twice")
	case r.stage == requestDone:
		r.put()
	default:
		r.freed = true
	}
	w.mu.Unlock()
}
