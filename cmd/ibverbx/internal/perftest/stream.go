package perftest

import (
	"fmt"
	"time"

	"ibverbx/verbs"
)

// batch is how many requests are posted, and completions polled, in one call.
const batch = 32

// stream moves the messages of one size over all queue pairs, as many at a time as these hold.
type stream struct {
	*end
	size         int
	sends, takes int // messages of each queue pair that this end sends, and that it receives

	opcode verbs.Opcode
	qps    []flow
	sent   int // completed, of all queue pairs
	took   int

	wrs  [batch]verbs.SendWR
	sges [batch]verbs.SGE
	rwrs [batch]verbs.RecvWR
	wcs  [batch]verbs.WC
}

// flow is how far a queue pair is.
//
// Invariant: sent <= posted <= sent+window; took <= expected <= took+receives.
type flow struct{ posted, sent, expected, took int }

func newStream(e *end, size int, sends, takes bool) *stream {
	s := &stream{end: e, size: size, opcode: e.cfg.Kind.opcode(), qps: make([]flow, e.cfg.QPs)}
	if sends {
		s.sends = e.cfg.Messages
	}
	if takes {
		s.takes = e.cfg.Messages
	}
	return s
}

// run moves the messages and says how long that took: to the last completion.
func (s *stream) run(w *waiter) (time.Duration, error) {
	all := (s.sends + s.takes) * len(s.qps)
	start := time.Now()
	for s.sent+s.took < all {
		sent, err := s.send()
		if err != nil {
			return 0, err
		}
		came, err := s.take()
		if err != nil {
			return 0, err
		}
		if sent || came {
			w.moved()
		} else if err := w.pause(); err != nil {
			return 0, under(err, s.sent+s.took, all)
		}
	}
	return time.Since(start), nil
}

// send posts what the queue pairs have room for, and collects what has completed.
func (s *stream) send() (moved bool, err error) {
	for i := range s.qps {
		n, err := s.post(i)
		if err != nil {
			return false, err
		}
		moved = moved || n > 0
	}
	n, err := s.collect()
	return moved || n > 0, err
}

// collect takes completions of sends.
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
	n = min(s.sends-f.posted, s.cfg.sends()-(f.posted-f.sent), batch)
	if n <= 0 {
		return 0, nil
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
	n, err = s.end.qps[i].PostSend(s.wrs[:n])
	f.posted += n
	if err != nil && !verbs.IsTransient(err) {
		return n, fmt.Errorf("queue pair %#x: %w", s.end.qps[i].Num(), err)
	}
	return n, nil
}

// sge is where message n of a queue pair is, in slots that begin at an offset of the memory.
func (s *stream) sge(slots, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(slots+s.offset(n)), Length: uint32(s.size), LKey: s.mr.LKey()}
}

// offset is where in its slots message n goes: small ones walk through a page, line by line, but
// for those whose latency is measured.
func (s *stream) offset(n int) int {
	step := (s.size + s.stride - 1) / s.stride * s.stride
	if s.size > s.page/2 || step > s.page || s.cfg.Kind.Latency() {
		return 0
	}
	return n % (s.page / step) * step
}

// expect posts receives for what is still to come, as many as the queue pairs hold: where some are
// posted, not before there is room for several.
func (s *stream) expect() error {
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

// take collects what has come, and makes room for more.
func (s *stream) take() (moved bool, err error) {
	if s.takes == 0 {
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
		if int(wc.ByteLen) != s.size {
			return false, fmt.Errorf("%w: a message has %d bytes, %d were due; %s", ErrMismatch, wc.ByteLen,
				s.size, agree)
		}
		f.took++
		s.took++
	}
	return true, s.expect()
}

// check says what is wrong with a completion, that of message n of its queue pair.
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

// Error says which, why, and what that may come from.
func (e *FailedError) Error() string {
	s := fmt.Sprintf("queue pair %#x: message %d: %v", e.QP, e.Message, e.Status)
	switch e.Status {
	case verbs.StatusRemAccessErr, verbs.StatusRemInvReqErr, verbs.StatusLocLenErr, verbs.StatusRemOpErr:
		return s + ": the peer offers less memory, or has smaller receives; " + agree
	}
	return s
}

// Unwrap is the status.
func (e *FailedError) Unwrap() error { return e.Status }
