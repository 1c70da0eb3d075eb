package shm

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/verbs"
)

// An arena is memory that AllocMemory has made, and that peers map too. A peer that has used the
// key of a region in it is granted the region, and from then on reads and writes it itself. This
// file is the end that owns the memory; its peer is in direct.go.
//
// The pages are a memfd's, and lie in memory of the Go heap, in place of its own. So the memory is
// an object like any other: it lives as long as somebody refers to it, also behind Close, which
// puts pages of this process only in their place.
type arena struct {
	id       uint64 // another one for each arena of the process
	pd       *PD
	mem      []byte // whole pages
	size     int    // what was asked for
	fd       int
	alias    []byte      // the same pages once more, in race builds; see unseen
	regions  int         // registered in it, guarded by arenas.mu
	isClosed bool        // likewise
	retired  atomic.Bool // it is granted to nobody any more
}

// arenas are those of a provider.
type arenas struct {
	mu   sync.Mutex
	list []*arena
}

const (
	// mostArena bounds an arena, bytes.
	mostArena = 1 << 42
	// mostShown is how many arenas a link has at a time. Others are reached through the ring.
	mostShown = 64
	// holdTime is how long a peer may take to end a copy if its queue pair names no time.
	holdTime = 4 * time.Second
)

var lastArena atomic.Uint64 //nolint:gochecknoglobals // the numbers of arenas

// AllocMemory makes memory that peers access themselves once they have used the key of a region in
// it, as verbs.MemoryAllocator says.
func (p *PD) AllocMemory(n int) (verbs.Memory, error) {
	const op = "allocate memory"
	d := p.dev
	if n <= 0 {
		return nil, d.core.Err(op, verbs.ErrInvalid, fmt.Sprintf("%d bytes", n))
	}
	d.mu.Lock()
	err := p.core.Usable(op)
	if err == nil {
		p.memories++
	}
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a := &arena{id: lastArena.Add(1), pd: p, size: n}
	if n > mostArena {
		err = fmt.Errorf("%w: %d bytes are too many", verbs.ErrNoMemory, n)
	} else if a.mem, a.alias, a.fd, err = newArena(n); err != nil {
		err = fmt.Errorf("%w: %w", verbs.ErrNoMemory, err)
	}
	if err != nil {
		p.forgetMemory()
		return nil, d.core.Err(op, err, fmt.Sprintf("%d bytes of shared memory, which count against the "+
			"memory limit (cgroup) of this process", n))
	}
	all := &d.provider.arenas
	all.mu.Lock()
	all.list = append(all.list, a)
	all.mu.Unlock()
	return a, nil
}

func (p *PD) forgetMemory() {
	p.dev.mu.Lock()
	p.memories--
	p.dev.mu.Unlock()
}

// Bytes is the memory.
func (a *arena) Bytes() []byte { return a.mem[:a.size:a.size] }

// Close takes the memory from the peers. If the system refuses that, it stays shared, and this
// process keeps it for good.
func (a *arena) Close() error {
	const op = "close memory"
	d := a.pd.dev
	all := &d.provider.arenas
	all.mu.Lock()
	err := error(nil)
	switch {
	case a.isClosed:
		err = d.core.Err(op, verbs.ErrClosed, "")
	case a.regions != 0:
		err = d.core.Err(op, verbs.ErrBusy, fmt.Sprintf("%d regions in it are open", a.regions))
	default:
		a.isClosed = true
	}
	all.mu.Unlock()
	if err != nil {
		return err
	}
	for _, d := range d.provider.devices {
		d.conceal(a)
	}
	if err := unshare(a.mem, a.fd); err != nil {
		return d.core.Err(op, fmt.Errorf("%w: %w", verbs.ErrNoMemory, err), "the memory stays shared")
	}
	closeFD(a.fd)
	if a.alias != nil {
		unmapMemory(a.alias)
	}
	all.mu.Lock()
	all.list = slices.DeleteFunc(all.list, func(b *arena) bool { return a == b })
	all.mu.Unlock()
	a.pd.forgetMemory()
	return nil
}

// unseen returns the memory of a region at an address that the race detector does not know the
// program by. Of what a peer does itself the detector sees nothing, so it does not see either that
// a word which a peer has set is behind the bytes that this end has written for it.
func (d *Device) unseen(rkey uint32, b []byte) []byte {
	m := d.shared[rkey]
	if m == nil || m.arena.retired.Load() {
		return b
	}
	off := addressOf(b) - addressOf(m.arena.mem)
	return m.arena.alias[off:][:len(b)]
}

// hold counts a region in the arena that has n bytes from addr; nil if there is none.
func (all *arenas) hold(addr, n uint64) *arena {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, a := range all.list {
		size := uint64(len(a.mem))
		if off := addr - addressOf(a.mem); off < size && n <= size-off && !a.isClosed {
			a.regions++
			return a
		}
	}
	return nil
}

func (all *arenas) release(a *arena) {
	all.mu.Lock()
	a.regions--
	all.mu.Unlock()
}

// closeShared closes a region in an arena: first no peer may begin to access it, then it waits for
// those that do.
func (m *MR) closeShared() error {
	d, key := m.dev, m.core.RKey()
	d.mu.Lock()
	if d.shared[key] != m {
		d.mu.Unlock()
		return m.core.Close() // it is closed
	}
	delete(d.shared, key)
	holders := d.withdraw(func(g *MR) bool { return g == m })
	d.mu.Unlock()
	d.await(holders)
	err := m.core.Close()
	d.provider.arenas.release(m.arena)
	return err
}

// remoteRights are those that a grant can contain.
const remoteRights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// consider grants the peer the region with a key that it has used in a request, if it is in an
// arena. It stays without if there is no room: the ring serves as well. Call it locked.
func (q *QP) consider(rkey uint32) {
	d, l := q.dev, q.in.lane
	l.considered = rkey
	m := d.shared[rkey]
	if m == nil || m.arena.retired.Load() || d.down.Load() || l.retired {
		return
	}
	rights := m.access & q.core.Attr.Access & remoteRights
	if q.core.Attr.MaxDestRDAtomic == 0 {
		rights &= verbs.AccessRemoteWrite
	}
	if l.given == nil {
		l.given = make([]*MR, mostGrants)
	}
	i := slices.Index(l.given, nil)
	if rights == 0 || i < 0 || slices.Contains(l.given, m) || !l.link.show(m.arena) {
		return
	}
	l.given[i] = m
	l.beginGrants()
	w := l.grant(i)
	atomic.StoreUint64(&w[1], m.core.Addr())
	atomic.StoreUint64(&w[2], m.core.Len())
	atomic.StoreUint64(&w[3], m.arena.id)
	atomic.StoreUint64(&w[4], m.core.Addr()-addressOf(m.arena.mem))
	atomic.StoreUint64(&w[0], uint64(rkey)|uint64(rights)<<32)
	l.endGrants()
}

// beginGrants makes wordGrants odd, so the peer does not believe what it reads before endGrants.
func (l *lane) beginGrants() {
	l.grants++
	l.store(wordGrants, l.grants)
}

func (l *lane) endGrants() {
	l.grants++
	l.store(wordGrants, l.grants)
}

// withdraw takes grants from the peer; nil takes all. If it returns true, the peer may be in a copy
// that it began before.
func (l *lane) withdraw(of func(m *MR) bool) bool {
	matches := false
	for i, m := range l.given {
		if m == nil || of != nil && !of(m) {
			continue
		}
		if !matches {
			matches = true
			l.beginGrants()
		}
		atomic.StoreUint64(&l.grant(i)[0], 0)
		l.given[i] = nil
	}
	if matches {
		l.considered = 0
		l.endGrants()
	}
	return matches && l.isHeld()
}

// isHeld reports whether the peer says that it copies. The word counts, and is odd meanwhile.
func (l *lane) isHeld() bool { return l.given != nil && !l.link.gone && l.load(wordHold)&1 != 0 }

// holder is a lane whose peer was in a copy when a grant was taken from it.
type holder struct {
	lane *lane
	word uint64
	time time.Duration // that the copy may take
}

// withdraw takes grants from all peers; nil takes all. It returns those that may be in a copy that
// they began before. Call it locked.
func (d *Device) withdraw(of func(m *MR) bool) (holders []holder) {
	for l := range d.in {
		for _, x := range l.lanes {
			if x.withdraw(of) {
				holders = append(holders, x.holder())
			}
		}
	}
	// Lanes that were given up have no grants, and may still be in a copy that began before.
	for _, x := range d.retired {
		if x.isHeld() {
			holders = append(holders, x.holder())
		}
	}
	return holders
}

func (l *lane) holder() holder {
	h := holder{l, l.load(wordHold), holdTime}
	if q := l.qp; q != nil && q.core.Attr.Timeout != 0 {
		h.time = q.patience()
	}
	return h
}

// await waits until the copies have ended. A process that is dead copies no more. One that is
// stopped is given its time; then its link ends, and what it could still write to is replaced.
func (d *Device) await(holders []holder) {
	for _, h := range holders {
		begun := time.Now()
		for i := 0; d.holds(&h); i++ {
			if i < 100 {
				yieldThread()
			} else {
				time.Sleep(50 * time.Microsecond)
			}
			if time.Since(begun) > h.time {
				d.expel(h.lane.link)
				break
			}
		}
	}
}

// holds reports whether a holder is in the copy still.
func (d *Device) holds(h *holder) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return h.lane.mem != nil && !h.lane.link.gone && h.lane.load(wordHold) == h.word
}

// expel ends a link whose peer stays in a copy, and retires the arenas that the peer has.
func (d *Device) expel(l *link) {
	d.mu.Lock()
	l.hangUp() // the rest is done by end, when hear sees it
	var shown []*arena
	for a := range l.shown {
		shown = append(shown, a)
	}
	d.mu.Unlock()
	for _, a := range shown {
		d.provider.retire(a)
	}
	d.lockAll()
	l.gone = true
	d.unlockAll()
}

// retire puts pages of this process in the place of an arena's, with the same bytes, so a peer that
// copies on reaches nobody. Peers that keep to the rules have ended their copies before.
func (p *Provider) retire(a *arena) {
	if a.retired.Swap(true) {
		return
	}
	for _, d := range p.devices {
		d.mu.Lock()
		holders := d.withdraw(func(m *MR) bool { return m.arena == a })
		d.mu.Unlock()
		d.await(holders)
	}
	_ = privatise(a.mem, a.fd) // without memory for it, the peer's copy is its own risk
}

// show passes an arena to the peer, unless it has it. It reports false if there is no room. Call it
// locked.
func (l *link) show(a *arena) bool {
	if _, has := l.shown[a]; has {
		return true
	}
	if len(l.shown) >= mostShown || l.ended {
		return false
	}
	fd, err := dupFD(a.fd)
	if err != nil {
		return false
	}
	if l.shown == nil {
		l.shown = map[*arena]struct{}{}
	}
	l.shown[a] = struct{}{}
	l.tell(note{kind: noteArena, id: a.id, size: uint64(len(a.mem))}, fd)
	return true
}

// conceal tells the peers that have an arena that it is gone. They have no grant in it any more.
func (d *Device) conceal(a *arena) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := range d.in {
		if _, has := l.shown[a]; has {
			delete(l.shown, a)
			l.tell(note{kind: noteArenaGone, id: a.id}, -1)
		}
	}
}
