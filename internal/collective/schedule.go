package collective

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// Buffer is a memory that ranges are in.
type Buffer uint8

// The buffers; the package comment describes them.
const (
	None Buffer = iota // of the place at the peer: only the peer knows it
	Src
	Dst
	Tmp
	Land // of Step.Peer
)

// Range is a range of elements of a buffer.
type Range struct {
	Buffer   Buffer
	Off, Len int
}

// part returns n elements from off on.
func (r Range) part(off, n int) Range { return Range{r.Buffer, r.Off + off, n} }

// Action is what a step does.
type Action uint8

// The actions.
const (
	Send    Action = iota // From to Peer, where it belongs in To
	Receive               // To from Peer
	Combine               // To = From op With. Either may be in Land of Peer
	Copy                  // To = From
)

// Step is one step of a rank.
type Step struct {
	Action Action
	Peer   int
	// Number counts the messages from one rank to another, from 0: the sender's step and the
	// receiver's have the same.
	Number         int
	From, With, To Range
}

// Schedule is what one rank does in a call. It never changes, so any number of runs may share it.
//
// Invariant: each edge goes from an earlier step to a later one.
type Schedule struct {
	Shape Shape
	Steps []Step
	Tmp   int // elements of scratch memory

	after  edges   // by step, those that must be done before it begins
	before edges   // by step, those that wait until it is done
	next   []int32 // the next send to the same peer, or receive from it, which begins later; 0 for none
	needs  []int32 // how many events a step waits for
}

// edges has a list of steps for each step: that of i is list[at[i]:at[i+1]].
type edges struct{ list, at []int32 }

func (e *edges) of(i int) []int32 { return e.list[e.at[i]:e.at[i+1]] }

// After returns the steps that must be done before step i begins.
func (s *Schedule) After(i int) []int32 { return s.after.of(i) }

// New makes the schedule of a shape.
func New(shape Shape) (*Schedule, error) {
	m, err := shape.validate()
	if err != nil {
		return nil, err
	}
	s := m.make(shape)
	if len(s.Steps) > math.MaxInt32 {
		return nil, fmt.Errorf("collective: %v by %v: %d steps: raise Piece", shape.Kind, shape.Algorithm,
			len(s.Steps))
	}
	return s, nil
}

// make makes the schedule of a shape that the method does not refuse.
func (m *method) make(shape Shape) *Schedule {
	shape.Counts, shape.Receives = slices.Clone(shape.Counts), slices.Clone(shape.Receives)
	b := &builder{
		Schedule: &Schedule{Shape: shape},
		n:        shape.Ranks, rank: shape.Rank,
		memory: map[place]history{},
		sends:  make([]channel, shape.Ranks), receives: make([]channel, shape.Ranks),
		gate: -1,
	}
	b.after.at = []int32{0}
	b.blocks = offsets(shape.Ranks, shape.Count, shape.Counts)
	m.build(b)
	b.link()
	return b.Schedule
}

// builder makes the steps of one rank in the order of a program that does one thing at a time, and
// finds out which of them must wait for which.
type builder struct {
	*Schedule
	n, rank  int
	blocks   []int // where each block begins, and where the last ends
	memory   map[place]history
	sends    []channel // by peer
	receives []channel
	gate     int32   // a step that all later ones wait for; -1 for none
	deps     []int32 // of the step that is being made
	uses     []*use  // for parts
}

// place is a part of a buffer, of one peer if it is Land: elements window to window+wide*Piece-1.
// No step uses more than Piece, and so than two windows.
type place struct {
	buffer Buffer
	peer   int
	window int
}

// wide keeps histories short: a vector may have many thousands of pieces.
const wide = 64

// channel has the steps that send to one peer, or receive from it.
type channel struct{ steps []int32 }

// history says for each part of a place which steps have used it last. The parts cover all of it.
type history []use

// use is what steps have done to the part of a buffer from off to the next use.
type use struct {
	off     int
	writer  int32   // the last step that writes it; -1 for none
	readers []int32 // those that read it after that
}

// split makes a part begin at off, and returns its index.
func (h *history) split(off int) int {
	i := sort.Search(len(*h), func(i int) bool { return (*h)[i].off >= off })
	if i < len(*h) && (*h)[i].off == off {
		return i
	}
	u := (*h)[i-1]
	u.off, u.readers = off, slices.Clone(u.readers)
	*h = slices.Insert(*h, i, u)
	return i
}

// parts returns the uses of a range. They are valid until the next call.
func (b *builder) parts(r Range, peer int) []*use {
	p := place{buffer: r.Buffer}
	if r.Buffer == Land {
		p.peer = peer
	}
	b.uses = b.uses[:0]
	size := wide * b.Shape.Piece
	for off, end := r.Off, r.Off+r.Len; off < end; off = p.window + size {
		p.window = off / size * size
		h := b.memory[p]
		if h == nil {
			h = history{{off: p.window, writer: -1}}
		}
		i := h.split(off)
		j := h.split(min(end, p.window+size))
		b.memory[p] = h
		for ; i < j; i++ {
			b.uses = append(b.uses, &h[i])
		}
	}
	return b.uses
}

// read makes step i wait for what writes the range.
func (b *builder) read(i int32, r Range, peer int) {
	if r.Buffer == None {
		return
	}
	for _, u := range b.parts(r, peer) {
		b.wait(u.writer)
		u.readers = append(u.readers, i)
	}
}

// write makes step i wait for what reads the range, and for what writes it.
func (b *builder) write(i int32, r Range, peer int) {
	for _, u := range b.parts(r, peer) {
		for _, reader := range u.readers {
			if reader != i {
				b.wait(reader)
			}
		}
		b.wait(u.writer)
		u.writer, u.readers = i, nil
	}
}

// wait makes the next step wait for step i, if it is one.
func (b *builder) wait(i int32) {
	if i >= 0 && !slices.Contains(b.deps, i) {
		b.deps = append(b.deps, i)
	}
}

// add adds a step that waits for those in deps.
func (b *builder) add(s Step) int32 {
	b.wait(b.gate)
	b.Steps = append(b.Steps, s)
	b.after.list = append(b.after.list, b.deps...)
	b.after.at = append(b.after.at, int32(len(b.after.list)))
	b.deps = b.deps[:0]
	return int32(len(b.Steps) - 1)
}

// message numbers the next message of a channel, and waits until the one Depth before is done.
func (b *builder) message(c *channel) (number int) {
	number = len(c.steps)
	if number >= b.Shape.Depth {
		b.wait(c.steps[number-b.Shape.Depth])
	}
	c.steps = append(c.steps, int32(len(b.Steps)))
	return number
}

// slot returns where the message with a number lands.
func (b *builder) slot(number, n int) Range {
	return Range{Land, number % b.Shape.Depth * b.Shape.Piece, n}
}

// sendPiece sends one message.
func (b *builder) sendPiece(peer int, from, to Range) {
	number := b.message(&b.sends[peer])
	if to.Buffer == Land {
		to = b.slot(number, from.Len)
	}
	b.read(int32(len(b.Steps)), from, peer)
	b.add(Step{Action: Send, Peer: peer, Number: number, From: from, To: to})
}

// receivePiece receives one message, and returns its step and where it is.
func (b *builder) receivePiece(peer int, to Range) (step int32, at Range) {
	number := b.message(&b.receives[peer])
	if to.Buffer == Land {
		to = b.slot(number, to.Len)
	}
	b.write(int32(len(b.Steps)), to, peer)
	return b.add(Step{Action: Receive, Peer: peer, Number: number, To: to}), to
}

// send sends a range in pieces. to is where it belongs at the peer: only Land need not have an
// offset.
func (b *builder) send(peer int, from, to Range) {
	for off, piece := 0, b.Shape.Piece; off < from.Len; off += piece {
		n := min(piece, from.Len-off)
		b.sendPiece(peer, from.part(off, n), to.part(off, n))
	}
}

// receive receives a range in pieces.
func (b *builder) receive(peer int, to Range) {
	for off, piece := 0, b.Shape.Piece; off < to.Len; off += piece {
		b.receivePiece(peer, to.part(off, min(piece, to.Len-off)))
	}
}

// combine receives a range in pieces and combines it with own. What arrives is the left operand if
// left is set.
func (b *builder) combine(peer int, own, to Range, left bool) {
	for off, piece := 0, b.Shape.Piece; off < to.Len; off += piece {
		n := min(piece, to.Len-off)
		_, at := b.receivePiece(peer, Range{Land, 0, n})
		s := Step{Action: Combine, Peer: peer, From: own.part(off, n), With: at, To: to.part(off, n)}
		if left {
			s.From, s.With = s.With, s.From
		}
		b.local(s)
	}
}

// copy copies a range in pieces.
func (b *builder) copy(from, to Range) {
	for off, piece := 0, b.Shape.Piece; from != to && off < from.Len; off += piece {
		n := min(piece, from.Len-off)
		b.local(Step{Action: Copy, From: from.part(off, n), To: to.part(off, n)})
	}
}

// local adds a Combine or a Copy.
func (b *builder) local(s Step) {
	i := int32(len(b.Steps))
	b.read(i, s.From, s.Peer)
	b.read(i, s.With, s.Peer)
	b.write(i, s.To, s.Peer)
	b.add(s)
}

// scratch takes n more elements of Tmp.
func (b *builder) scratch(n int) Range {
	r := Range{Tmp, b.Tmp, n}
	b.Tmp += n
	return r
}

// link fills in what follows from Steps and after.
func (b *builder) link() {
	n := len(b.Steps)
	b.next, b.needs = make([]int32, n), make([]int32, n)
	b.before = edges{list: make([]int32, len(b.after.list)), at: make([]int32, n+1)}
	for _, i := range b.after.list {
		b.before.at[i+1]++
	}
	for i := range n {
		b.before.at[i+1] += b.before.at[i]
	}
	end := slices.Clone(b.before.at)
	for i := range n {
		for _, a := range b.after.of(i) {
			b.before.list[end[a]] = int32(i)
			end[a]++
		}
		b.needs[i] = int32(len(b.after.of(i)))
	}
	for _, channels := range [...][]channel{b.sends, b.receives} {
		for _, c := range channels {
			for k := 1; k < len(c.steps); k++ {
				b.next[c.steps[k-1]] = c.steps[k]
				b.needs[c.steps[k]]++
			}
		}
	}
}

// offsets returns where each of n blocks begins, and where the last ends.
func offsets(n, count int, counts []int) []int {
	at := make([]int, n+1)
	for i := range n {
		if counts != nil {
			count = counts[i]
		}
		at[i+1] = at[i] + count
	}
	return at
}

// Cache keeps the schedules of the last shapes. The zero value is empty. It is not safe for
// concurrent use; the schedules are.
type Cache struct {
	kept [16]*Schedule
	last int // the newest
}

// Schedule returns the schedule of a shape, which it makes if it has none.
func (c *Cache) Schedule(shape *Shape) (*Schedule, error) {
	for i := range c.kept {
		if s := c.kept[i]; s != nil && s.Shape.equal(shape) {
			return s, nil
		}
	}
	s, err := New(*shape)
	if err == nil {
		c.last = (c.last + 1) % len(c.kept)
		c.kept[c.last] = s
	}
	return s, err
}

// Stage is how far a step of a run has come.
type Stage uint8

// The stages.
const (
	Waiting Stage = iota // for other steps
	Ready                // Next will return it
	Begun                // Next has returned it
	Ended                // Done was called
)

// Run is one call of a schedule that is being carried out. The zero value is ready for Start. It
// belongs to one goroutine at a time.
//
// Invariant: a step is Waiting while its needs are not 0; ready and sends have the steps that are
// Ready, once each; left counts the steps that are not Ended.
type Run struct {
	s     *Schedule
	needs []int32
	stage []Stage
	ready queue // receives, combinations and copies
	sends queue
	left  int
}

// queue has step numbers in the order in which they became ready. Every step enters it at most once
// in a run, so it never wraps.
type queue struct {
	steps []int32
	head  int
}

// Start begins a call. It drops an earlier one, whatever has become of it, and allocates nothing if
// that had as many steps.
func (r *Run) Start(s *Schedule) {
	n := len(s.Steps)
	r.s, r.left = s, n
	r.needs = append(r.needs[:0], s.needs...)
	if cap(r.stage) < n {
		r.stage = make([]Stage, n)
		r.ready.steps, r.sends.steps = make([]int32, 0, n), make([]int32, 0, n)
	}
	r.stage = r.stage[:n]
	clear(r.stage)
	r.ready = queue{steps: r.ready.steps[:0]}
	r.sends = queue{steps: r.sends.steps[:0]}
	for i, needs := range r.needs {
		if needs == 0 {
			r.enqueue(int32(i))
		}
	}
}

func (r *Run) enqueue(i int32) {
	r.stage[i] = Ready
	q := &r.ready
	if r.s.Steps[i].Action == Send {
		q = &r.sends
	}
	q.steps = append(q.steps, i)
}

// met records that one thing that a step waits for has happened.
func (r *Run) met(i int32) {
	if r.needs[i]--; r.needs[i] == 0 {
		r.enqueue(i)
	}
}

// Next returns the index of a step that the transport must begin now; ok is false if there is none
// until another is done. Sends come last.
func (r *Run) Next() (i int, ok bool) {
	q := &r.ready
	if q.head == len(q.steps) {
		q = &r.sends
	}
	if q.head == len(q.steps) {
		return 0, false
	}
	i = int(q.steps[q.head])
	q.head++
	r.stage[i] = Begun
	if next := r.s.next[i]; next != 0 {
		r.met(next)
	}
	return i, true
}

// Done records that a step which Next has returned is done. It panics if Next has not, or if the
// step was done before.
func (r *Run) Done(i int) {
	if r.stage[i] != Begun {
		panic(fmt.Sprintf("collective: step %d is done in stage %d", i, r.stage[i]))
	}
	r.stage[i] = Ended
	r.left--
	for _, next := range r.s.before.of(i) {
		r.met(next)
	}
}

// Step returns step i of the schedule.
func (r *Run) Step(i int) *Step { return &r.s.Steps[i] }

// More reports whether another message to the peer of a send, or from that of a receive, follows.
func (r *Run) More(i int) bool { return r.s.next[i] != 0 }

// Finished reports whether all steps are done.
func (r *Run) Finished() bool { return r.left == 0 }

// Stage returns how far step i has come. A call that is late waits for the peers of the sends and
// receives that are Begun.
func (r *Run) Stage(i int) Stage { return r.stage[i] }
