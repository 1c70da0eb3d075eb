package perftest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe" //nolint:depguard // Go has no other way to read atomically what a NIC writes

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/verbs"
)

// batch is how many requests are posted, and completions polled, in one call.
const batch = 32

// stream moves messages over all queue pairs, as many at a time as these hold. A latency is
// measured with one message outstanding, which in a ping-pong also waits for the peer's.
type stream struct {
	*end
	sends, takes int // messages of each queue pair that this end sends, and that it receives

	opcode verbs.Opcode
	qps    []flow
	sent   int // completed, of all queue pairs
	took   int

	ahead   int     // a ping-pong: 1 at the end that sends the first message, else 0
	poll    *uint64 // ib_write_lat: the word whose byte at shift counts the peer's messages
	shift   int
	last    time.Time        // when the last timed message was posted
	samples *bench.Latencies // nil for a bandwidth

	wrs  [batch]verbs.SendWR
	sges [batch]verbs.SGE
	rwrs [batch]verbs.RecvWR
	wcs  [batch]verbs.WC
}

// flow is the progress of a queue pair.
//
// Invariant: sent <= posted <= sent+window; took <= expected <= took+receives.
type flow struct{ posted, sent, expected, took int }

// newStream prepares an end's part: both ends of a ping-pong send and receive; otherwise the client
// sends, and only a server of ib_send_bw receives.
func newStream(e *end, client bool) *stream {
	kind := e.cfg.Kind
	s := &stream{end: e, opcode: kind.opcode(), qps: make([]flow, e.cfg.QPs)}
	if client || kind.Halved() {
		s.sends = e.cfg.Messages
	}
	if kind.Halved() || kind == SendBW && !client {
		s.takes = e.cfg.Messages
	}
	if kind.Latency() {
		s.samples = bench.NewLatencies(kind.Halved())
	}
	if client != (kind == WriteLat) { // with writes the server sends first
		s.ahead = 1
	}
	if kind == WriteLat {
		at := s.target(0) + e.cfg.Size - 1
		s.poll = (*uint64)(unsafe.Pointer(unsafe.SliceData(s.memory[at&^7:][:8])))
		s.shift = (at & 7) * 8
	}
	return s
}

// all returns how many messages there are.
func (s *stream) all() int { return (s.sends + s.takes) * len(s.qps) }

// run moves the messages and returns the time to the last completion.
func (s *stream) run(w *waiter) (time.Duration, error) {
	start := time.Now()
	for s.sent+s.took < s.all() {
		moved, err := s.step()
		if err != nil {
			return 0, err
		}
		if moved {
			w.moved()
		} else if err := w.pause(); err != nil {
			return 0, fmt.Errorf("after %d of %d messages: %w", s.sent+s.took, s.all(), err)
		}
	}
	return time.Since(start), nil
}

// step fills the queue pairs, and collects completed and received messages. It polls the send CQ
// even if nothing is outstanding: that also makes a software NIC receive.
func (s *stream) step() (moved bool, err error) {
	for i := range s.qps {
		n, err := s.post(i)
		if err != nil {
			return false, err
		}
		moved = moved || n > 0
	}
	n, err := s.collect()
	if err != nil {
		return false, err
	}
	came, err := s.take()
	if errors.Is(err, verbs.StatusWRFlushErr) {
		// The failed request may have ended since the sends were collected: it explains why.
		if _, cause := s.collect(); cause != nil {
			err = cause
		}
	}
	return moved || n > 0 || came, err
}

// collect handles completions of sends.
func (s *stream) collect() (n int, err error) {
	n, err = s.sendCQ.Poll(s.wcs[:])
	if err != nil {
		return 0, err
	}
	for k := range s.wcs[:n] {
		wc := &s.wcs[k]
		f := &s.qps[wc.ID]
		if err := s.check(wc, f.sent); err != nil {
			return 0, err
		}
		f.sent++
		s.sent++
	}
	return n, nil
}

// post posts messages on a queue pair.
func (s *stream) post(i int) (n int, err error) {
	f := &s.qps[i]
	due := s.sends
	if s.cfg.Kind.Halved() {
		due = min(due, s.took+s.ahead)
	}
	n = min(due-f.posted, s.cfg.sends()-(f.posted-f.sent), batch)
	if n <= 0 {
		return 0, nil
	}
	if s.poll != nil { // the last byte of a message is its number
		s.memory[s.source(0)+s.cfg.Size-1] = byte(f.posted + 1)
	}
	for k := range n {
		message := f.posted + k
		s.sges[k] = s.sge(s.source(i), message)
		s.wrs[k] = verbs.SendWR{ID: uint64(i), Opcode: s.opcode, Flags: verbs.SendSignaled,
			SGL: s.sges[k : k+1]}
		if s.opcode != verbs.OpSend {
			s.wrs[k].RemoteAddr = s.peers[i].addr + uint64(s.offset(message))
			s.wrs[k].RKey = s.peers[i].rkey
		}
	}
	var now time.Time
	if s.samples != nil {
		now = time.Now()
	}
	n, err = s.end.qps[i].PostSend(s.wrs[:n])
	f.posted += n
	if err != nil && !verbs.IsTransient(err) {
		return n, fmt.Errorf("queue pair %#x: %w", s.end.qps[i].Num(), err)
	}
	if s.samples != nil && n == 1 {
		s.sample(now)
	}
	return n, nil
}

// sample records the time from the post before to the one at now.
func (s *stream) sample(now time.Time) {
	if !s.last.IsZero() {
		s.samples.Record(int64(now.Sub(s.last)))
	}
	s.last = now
}

// sge returns where message n of a queue pair is, in slots that begin at an offset of the memory.
func (s *stream) sge(slots, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(slots+s.offset(n)), Length: uint32(s.cfg.Size),
		LKey: s.mr.LKey()}
}

// offset returns where in its slots message n goes: small ones use the lines of a page in turn,
// except when latency is measured.
func (s *stream) offset(n int) int {
	step := (s.cfg.Size + s.stride - 1) / s.stride * s.stride
	if s.cfg.Size > s.page/2 || step > s.page || s.samples != nil {
		return 0
	}
	return n % (s.page / step) * step
}

// expect posts receives for the remaining messages, as many as the queue pairs hold. Once some are
// posted, it waits until there is room for several.
func (s *stream) expect() error {
	if s.opcode != verbs.OpSend {
		return nil
	}
	several := min(batch, s.cfg.receives()) / 2
	for i := range s.qps {
		f := &s.qps[i]
		due := min(s.takes-f.expected, s.cfg.receives()-(f.expected-f.took))
		if due < several && f.expected+due < s.takes {
			continue
		}
		for due > 0 {
			n := min(due, batch)
			for k := range n {
				s.sges[k] = s.sge(s.target(i), f.expected+k)
				s.rwrs[k] = verbs.RecvWR{ID: uint64(i), SGL: s.sges[k : k+1]}
			}
			n, err := s.end.qps[i].PostRecv(s.rwrs[:n])
			f.expected += n
			due -= n
			if err != nil {
				return fmt.Errorf("queue pair %#x: %w", s.end.qps[i].Num(), err)
			}
		}
	}
	return nil
}

// take collects received messages, and makes room for more.
func (s *stream) take() (moved bool, err error) {
	switch {
	case s.takes == 0:
		return false, nil
	case s.poll != nil:
		if byte(atomic.LoadUint64(s.poll)>>s.shift) == byte(s.took+1) {
			s.took++
			return true, nil
		}
		return false, nil
	}
	n, err := s.recvCQ.Poll(s.wcs[:])
	if err != nil || n == 0 {
		return false, err
	}
	for k := range s.wcs[:n] {
		wc := &s.wcs[k]
		f := &s.qps[wc.ID]
		if err := s.check(wc, f.took); err != nil {
			return false, err
		}
		if int(wc.ByteLen) != s.cfg.Size {
			return false, fmt.Errorf("%w: a message has %d bytes, %d were due; %s", ErrMismatch, wc.ByteLen,
				s.cfg.Size, agree)
		}
		f.took++
		s.took++
	}
	return true, s.expect()
}

// check returns what is wrong with the completion of message n of its queue pair.
func (s *stream) check(wc *verbs.WC, n int) error {
	if wc.Status == verbs.StatusSuccess {
		return nil
	}
	return &FailedError{QP: s.end.qps[wc.ID].Num(), Message: n, Status: wc.Status, First: s.sent+s.took == 0}
}

// FailedError is a request that failed.
type FailedError struct {
	QP      uint32
	Message int // of its queue pair, from 0
	Status  verbs.Status
	First   bool // nothing had succeeded before it
}

// Error says which request failed, why, and the likely reason.
func (e *FailedError) Error() string {
	s := fmt.Sprintf("queue pair %#x: message %d: %v", e.QP, e.Message, e.Status)
	switch e.Status {
	case verbs.StatusRemAccessErr, verbs.StatusRemInvReqErr, verbs.StatusLocLenErr, verbs.StatusRemOpErr:
		return s + ": the peer offers less memory, or has smaller receives; " + agree
	}
	return s
}

// Unwrap returns the status.
func (e *FailedError) Unwrap() error { return e.Status }

const (
	// spins is how often an end polls in vain before it reads the clock.
	spins = 256
	// awake is how long it polls without a pause: longer than messages between hardware NICs take,
	// but no longer, because others need the core.
	awake = time.Millisecond
	// nap is its pause after that.
	nap = 50 * time.Microsecond
	// grace is how long messages may still move once the peer has moved on or has gone.
	grace = 2 * time.Second
)

// waiter waits for messages until ctx ends, or nothing moves for limit.
type waiter struct {
	ctx   context.Context
	limit time.Duration
	idle  int       // polls in vain since something moved
	since time.Time // of the first clock reading of these
}

// moved records that something has moved.
func (w *waiter) moved() { w.idle = 0 }

// pause is called after a poll in vain, and returns an error when it is time to give up.
func (w *waiter) pause() error {
	w.idle++
	switch {
	case w.idle < spins:
		runtime.Gosched()
		return nil
	case w.idle == spins:
		w.since = time.Now()
	}
	waited := time.Since(w.since)
	switch {
	case waited < awake:
		runtime.Gosched()
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	case waited > w.limit:
		return fmt.Errorf("%w: nothing has completed or come for %v; %s", ErrTimeout, w.limit, agree)
	default:
		time.Sleep(nap)
	}
	return nil
}
