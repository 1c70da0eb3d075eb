package shmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"

	"ibverbx/internal/collective"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Group says which PEs make a collective call together: a [Team], or a [PE], which stands for the
// team of all.
type Group interface{ team() *Team }

// teamOf returns the team of a group; nil, which no call can enter, if the group is nil.
func teamOf(on Group) *Team {
	if on == nil {
		return nil
	}
	return on.team()
}

// Team is some of the PEs, numbered anew from 0: the ranks of the team. They make collective calls
// together, which never meet those of another team. Roots and the order of parts are ranks; puts,
// gets, errors and everything else have the PEs' own numbers.
//
// Each PE has a Team of its own for the same team. What holds for collective calls holds for those
// of all its teams together: one at a time, on one goroutine. PEs that are in several teams make
// the calls of all of them in the same order.
//
// A PE outside the team has a nil Team, whose calls return verbs.ErrInvalid.
type Team struct {
	pe      *PE
	name    string
	id      uint64  // the same on all its PEs and of no other team; 0 of the team of all PEs
	rank    int     // of this PE
	members []*peer // by rank

	// Guarded by PE.collective.
	record  record
	plans   [kinds]plan // the last of each kind
	shrinks uint64      // how often this team was shrunk
	slot    int         // of the word that says how many calls the PE has entered, the same on all PEs
	closed  bool
}

// maxTeams is the most teams of a PE at a time, that of all PEs included.
const maxTeams = 64

// newWorldTeam makes the team of all PEs.
func newWorldTeam(p *PE) *Team {
	t := &Team{pe: p, name: "world", rank: p.id, members: make([]*peer, len(p.peers))}
	for i := range p.peers {
		t.members[i] = &p.peers[i]
	}
	return t
}

// Team returns the team of all PEs, whose ranks are their numbers.
func (p *PE) Team() *Team { return p.world }

func (p *PE) team() *Team   { return p.world }
func (t *Team) team() *Team { return t }

// Rank returns this PE's rank; -1 if t is nil.
func (t *Team) Rank() int {
	if t == nil {
		return -1
	}
	return t.rank
}

// Size returns the number of PEs; 0 if t is nil.
func (t *Team) Size() int {
	if t == nil {
		return 0
	}
	return len(t.members)
}

// String returns the team's name in errors: `team "world"` is that of all PEs, and `team "world/2"`
// is one that a Split of it has made of color 2; `team "world/0:3:4"` is one of SplitStrided. A nil
// Team is "no team".
func (t *Team) String() string {
	if t == nil {
		return "no team"
	}
	return fmt.Sprintf("team %q", t.name)
}

// Translate returns the rank in another team of the PE that has a rank in this one; -1 if there is
// none, or no such team. The rank in [PE.Team] is the PE's number.
func (t *Team) Translate(rank int, to *Team) int {
	if to == nil || uint(rank) >= uint(t.Size()) {
		return -1
	}
	return to.rankOf(t.members[rank].id)
}

// rankOf returns the rank of a PE; -1 if it has none.
func (t *Team) rankOf(pe int) int {
	if t.isWorld() {
		return pe
	}
	return slices.IndexFunc(t.members, func(m *peer) bool { return m.id == pe })
}

func (t *Team) isWorld() bool { return t == t.pe.world }

// gone returns the failure of a PE of the team; nil if none has failed. A team without the PE that
// has failed goes on.
func (t *Team) gone() *PEError {
	if t.isWorld() {
		return t.pe.gone.Load()
	}
	for _, m := range t.members {
		err := m.gone.Load()
		if err != nil && (!t.pe.closing.Load() || !errors.Is(err, transport.ErrPeerClosed)) {
			return err // a PE that closes a little earlier than this one has sent all that it owes
		}
	}
	return nil
}

// Sync waits until every PE of the team has called it. Like [PE.Sync] it completes no operation:
// call Quiet before it for that.
func (t *Team) Sync(ctx context.Context) error {
	const op = "sync"
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	return t.sync(ctx, op)
}

// StartSync starts a Sync.
func (t *Team) StartSync() (*Request, error) { return start(t, syncOf("sync")) }

func syncOf(op string) arguments {
	return arguments{op: op, kind: kindBarrier, part: part{kind: collective.Barrier}}
}

// sync is Sync with collective held. Only the team of all PEs has words for a barrier; others send
// messages.
func (t *Team) sync(ctx context.Context, op string) error {
	a := syncOf(op)
	return t.carryOut(ctx, &a)
}

// Split makes new teams of the PEs that pass the same color, and returns this PE's. Their ranks are
// in the order of the keys, and for equal keys in that of the ranks in t. A PE with a negative
// color is in none of them, and gets nil. It is collective. If the PEs of a color are in 64
// teams already, all get the same [verbs.ErrNotSupported], which has no effect.
func (t *Team) Split(ctx context.Context, color, key int) (*Team, error) {
	const op = "split"
	if err := t.enter(op); err != nil {
		return nil, err
	}
	defer t.pe.collective.Unlock()
	return t.split(ctx, op, shape{}, color, key, strconv.Itoa(color))
}

// SplitStrided makes a team of size PEs: those with the ranks start, start+stride, and so on in t,
// in this order. All others get nil. It is collective; all PEs pass the same arguments. If they
// name a rank that does not exist, or one twice, the error is verbs.ErrInvalid, and the call of all
// other PEs ends with [ErrMismatch].
func (t *Team) SplitStrided(ctx context.Context, start, stride, size int) (*Team, error) {
	const op = "split strided"
	if err := t.enter(op); err != nil {
		return nil, err
	}
	defer t.pe.collective.Unlock()
	n := len(t.members)
	if uint(start) >= uint(n) || size < 1 || size > n || size > 1 && (stride == 0 || stride <= -n ||
		stride >= n || uint(start+(size-1)*stride) >= uint(n)) {
		return nil, t.pe.refuse(ctx, kindSplit, invalid(op, "start %d, stride %d, size %d: the ranks of %v "+
			"are 0 to %d", start, stride, size, t, n-1))
	}
	color, key := -1, 0
	for i := range size {
		if start+i*stride == t.rank {
			color, key = 0, i
		}
	}
	all := collective.Mix(collective.Mix(collective.Mix(0, uint64(start)), uint64(stride)), uint64(size))
	all = 1 + all>>44 // 20 bits, so that the tag has them, and no zero, which is Split
	name := fmt.Sprintf("%d:%d:%d", start, stride, size)
	return t.split(ctx, op, shape{n: int(all)}, color, key, name)
}

// seat is what a PE passes to Split.
type seat struct{ color, key, rank int }

// seatBytes is the length of what it passes: the color, the key, and the slots that are taken.
const seatBytes = 24

// split is Split with collective held. The names of teams end in name.
func (t *Team) split(ctx context.Context, op string, s shape, color, key int, name string) (*Team, error) {
	p := t.pe
	mine := make([]byte, 0, seatBytes)
	for _, v := range [...]uint64{uint64(color), uint64(key), p.taken()} {
		mine = binary.LittleEndian.AppendUint64(mine, v)
	}
	all := make([]byte, seatBytes*len(t.members))
	a := gatherOf(op, kindSplit, all, mine)
	a.shape = s
	if err := t.carryOut(ctx, &a); err != nil {
		return nil, err
	}
	taken := map[int]uint64{} // by color
	var same []seat
	for i := range t.members {
		b := all[seatBytes*i:]
		s := seat{int(binary.LittleEndian.Uint64(b)), int(binary.LittleEndian.Uint64(b[8:])), i}
		if s.color < 0 {
			continue
		}
		if taken[s.color] |= binary.LittleEndian.Uint64(b[16:]); taken[s.color] == 1<<maxTeams-1 {
			return nil, opError(op, fmt.Errorf("%w: the PEs of color %d have %d teams: close some",
				verbs.ErrNotSupported, s.color, maxTeams))
		}
		if s.color == color {
			same = append(same, s)
		}
	}
	if color < 0 {
		return nil, nil //nolint:nilnil // in no team
	}
	slices.SortStableFunc(same, func(a, b seat) int { return cmp.Compare(a.key, b.key) })
	return t.child(same, name, bits.TrailingZeros64(^taken[color])), nil
}

// child makes the team of some seats.
func (t *Team) child(seats []seat, name string, slot int) *Team {
	c := &Team{pe: t.pe, name: t.name + "/" + name, slot: slot}
	c.id = collective.Mix(t.record.Hash, uint64(seats[0].color))
	for i, at := range seats {
		if at.rank == t.rank {
			c.rank = i
		}
		c.members = append(c.members, t.members[at.rank])
	}
	c.record.Hash = c.id
	t.pe.enlist(c)
	return c
}

// enlist adds a team to those of the PE, in a slot that is free.
func (p *PE) enlist(t *Team) {
	p.lock()
	p.teams = append(p.teams, t)
	p.exchange.mu.Unlock()
	t.enterCall(0)
}

// taken has a bit for each slot that a team of the PE has.
func (p *PE) taken() (slots uint64) {
	for _, t := range p.teams {
		slots |= 1 << t.slot
	}
	return slots
}

// Close ends this PE's part of the team, which makes room for another one. It is not collective,
// and does not wait: the other PEs may still be in the last call. The team of all PEs cannot be
// closed.
func (t *Team) Close() error {
	const op = "close team"
	if t != nil && t.isWorld() {
		return invalid(op, "%v has all PEs, and ends with them", t)
	}
	if err := t.enter(op); err != nil {
		return err
	}
	defer t.pe.collective.Unlock()
	t.enterCall(callsMask) // until the slot is used again: it has entered all that others are in
	t.closed = true
	t.pe.lock()
	defer t.pe.exchange.mu.Unlock()
	t.pe.teams = slices.DeleteFunc(t.pe.teams, func(o *Team) bool { return o == t })
	return nil
}
