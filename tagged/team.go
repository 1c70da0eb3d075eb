package tagged

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/collective"
	"ibverbx/verbs"
)

// Team is some of the ranks that have joined, in an order of its own: it has its own messages and
// collective calls, which never meet those of another team. [Worker.World] is the team of all. It
// is safe for concurrent use.
//
// A member is one of 0 to Size-1 within the team. Messages go over the endpoints that Peer returns,
// and have the tags that Tag returns.
//
// Invariant: members and the index of the world are nil: its ranks are those of the worker. number
// is even, and larger than that of each team that a member was in before.
type Team struct {
	w        *Worker
	number   uint32
	rank     int
	members  []int       // the rank in the world of each member
	index    map[int]int // the reverse
	shrinks  int         // how many ranks the next Shrink leaves out at least; Worker.mu guards it
	exchange exchange
}

// Group is who makes a collective call: a [Team], or a [Worker] for all of its ranks.
type Group interface{ team() *Team }

func (t *Team) team() *Team { return t }

// teamOf returns the team of a group, nil if there is none.
func teamOf(g Group) *Team {
	if g == nil {
		return nil
	}
	return g.team()
}

// Rank returns this process's number in the team.
func (t *Team) Rank() int { return t.rank }

// Size returns the number of members.
func (t *Team) Size() int {
	if t.members == nil {
		return t.w.cfg.Size
	}
	return len(t.members)
}

// String returns "world", or "team" and a number that all members agree on.
func (t *Team) String() string {
	if t.number == 0 {
		return "world"
	}
	return fmt.Sprintf("team %d", t.number/2)
}

// world returns the rank in the world of a member.
func (t *Team) world(rank int) int {
	if t.members == nil {
		return rank
	}
	return t.members[rank]
}

// find returns the member that is a rank of the world, or -1.
func (t *Team) find(world int) int {
	if t.members == nil {
		return world // -1 for an endpoint that the program has made
	}
	if rank, ok := t.index[world]; ok {
		return rank
	}
	return -1
}

// Translate returns the number in another team of the same worker of a member of this one; -1 if it
// is in one of them only.
func (t *Team) Translate(rank int, other *Team) int {
	if rank < 0 || rank >= t.Size() {
		return -1
	}
	return other.find(t.world(rank))
}

// RankOf returns which member an endpoint leads to, such as [Info].Source; -1 if it is none.
func (t *Team) RankOf(e *Endpoint) int {
	if e == nil || e.w != t.w {
		return -1
	}
	return t.find(e.rank)
}

// Peer returns the endpoint to a member: see [Worker.Peer].
func (t *Team) Peer(rank int) (*Endpoint, error) {
	if rank < 0 || rank >= t.Size() {
		return nil, refuse("peer", verbs.ErrInvalid, "rank %d: of %d ranks of the %v the numbers are 0 to %d",
			rank, t.Size(), t, t.Size()-1)
	}
	return t.w.Peer(t.world(rank))
}

// AnyOfTeam is the mask of a receive of any tag of a team, w.Recv(t.Tag(0), tagged.AnyOfTeam, buf).
// A mask for the tags of a team has its upper 32 bits.
const AnyOfTeam = uint64(1<<32-1) << 32

// Tag returns the tag of the team's messages with a number. Sends and receives with it go to and
// come from members only; after [Team.Close] they are refused. The lower 32 bits of [Info].Tag are
// the number.
func (t *Team) Tag(number uint32) uint64 { return teamClass<<56 | t.prefix() | uint64(number) }

// prefix is the team's part of its tags.
func (t *Team) prefix() uint64 { return uint64(t.number) << 32 }

// Barrier waits until every member has called it.
func (t *Team) Barrier(ctx context.Context) error {
	return collect[uint8](ctx, t, call{kind: collective.Barrier}, nil, nil, 0)
}

// StartBarrier starts [Team.Barrier].
func (t *Team) StartBarrier() (*Request, error) {
	return start[uint8](t, call{kind: collective.Barrier}, nil, nil, 0)
}

// Split makes teams of the members that pass the same color, in the order of their keys, and of
// their ranks where these are equal. A member with a color below zero is in none, and gets nil. All
// members call it, as a collective call, and it ends as one.
//
// A rank makes one team at a time: otherwise Split fails with ErrBusy, and has no effect.
func (t *Team) Split(ctx context.Context, color, key int) (*Team, error) {
	return t.make(ctx, t, opSplit, color, key)
}

// Dup makes a team of the same members, as [Team.Split] does.
func (t *Team) Dup(ctx context.Context) (*Team, error) { return t.Split(ctx, 0, 0) }

// Shrink makes a team of the members without some, which have failed, hang or are not needed. All
// others call it with the same list, and nothing is asked of those in it. Calls of the old team end
// with ErrCanceled on all members, and no further one works; its messages go on, and it stays to be
// closed. The members that are left keep their order. They must outlive the failure: ibverbx run
// lets them with --continue.
//
// If another member fails meanwhile, or a context ends, Shrink fails on those that it keeps
// waiting. A member that has got a team all the same finds out in a call of that. Then those that
// are left call Shrink of the old team again, with a longer list: one of the same length is refused
// then. Lists of the same length that differ are refused with ErrMismatch; if their lengths differ,
// or one leaves out who calls with the other, the members wait for each other until their contexts
// end.
func (t *Team) Shrink(ctx context.Context, without ...int) (*Team, error) {
	const op = "shrink"
	without = slices.Compact(slices.Sorted(slices.Values(without)))
	if ctx == nil {
		return nil, refuse(op, verbs.ErrInvalid, "no context")
	}
	for _, rank := range without {
		if rank < 0 || rank >= t.Size() || rank == t.rank {
			return nil, refuse(op, verbs.ErrInvalid, "rank %d: this one is %d of %d: name others", rank,
				t.rank, t.Size())
		}
	}
	if err := t.mayShrink(op, len(without)); err != nil {
		return nil, err
	}
	t.exchange.retire(fmt.Errorf("%w: rank %d shrinks the %v", ErrCanceled, t.world(t.rank), t), true)
	var members []int
	for rank := range t.Size() {
		if !slices.Contains(without, rank) {
			members = append(members, t.world(rank))
		}
	}
	// The members that are left know each other, and have a number for this one call.
	some := t.w.teams.newTeam(t.number|1, members)
	x := &some.exchange
	x.base = uint64(len(without))
	x.record.Step = x.base
	x.record.Hash = hashAll(0, without)
	t.w.sweep(func(_ *Endpoint, tag uint64) bool { // what is left of shorter lists
		return tag>>56 == callClass && numberOf(tag) == some.number &&
			(stepOf(tag)-x.base-1)%tagSteps > mostUnderWay
	})
	x.init()
	defer x.retire(refuse(op, ErrClosed, ""), false)
	return t.make(ctx, some, opShrink, 0, 0)
}

// Close ends the team for this rank: what its program waits for in it ends with ErrClosed, and its
// messages that nothing has received are dropped, also those that come later. Others need not close
// it at the same time, but must not need this rank any more. The world ends with [Worker.Close],
// which closes all teams.
func (t *Team) Close() error {
	w := t.w
	if t.number == 0 {
		return refuse("close team", verbs.ErrInvalid, "the world ends with its worker")
	}
	err := refuse(t.String(), ErrClosed, "")
	w.mu.Lock()
	if w.teams.of(t.number) != t {
		w.mu.Unlock()
		return refuse("close team", ErrClosed, "")
	}
	delete(w.teams.known, t.number)
	w.matching.posted.endTeam(t, err)
	for _, e := range w.endpoints.list {
		e.posted.endTeam(t, err)
	}
	w.mu.Unlock()
	t.exchange.retire(err, false)
	w.sweep(func(_ *Endpoint, tag uint64) bool { return t.owns(tag) })
	return nil
}

// mayShrink refuses to shrink a closed team, or by as many members as before: messages of that call
// may still be on their way.
func (t *Team) mayShrink(op string, without int) error {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	switch {
	case t.w.closed || t.w.teams.of(t.number) != t:
		return refuse(op, ErrClosed, t.String())
	case without < t.shrinks:
		return refuse(op, verbs.ErrInvalid, "%d ranks are left out: this call must leave out more than the "+
			"last one, at least %d", without, t.shrinks)
	}
	t.shrinks = without + 1
	return nil
}

// owns reports whether a tag is of the team, or of what it shrinks to.
func (t *Team) owns(tag uint64) bool {
	return tag > MaxTag && numberOf(tag)&^1 == t.number&^1
}

// endTeam completes the receives of a team's messages.
func (p *posted) endTeam(t *Team, err error) {
	for _, m := range p.all() {
		if m.tag>>56 == teamClass && t.owns(m.tag) {
			p.remove(m)
			m.req.complete(err)
		}
	}
}

// The classes of tags, in the upper 8 bits; the team's number is in the next 24.
const (
	teamClass uint64 = 0xfd + iota // messages of the program in a team
	noteClass                      // notes
	callClass                      // collective calls
)

// mostTeams is the number of the last team.
const mostTeams = 1<<24 - 2

// numberOf returns the number of the team that a tag above MaxTag is of.
func numberOf(tag uint64) uint32 { return uint32(tag>>32) & (1<<24 - 1) }

// teams are those that this rank is in. mu is taken before Worker.mu.
//
// Invariant: next is even, and above the numbers of all teams that this rank has been in.
type teams struct {
	w      *Worker
	world  Team
	due    atomic.Bool // a request of a collective call has completed since the last drive
	making atomic.Bool // a team is being made

	mu       sync.Mutex
	active   []*exchange // those that may have something to do
	underWay int         // collective calls in all of them

	// Worker.mu guards these.
	known map[uint32]*Team
	next  uint32
}

func (s *teams) init(w *Worker) {
	s.w = w
	s.world.w, s.world.rank = w, w.cfg.Rank
	s.world.exchange.teams, s.world.exchange.t = s, &s.world
}

// join begins the calls of the world.
func (s *teams) join() {
	s.w.mu.Lock()
	s.add(&s.world)
	s.w.mu.Unlock()
	s.world.exchange.init()
}

// add adds a team that messages may arrive for.
func (s *teams) add(t *Team) {
	if s.known == nil {
		s.known = map[uint32]*Team{}
	}
	s.known[t.number] = t
	s.next = t.number + 2
}

// of returns the team that a number is of, nil if there is none.
func (s *teams) of(number uint32) *Team {
	if number &^= 1; number == 0 && s.next != 0 {
		return &s.world
	}
	return s.known[number]
}

// newTeam returns a team of some ranks of the world, of which this is one.
func (s *teams) newTeam(number uint32, members []int) *Team {
	t := &Team{w: s.w, number: number, members: members, index: make(map[int]int, len(members))}
	for i, world := range members {
		t.index[world] = i
	}
	t.rank = t.index[s.w.cfg.Rank]
	t.exchange.teams, t.exchange.t = s, t
	return t
}

// make agrees with the members of some on the teams that they make out of this one, and on their
// number.
func (t *Team) make(ctx context.Context, some *Team, op ReduceOp, color, key int) (*Team, error) {
	const fields = 3
	s := &t.w.teams
	c := call{kind: collective.AllGather, op: op}
	if !s.making.CompareAndSwap(false, true) {
		return nil, refuse(c.name(), ErrBusy, "it makes a team")
	}
	defer s.making.Store(false)
	t.w.mu.Lock()
	mine := [fields]int64{int64(color), int64(key), int64(s.next)}
	t.w.mu.Unlock()
	all := make([]int64, fields*some.Size())
	if err := collect(ctx, some, c, all, mine[:], fields); err != nil {
		return nil, err
	}
	var number int64
	var ranks []int
	for rank := range some.Size() {
		row := all[fields*rank:]
		number = max(number, row[2])
		if row[0] == int64(color) {
			ranks = append(ranks, rank)
		}
	}
	if number > mostTeams || number%2 != 0 {
		return nil, refuse("team", verbs.ErrInvalid, "number %d: no rank is in more than %d teams", number,
			mostTeams/2)
	}
	slices.SortStableFunc(ranks, func(a, b int) int {
		return cmp.Compare(all[fields*a+1], all[fields*b+1])
	})
	for i, rank := range ranks {
		ranks[i] = some.world(rank)
	}
	if color < 0 {
		return nil, nil //nolint:nilnil // it is in no team
	}
	made := s.newTeam(uint32(number), ranks)
	t.w.mu.Lock()
	s.add(made)
	t.w.mu.Unlock()
	t.w.sweep(func(e *Endpoint, tag uint64) bool { return made.owns(tag) && !s.has(e, tag) })
	made.exchange.init()
	return made, nil
}

// refuses returns why the program cannot send or receive with a tag above MaxTag; nil if it can.
// The endpoint is nil for a receive from any.
func (s *teams) refuses(op string, e *Endpoint, tag, mask uint64) error {
	number := numberOf(tag)
	t := s.of(number)
	switch {
	case tag>>56 != teamClass || number%2 != 0 || number >= s.next:
		return refuse(op, verbs.ErrInvalid, "the tag is above MaxTag, and that of no team")
	case mask < AnyOfTeam:
		return refuse(op, verbs.ErrInvalid, "mask %#x: with the tag of a team it must have the upper 32 bits",
			mask)
	case t == nil:
		return refuse(op, ErrClosed, "the team of the tag")
	case e != nil && t.find(e.rank) < 0:
		return e.refuse(op, verbs.ErrInvalid, "it is not in the "+t.String())
	}
	return nil
}

// admits returns an error if a peer cannot send a message with a tag above MaxTag.
func (s *teams) admits(e *Endpoint, tag uint64) error {
	if e.rank < 0 {
		return fmt.Errorf("a message with tag %#x: it is no rank", tag)
	}
	return nil
}

// has reports whether a rank is in the team of a tag, as far as this one knows. One that is not may
// send in it all the same: if only some have made a team, because the others gave up, its number
// may be that of another team of these. Nothing receives what it sends.
func (s *teams) has(e *Endpoint, tag uint64) bool {
	t := s.of(numberOf(tag))
	return t == nil || t.find(e.rank) >= 0
}

// wanted reports whether a message with a tag above MaxTag may be received yet. One of a team that
// this rank has left, or of calls that have ended, is not.
func (s *teams) wanted(tag uint64) bool {
	number := numberOf(tag)
	if number >= s.next {
		return true // this rank may be about to be in it
	}
	t := s.of(number)
	return t != nil && (number%2 != 0 || tag>>56 == teamClass || !t.exchange.over)
}

// drive carries out what can be done in the calls under way. It does not wait: a goroutine that
// holds mu looks at due again when it has released it.
func (s *teams) drive() {
	for s.due.Load() && s.mu.TryLock() {
		s.due.Store(false)
		for _, x := range s.active {
			x.advanceAll()
		}
		s.mu.Unlock()
	}
}

// release releases mu for a goroutine of the program, and does what has become due meanwhile.
func (s *teams) release() {
	s.mu.Unlock()
	s.drive()
}

// close ends the calls of all teams, because the worker is closed.
func (s *teams) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.active {
		if x.stopped == nil {
			x.stopped = err
			x.endAll(stopFailed, x.t.rank, "")
		}
	}
}
