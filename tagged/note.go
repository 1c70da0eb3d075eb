package tagged

import (
	"context"
	"encoding/binary"
	"errors"
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
//	byte 0      noteQuestion, noteRoll, noteEntered, or the reason of a stop
//	byte 8-15   of a stop the rank that began it; of the others a step: that of a question or a roll
//	            call, and that which the sender of noteEntered has come to
//	byte 16-23  of a question the ticket of its sender; of noteEntered the step that was asked
//	            about; of a stop the first step of the team
//	byte 24-    of a stop why, as text; of noteEntered the ranks that the call of that step waits
//	            for, four bytes each
const (
	noteQuestion = iota
	stopMismatch
	stopFailed
	stopGaveUp
	noteRoll
	noteEntered
)

const (
	// maxNote is the length of the longest note in bytes.
	maxNote = 400
	// noteHead is the length of a note without its last part.
	noteHead = 24
)

// question is that of a rank which waits for this one: the step that it is in, and its call.
type question struct {
	rank   int
	step   uint64
	ticket ticket
}

// refuse ends a call that does not begin, on all ranks, so that the others do not wait.
func (x *exchange) refuse(why byte, c *call, err error) error {
	if x.stopped != nil {
		return x.ended(c.name(), x.record.Step+1)
	}
	if why == stopMismatch {
		err = &mismatchError{err}
	}
	x.record.Step++
	x.stop(why, x.t.rank, err, c.name(), x.record.Step)
	return x.err
}

// fail ends a call because of an error, and all others under way or later, on all ranks.
func (x *exchange) fail(c *flight, why byte, err error) {
	x.stop(why, x.t.rank, err, c.name(), c.step)
}

// ended returns the error of a call that begins after all have been stopped: that of the first call
// that was ended.
func (x *exchange) ended(call string, step uint64) error {
	if x.err == nil {
		x.err = x.callError(call, step, x.stopped)
	}
	return x.err
}

// callError adds a call to an error, and its team unless that is the world.
func (x *exchange) callError(call string, step uint64, err error) error {
	call = fmt.Sprintf("%s %d", call, step-x.base)
	if x.t.number != 0 {
		call += " of " + x.t.String()
	}
	return &errwrap.Error{Err: fmt.Errorf("tagged: %s: %w", call, within{err})}
}

// stop ends all calls because a call has failed at this rank, and tells the others.
func (x *exchange) stop(why byte, origin int, err error, call string, step uint64) {
	x.stopped = briefly(err)
	text := within{x.ended(call, step)}.Error()
	x.endAll(why, origin, strings.Replace(text, ErrMismatch.Error()+": ", "", 1)) // the others add it
}

// endAll ends what is under way, and passes on to all ranks why.
func (x *exchange) endAll(why byte, origin int, text string) {
	for _, c := range x.calls {
		for _, b := range c.waiting {
			b.req.Cancel()
			b.req.Free()
		}
		c.waiting = nil
		x.end(c, x.callError(c.name(), c.step, x.stopped))
	}
	x.calls = nil
	note := append(newNote(why, uint64(origin), x.base+1), text[:min(len(text), maxNote-noteHead)]...)
	x.w.mu.Lock()
	x.over = true // what arrives later is not kept
	var peers []*Endpoint
	for rank := range x.t.Size() {
		if e := x.w.ranks.peers[x.t.world(rank)]; e != nil && rank != x.t.rank {
			peers = append(peers, e)
		}
	}
	x.w.mu.Unlock()
	x.w.sweep(func(_ *Endpoint, tag uint64) bool {
		return tag >= noteClass<<56 && numberOf(tag) == x.t.number
	})
	for _, e := range peers {
		x.sendNote(e, note)
	}
	x.unsent.Store(true)
}

// flush sends what others must know about the end of the calls: the program may close the worker at
// once.
func (x *exchange) flush() {
	if !x.unsent.CompareAndSwap(true, false) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = x.w.tw.Flush(ctx, transport.FlushLocal)
}

// newNote returns a note without its last part.
func newNote(kind byte, a, b uint64) []byte {
	note := make([]byte, noteHead, maxNote)
	note[0] = kind
	binary.LittleEndian.PutUint64(note[8:], a)
	binary.LittleEndian.PutUint64(note[16:], b)
	return note
}

// noteTag is the tag of the team's notes.
func (x *exchange) noteTag() uint64 { return noteClass<<56 | x.t.prefix() }

// sendNote sends a note. A rank that has failed need not have it.
func (x *exchange) sendNote(e *Endpoint, note []byte) {
	r, _ := e.send(opCollective, x.noteTag(), [][]byte{note}, false)
	r.Free()
}

// ask sends a rank the question whether it makes the same call.
func (x *exchange) ask(p *party, c *flight) {
	p.asked = c.step
	x.sendNote(p.ep, newNote(noteQuestion, c.step, uint64(c.ticket)))
}

// readNotes handles the notes that have arrived, and posts the receive of the next one.
func (x *exchange) readNotes() {
	for x.stopped == nil {
		if x.notes == nil {
			r, err := x.receive(nil, x.noteTag(), x.note[:])
			if err != nil {
				x.notesFailed(err)
				return
			}
			x.notes = r
		}
		if !x.notes.Done() {
			x.answer()
			return
		}
		err, info := x.notes.Err(), x.notes.Info()
		x.notes.Free()
		x.notes = nil
		switch {
		case err == nil || errors.Is(err, ErrTruncated):
			if err = x.read(info); err != nil {
				x.w.mu.Lock()
				info.Source.violated(err)
				x.w.mu.Unlock()
			}
		case info.Source == nil:
			x.notesFailed(err)
			return
		} // otherwise its sender has failed, and the others have not
	}
}

// read handles the note that has arrived. It returns an error if no rank would send it.
func (x *exchange) read(info Info) error {
	from, size := x.t.RankOf(info.Source), uint64(x.t.Size())
	switch {
	case info.Length < noteHead || info.Length > maxNote:
		return fmt.Errorf("a note of %d bytes: must have %d to %d", info.Length, noteHead, maxNote)
	case from < 0: // this rank leaves it out of a call of Shrink that it makes, too
		return nil
	}
	note := x.note[:info.Length]
	kind, rest := note[0], note[noteHead:]
	a, b := binary.LittleEndian.Uint64(note[8:]), binary.LittleEndian.Uint64(note[16:])
	step := b
	if kind == noteQuestion || kind == noteRoll {
		step = a
	}
	if x.base != 0 && step != x.base+1 && kind <= noteEntered {
		return nil // of another call of Shrink
	}
	switch kind {
	case noteQuestion:
		x.questions = slices.DeleteFunc(x.questions, func(q question) bool { return q.rank == from })
		x.questions = append(x.questions, question{from, a, ticket(b)})
	case noteRoll:
		x.sendNote(info.Source, x.entered(a))
	case noteEntered:
		var waits []int
		for ; len(rest) >= 4; rest = rest[4:] {
			rank := binary.LittleEndian.Uint32(rest)
			if uint64(rank) >= size {
				return fmt.Errorf("a note that rank %d of %d is awaited", rank, size)
			}
			waits = append(waits, int(rank))
		}
		for _, l := range x.rolls {
			if l.step == b {
				l.heard(from, a, waits)
			}
		}
	case stopMismatch, stopFailed, stopGaveUp:
		if a >= size {
			return fmt.Errorf("a note that rank %d of %d has ended a call", a, size)
		}
		x.stoppedBy(kind, int(a), peertext.Line(string(rest), maxNote))
	default:
		return fmt.Errorf("a note of kind %d: %d is the largest", kind, noteEntered)
	}
	return nil
}

// notesFailed ends all calls, of which no note can be received any more: the worker is closed.
func (x *exchange) notesFailed(err error) {
	if len(x.calls) != 0 {
		x.fail(x.calls[0], stopFailed, err)
		return
	}
	x.stopped = err
	x.endAll(stopFailed, x.t.rank, err.Error())
}

// stoppedBy ends the calls because another rank has ended its own.
func (x *exchange) stoppedBy(why byte, origin int, text string) {
	cause, also := ErrPeerFailed, ""
	switch why {
	case stopMismatch:
		cause = ErrMismatch
	case stopGaveUp:
		cause = ErrCanceled
		if len(x.calls) != 0 && len(x.calls[0].waiting) != 0 {
			also = fmt.Sprintf("; %s waits, too: %s", x.name(x.t.rank), x.awaited(x.calls[0]))
		}
	}
	x.stopped = fmt.Errorf("%w: %s has ended it: %s%s", cause, x.name(origin), text, also)
	if len(x.calls) != 0 {
		_ = x.ended(x.calls[0].name(), x.calls[0].step)
	}
	x.endAll(why, origin, text)
}

// answer compares the questions of other ranks with the calls of this one.
func (x *exchange) answer() {
	for i := len(x.questions) - 1; i >= 0; i-- {
		q := x.questions[i]
		if q.step > x.record.Step {
			continue // this rank is not there yet
		}
		x.questions = slices.Delete(x.questions, i, i+1)
		if mine, ok := x.record.At(q.step); ok && mine != q.ticket {
			x.mismatch(q.rank, q.step, q.ticket, mine)
			return
		}
	}
}

// compare finds out why the first call does not go on: whether a rank that it waits for has sent
// something of another call, and asks those that have sent nothing.
func (x *exchange) compare() {
	if len(x.calls) == 0 {
		return
	}
	c := x.calls[0]
	now := time.Now()
	if c.look.IsZero() {
		c.look = now.Add(patience)
	}
	if now.Before(c.look) {
		return
	}
	c.look = now.Add(patience)
	for _, b := range c.waiting {
		s := c.run.Step(b.step)
		p := &x.parties[s.Peer]
		if p.asked != c.step {
			x.ask(p, c)
		}
		if s.Action != collective.Receive || x.base != 0 || !x.overtaken(p.ep, b.req, c) {
			continue
		}
		if c.odd.IsZero() {
			c.odd = now.Add(answerTime) // the rank answers what it calls, if it makes progress
		} else if now.After(c.odd) {
			x.fail(c, stopMismatch, fmt.Errorf("%w: %s has made another call, and does not say which; "+
				"this one, %s, calls %v", ErrMismatch, x.name(s.Peer), x.name(x.t.rank), c.ticket))
			return
		}
	}
}

// overtaken reports whether a message of another call waits although a receive of the first call
// under way was posted before it, unless that is a later call. The peer sends a message of this
// call before those of calls that are so far ahead that they seem to be behind.
func (x *exchange) overtaken(e *Endpoint, r *Request, c *flight) bool {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if r.stage != requestQueued {
		return false
	}
	for l := e.kept.all.Front(); l != nil; l = l.Next() {
		if tag := l.Owner().tag; tag>>32 == c.tag>>32 {
			ahead := (stepOf(tag) - c.step) % tagSteps
			return ahead == 0 && tag != c.tag || ahead > mostUnderWay
		}
	}
	return false
}

// mismatch ends the calls on all ranks, because another rank makes a different one.
func (x *exchange) mismatch(rank int, step uint64, theirs, mine ticket) {
	err := fmt.Errorf("%w: %s calls %v, this one, %s, %v", ErrMismatch, x.name(rank), theirs,
		x.name(x.t.rank), mine)
	if (theirs^mine)&ticketCall == 0 {
		err = fmt.Errorf("%w: %s and this one, %s, call %v, but have not made the same calls "+
			"before", ErrMismatch, x.name(rank), x.name(x.t.rank), mine)
	}
	name := mine.call().name()
	if len(x.calls) != 0 {
		name, step = x.calls[0].name(), x.calls[0].step
	}
	x.stop(stopMismatch, x.t.rank, err, name, step)
}
