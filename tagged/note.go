package tagged

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
	"ibverbx/internal/peertext"
	"ibverbx/transport"
)

// Notes are messages from any rank that travel beside those of calls.
//
//	byte 0      noteQuestion, or the reason of a stop
//	byte 8-15   of a question the step that its sender is in; of a stop the rank that began it
//	byte 16-23  of a question the ticket of its sender
//	byte 24-    of a stop why, as text
const (
	noteQuestion = iota
	stopMismatch
	stopFailed
	stopGaveUp
)

// noteTag is the tag of notes; maxNote is the length of the longest in bytes.
const (
	noteTag = 0xfe << 56
	maxNote = 400
)

// question is that of a rank which waits for this one: the step that it is in, and its call.
type question struct {
	rank   int
	step   uint64
	ticket ticket
}

// refuse ends a call that does not begin, on all ranks, so that the others do not wait.
func (x *exchange) refuse(why byte, c *call, err error) error {
	x.call = *c
	x.record.Step++
	return x.fail(why, err)
}

// fail ends the call, and all later ones, on all ranks.
func (x *exchange) fail(why byte, err error) error {
	if x.err != nil {
		return x.err
	}
	x.err = &errwrap.Error{Err: fmt.Errorf("tagged: %v %d: %w", x.call.kind, x.record.Step, within{err})}
	text := strings.Replace(within{x.err}.Error(), ErrMismatch.Error()+": ", "", 1) // the others add it
	x.stop(why, x.w.cfg.Rank, text)
	return x.err
}

// stop ends what is under way, and passes on to all ranks why.
func (x *exchange) stop(why byte, origin int, text string) {
	for _, b := range x.waiting {
		b.req.Cancel()
		b.req.Free()
	}
	x.waiting = nil
	note := make([]byte, 24, maxNote)
	note[0] = why
	binary.LittleEndian.PutUint64(note[8:], uint64(origin))
	note = append(note, text[:min(len(text), maxNote-24)]...)
	x.w.mu.Lock()
	x.sweep()
	peers := slices.Clone(x.w.ranks.peers)
	x.w.mu.Unlock()
	for _, e := range peers {
		if e != nil && e.rank != x.w.cfg.Rank {
			r, _ := e.send(opCollective, noteTag, [][]byte{note}, false) // one that has failed need not know
			r.Free()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = x.w.tw.Flush(ctx, transport.FlushLocal) // the program may close the worker at once
}

// sweep drops what is left of collective calls, which nothing receives any more, so that it takes
// no place from messages. What arrives later is not kept.
func (x *exchange) sweep() {
	x.over = true
	for l := x.w.matching.unexpected.all.Front(); l != nil; {
		in := l.Owner().in
		l = l.Next()
		if e := in.ep; in.match.tag > MaxTag {
			e.ledger.Free(in.fragments)
			x.w.drop(in)
			if e.canPush() {
				e.kick()
			}
		}
	}
}

// ask sends a rank the question which call it is in.
func (x *exchange) ask(p *party) {
	note := make([]byte, 24)
	binary.LittleEndian.PutUint64(note[8:], x.record.Step)
	binary.LittleEndian.PutUint64(note[16:], uint64(x.record.Last()))
	r, _ := p.ep.send(opCollective, noteTag, [][]byte{note}, false)
	r.Free()
	p.asked = x.record.Step
}

// readNotes handles the notes that have arrived.
func (x *exchange) readNotes() error {
	for {
		if x.notes == nil {
			r, err := x.receive(nil, noteTag, x.note[:])
			if err != nil {
				return x.fail(stopFailed, err)
			}
			x.notes = r
		}
		if !x.notes.Done() {
			return x.answer()
		}
		err, info := x.notes.Err(), x.notes.Info()
		x.notes.Free()
		x.notes = nil
		if err != nil {
			return x.fail(stopFailed, err)
		}
		if info.Length < 24 || info.Source.rank < 0 {
			continue // no rank sends it
		}
		note := x.note[:info.Length]
		a, b := binary.LittleEndian.Uint64(note[8:]), binary.LittleEndian.Uint64(note[16:])
		if why := note[0]; why != noteQuestion {
			return x.stopped(why, int(a), peertext.Line(string(note[24:]), maxNote))
		}
		from := info.Source.rank
		x.questions = slices.DeleteFunc(x.questions, func(q question) bool { return q.rank == from })
		x.questions = append(x.questions, question{from, a, ticket(b)})
	}
}

// stopped ends the calls because another rank has ended its own.
func (x *exchange) stopped(why byte, origin int, text string) error {
	cause, also := ErrPeerFailed, ""
	switch why {
	case stopMismatch:
		cause = ErrMismatch
	case stopGaveUp:
		cause = ErrCanceled
		if len(x.waiting) != 0 {
			also = fmt.Sprintf("; by this one, rank %d, %s", x.w.cfg.Rank, x.awaited())
		}
	}
	x.err = &errwrap.Error{Err: fmt.Errorf("tagged: %v %d: %w: rank %d has ended it: %s%s", x.call.kind,
		x.record.Step, cause, origin, text, also)}
	x.stop(why, origin, text)
	return x.err
}

// answer compares the questions of other ranks with the calls of this one.
func (x *exchange) answer() error {
	for i := len(x.questions) - 1; i >= 0; i-- {
		q := x.questions[i]
		if q.step > x.record.Step {
			continue // this rank is not there yet
		}
		x.questions = slices.Delete(x.questions, i, i+1)
		if mine, ok := x.record.At(q.step); ok && mine != q.ticket {
			return x.mismatch(q.rank, q.ticket, mine)
		}
	}
	return nil
}

// compare looks whether a rank that this one waits for has sent something of another call, and asks
// those that have sent nothing.
func (x *exchange) compare() error {
	mine := x.record.Last()
	for _, b := range x.waiting {
		s := x.run.Step(b.step)
		p := &x.parties[s.Peer]
		if s.Action == collective.Receive {
			if theirs, ok := x.overtaken(p.ep, b.req); ok {
				return x.mismatch(s.Peer, theirs, mine)
			}
		}
		if p.asked != x.record.Step {
			x.ask(p)
		}
	}
	return x.answer()
}

// overtaken returns the call of the first collective message that waits although a receive was
// posted before it: it is of another call than the receive.
func (x *exchange) overtaken(e *Endpoint, r *Request) (theirs ticket, ok bool) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if r.stage != requestQueued {
		return 0, false
	}
	for l := e.kept.all.Front(); l != nil; l = l.Next() {
		if tag := l.Owner().tag; tag > noteTag {
			return ticket(tag), true
		}
	}
	return 0, false
}

// mismatch ends the call on all ranks, because another rank makes a different one.
func (x *exchange) mismatch(rank int, theirs, mine ticket) error {
	if (theirs^mine)&ticketCall == 0 {
		return x.fail(stopMismatch, fmt.Errorf("%w: rank %d and this one, rank %d, call %v, but have not "+
			"made the same calls before", ErrMismatch, rank, x.w.cfg.Rank, mine))
	}
	return x.fail(stopMismatch, fmt.Errorf("%w: rank %d calls %v, this one, rank %d, %v", ErrMismatch, rank,
		theirs, x.w.cfg.Rank, mine))
}
