package shmem

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"ibverbx/internal/collective"
	"ibverbx/transport"
)

// PEs that are out of step would wait for each other forever. The PE that detects it writes the
// stop word of every PE, which all waits and all later collective calls read. A PE detects it at
// once if it receives data that does not fit its call. If nothing arrives, since each PE waits for
// another, they ask: a PE that has waited for some time writes which call it is in to the heap of
// the PE that it waits for, and checks the questions that others have written to its own.
//
// Close is compared, too. A PE in Close only asks, also those that have asked it about another
// call, and leaves it to them to find the mismatch: a question in its heap may be of a PE that has
// given up since, and then closes as well. A PE that closes out of step writes the stop word again,
// and waits until it is visible, before the others can see that it closes: so they get ErrMismatch,
// and not the error of a PE that has closed.

// stopWord is why the PEs are out of step: the number of the PE that found it plus one in the lower
// 32 bits, and above them the kind of call that it has refused, or zero for a mismatch. With the
// bit of gaveUp the PE was not refused: it gave up in the call.
type stopWord uint64

// gaveUp is a bit of a stop word.
const gaveUp stopWord = 1 << 40

// stopWord returns this PE's stop word; it is zero while the PEs are in step.
func (p *PE) stopWord() stopWord { return stopWord(atomic.LoadUint64(word64(p.heap, p.layout.stop))) }

// err returns the error that the word stands for. It must not be zero.
func (w stopWord) err() error {
	who, k := w&(1<<32-1)-1, kind(w>>32)
	switch {
	case w&gaveUp != 0:
		return fmt.Errorf("%w: PE %d gave up in %v: see its error", ErrMismatch, who, k)
	case k != 0:
		return fmt.Errorf("%w: PE %d called %v with wrong arguments: see its error", ErrMismatch, who, k)
	}
	return fmt.Errorf("%w: PE %d found the mismatch: see its error", ErrMismatch, who)
}

// inStep returns an error if the PEs are out of step, so that the program can only call Close. If
// that is because this PE gave up in a call, the others learn it now, so that they do not wait.
// exchange.mu is held.
func (p *PE) inStep(ctx context.Context, op string) error {
	if p.failed.err != nil {
		if p.stopWord() == 0 {
			p.stopAll(ctx, p.failed.stopWord(p.id))
		}
		return opError(op, p.failed.gaveUp())
	}
	return p.stopped(op, p.stopWord())
}

// checkInStep is inStep for who does not hold exchange.mu.
func (p *PE) checkInStep(ctx context.Context, op string) error {
	p.lock()
	defer p.exchange.mu.Unlock()
	return p.inStep(ctx, op)
}

// stopped returns the error of a call that ends because of the stop word; nil if that is zero. The
// program then knows that the PEs are out of step, and only closes.
func (p *PE) stopped(op string, w stopWord) error {
	if w == 0 {
		return nil
	}
	p.knows.Store(true)
	return opError(op, w.err())
}

// failure is a collective call in which this PE gave up.
type failure struct {
	kind kind
	err  error // nil while there is no such call
}

func (f *failure) stopWord(pe int) stopWord { return gaveUp | stopWord(f.kind)<<32 | stopWord(pe) + 1 }

// gaveUp returns the error of the calls that this PE cannot make any more.
func (f *failure) gaveUp() error {
	return fmt.Errorf("%w: this PE gave up in an earlier one (%v), and the others may have completed it: "+
		"call Close", ErrMismatch, f.err)
}

// ended returns the error of a collective call that this PE has entered. If ctx or anything else
// but the loss of a PE has ended it, this PE is out of step from now on. exchange.mu is held.
func (p *PE) ended(r *Request, err error) error {
	if r.kind == kindClose {
		return err
	}
	err = p.explain(r.op, err)
	if !errors.Is(err, ErrMismatch) && !errors.As(err, new(*PEError)) {
		p.failed = failure{kind: r.kind, err: err}
	}
	return err
}

// explain returns ErrMismatch for the error of a PE that is gone if the PEs are out of step: it has
// closed for that.
func (p *PE) explain(op string, err error) error {
	if w := p.stopWord(); w != 0 && errors.As(err, new(*PEError)) {
		return p.stopped(op, w)
	}
	return err
}

// refuse ends a collective call whose arguments are wrong, on all PEs, so that the others do not
// wait.
func (p *PE) refuse(ctx context.Context, k kind, err error) error {
	p.knows.Store(true)
	p.stopAll(ctx, stopWord(k)<<32|stopWord(p.id)+1)
	return err
}

// difference is a call of a peer and one of this PE, which should be the same.
type difference struct {
	theirs, mine tag
	of, in       *Team // of theirs, as far as this PE knows, and of mine
}

// differ says that the peer is in a call other than this one.
func (r *Request) differ(theirs tag, of *Team) difference {
	return difference{theirs: theirs, mine: r.tag, of: of, in: r.team}
}

// mismatch ends a collective call on all PEs, because PE t is in a different one.
func (p *PE) mismatch(ctx context.Context, op string, t *peer, d difference) error {
	p.knows.Store(true)
	p.stopAll(ctx, stopWord(p.id)+1)
	theirs, mine := d.theirs.String(), d.mine.String()
	if d.of == d.in && (d.theirs^d.mine)&tagCall == 0 {
		before := "not the same before it"
		if len(p.teams) > 1 {
			before = "in different teams, or " + before
		}
		return opError(op, fmt.Errorf("%w: %v and PE %d called %s, but %s", ErrMismatch, t, p.id, mine,
			before))
	}
	if d.of == d.in && theirs == mine {
		mine += " with other arguments"
	}
	if d.of != d.in && !d.of.isWorld() {
		theirs += " of " + d.of.String()
	}
	if !d.in.isWorld() {
		mine += " of " + d.in.String()
	}
	return opError(op, fmt.Errorf("%w: %v called %s, PE %d %s", ErrMismatch, t, theirs, p.id, mine))
}

// stopAll writes the stop word of all PEs, its own included.
func (p *PE) stopAll(ctx context.Context, w stopWord) {
	for i := range p.peers {
		// A PE that cannot be reached notices by itself that another has failed.
		_ = p.peers[i].putWord(ctx, p.layout.stop, uint64(w))
	}
	_ = p.flushLocal(ctx, "", p.world)
}

// mustStop returns the stop word that ends a wait; zero if none does. Close does not end if the
// program knew before that the PEs are out of step, nor for a PE that gave up, which closes, too.
func (p *PE) mustStop() stopWord {
	w := p.stopWord()
	if p.closing.Load() && (!p.compared || w&gaveUp != 0) {
		return 0
	}
	return w
}

// key identifies a call among those of all teams.
func (r *Request) key() uint64 { return collective.Mix(r.team.id, r.step) }

// ask tells the peer, once per call, which call this PE waits for it in. The words land in any
// order: the third, a hash of the others and the team, shows that all three belong to one question.
// They land after everything that this PE has sent to the peer, see crosses.
func (t *peer) ask(ctx context.Context, r *Request) error {
	p := t.pe
	if t.asked == r.key() {
		return nil
	}
	if err := t.order(ctx); err != nil {
		return err
	}
	t.asked = r.key()
	step, g := r.step, uint64(r.tag)
	for i, v := range [...]uint64{step, g, collective.Mix(collective.Mix(step, g), r.team.id)} {
		if err := t.putWord(ctx, p.layout.question(p.id)+8*uint64(i), v); err != nil {
			return err
		}
	}
	return nil
}

// question returns the peer's last question, and the team of the call; nil if not all of it has
// arrived, or this PE has no such team.
func (t *peer) question() (step uint64, g tag, of *Team) {
	var v [3]uint64
	for i := range v {
		v[i] = atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.question(t.id)+8*uint64(i)))
	}
	for _, of := range t.pe.teams {
		if v[2] == collective.Mix(collective.Mix(v[0], v[1]), of.id) {
			return v[0], tag(v[1]), of
		}
	}
	return 0, 0, nil
}

// compare asks the PEs that a call waits for, and fails if a PE that has asked was, or is, in a
// different call. In Close it asks back instead of failing.
func (p *PE) compare(ctx context.Context, r *Request) error {
	closing := p.closing.Load()
	for i := range p.peers {
		t := &p.peers[i]
		waits := r.waitsFor(t)
		d, differ := p.answer(t, r, waits)
		if differ && !closing {
			return p.mismatch(ctx, r.op, t, d)
		}
		if differ || waits {
			if err := t.ask(ctx, r); err != nil && !closing { // a PE that has closed need not know
				return t.opError(r.op, err)
			}
		}
	}
	return nil
}

// answer compares the call that a peer has asked about with that of this PE at the same step of the
// same team. waits says that this PE waits for the peer in a call.
func (p *PE) answer(t *peer, r *Request, waits bool) (d difference, differ bool) {
	step, theirs, of := t.question()
	if of == nil || p.gone.Load() != nil && of.gone() != nil {
		return difference{}, false // calls of a team that has lost a PE end, whatever they are
	}
	if mine, ok := of.record.At(step); ok {
		return difference{theirs: theirs, mine: mine, of: of, in: of}, mine != theirs
	}
	if step <= of.record.Step {
		return difference{}, false // too long ago
	}
	// No call follows a Close.
	return r.differ(theirs, of), p.closing.Load() || waits && t.crosses(r, of, step)
}

// crosses reports whether the peer, which has asked about a call that this PE has not entered,
// waits in it, while this PE waits for the peer in a call of another team. The first time it may be
// that what the peer sent before it asked has just arrived. The second time this PE has looked for
// it again, and still waits.
func (t *peer) crosses(r *Request, of *Team, step uint64) bool {
	if of == r.team {
		return false
	}
	key := collective.Mix(collective.Mix(of.id, step), r.key())
	again := t.crossed == key
	t.crossed = key
	return again
}

// closeNumber is the number in the marks of the barrier in Close.
const closeNumber = 1

// outOfStep is the mark of a PE that closes and knows that the PEs are out of step: it differs in
// number from every other, so it is not compared.
const outOfStep = (closeNumber + 1) << markBits

// meet waits in Close until the others close, too, unless a PE is gone. If the PEs are out of step
// and the program does not know it yet, meet returns ErrMismatch and waits no longer.
func (p *PE) meet(ctx context.Context, op string) (err error) {
	p.world.record.add(kindClose, shape{})
	p.compared = p.failed.err == nil && !p.knows.Load()
	switch {
	case p.mustStop() != 0:
	case p.gone.Load() != nil:
		err = p.awaitSurvivors(ctx, op)
	case p.compared:
		err = p.awaitClose(ctx, op, p.world.record.mark(closeNumber))
	default:
		w := p.stopWord()
		if w == 0 {
			w = p.failed.stopWord(p.id)
		}
		p.stopAll(ctx, w)
		if err = p.awaitClose(ctx, op, outOfStep); errors.Is(err, transport.ErrPeerClosed) {
			err = nil // that PE has learned meanwhile that it need not wait
		}
	}
	w := p.mustStop()
	if w == 0 {
		return err
	}
	if err == nil || errors.As(err, new(*PEError)) {
		err = p.stopped(op, w)
	}
	p.compared = false
	p.stopAll(ctx, w)
	_ = p.quiet(ctx, op)
	return err
}

// awaitClose is the barrier in Close.
func (p *PE) awaitClose(ctx context.Context, op string, mark uint64) error {
	if err := p.quiet(ctx, op); err != nil {
		return err
	}
	x := &p.exchange
	p.lock()
	r := p.newRequest()
	r.arguments = arguments{op: op, kind: kindClose}
	r.team, r.step, r.tag = p.world, p.world.record.Step, p.world.record.Last()
	r.rounds = rounds{words: p.layout.closeRounds, number: closeNumber, mark: mark, distance: 1}
	x.requests = append(x.requests, r)
	x.under.Store(int32(len(x.requests)))
	x.mu.Unlock()
	return p.finish(ctx, r)
}

// awaitSurvivors waits in Close until the PEs of the last Shrink close, too, if they can.
func (p *PE) awaitSurvivors(ctx context.Context, op string) error {
	in := p.survivors
	if in == nil || in.closed || in.gone() != nil || p.failed.err != nil {
		return nil
	}
	a := syncOf(op)
	err := in.carryOut(ctx, &a)
	if errors.As(err, new(*PEError)) {
		return nil // as without a Shrink
	}
	return err
}
