package tagged

import "ibverbx/internal/list"

// entry is the part of a waiting receive, or of a waiting message, that matching uses.
type entry struct {
	tag, mask uint64 // the mask of a message is Exact
	seq       uint64 // of a receive: its place in the order of posting

	bucket   *list.List[entry] // the bucket of a hashTable that the entry is in; nil outside
	inBucket list.Link[entry]
	inList   list.Link[entry] // of posted.wild or unexpected.all

	req *Request // the receive, or
	in  *inbound // the message
}

// takes reports whether the receive e takes messages with a tag. One above MaxTag is only for those
// of its team.
func (e *entry) takes(tag uint64) bool {
	return (tag^e.tag)&e.mask == 0 && (tag <= MaxTag || e.tag > MaxTag)
}

// hashTable finds the first entry with a tag. The entries of a bucket are in the order of arrival.
//
// Invariant: len(buckets) is 1<<(64-shift), and at least half of count; factor is odd.
type hashTable struct {
	buckets []list.List[entry] // nil until init
	factor  uint64
	shift   uint8
	count   int // entries
}

// bucket returns a tag's bucket. It spreads tags by the upper bits of their product with a factor
// that no peer knows. For a factor drawn at random, two tags share one of n buckets with a
// probability of 2/n at most, whichever tags a peer chooses (Dietzfelbinger et al., J. Algorithms
// 25, 1997). Which entry is found does not depend on the factor, so runs with different ones do the
// same.
func (t *hashTable) bucket(tag uint64) *list.List[entry] {
	return &t.buckets[tag*t.factor>>t.shift]
}

func (t *hashTable) init(factor uint64) {
	t.buckets, t.factor, t.shift = make([]list.List[entry], 64), factor|1, 64-6
}

// find returns the first entry with a tag, or nil.
func (t *hashTable) find(tag uint64) *entry {
	for l := t.bucket(tag).Front(); l != nil; l = l.Next() {
		if e := l.Owner(); e.tag == tag {
			return e
		}
	}
	return nil
}

func (t *hashTable) push(e *entry) {
	if t.count++; t.count > 2*len(t.buckets) {
		t.grow()
	}
	e.bucket = t.bucket(e.tag)
	e.bucket.PushBack(&e.inBucket, e)
}

func (t *hashTable) remove(e *entry) {
	t.count--
	e.bucket.Remove(&e.inBucket)
}

// grow doubles the table. Entries that share a bucket keep their order.
func (t *hashTable) grow() {
	old := t.buckets
	t.buckets, t.shift = make([]list.List[entry], 2*len(old)), t.shift-1
	for i := range old {
		for e := old[i].PopFront(); e != nil; e = old[i].PopFront() {
			e.bucket = t.bucket(e.tag)
			e.bucket.PushBack(&e.inBucket, e)
		}
	}
}

// posted holds waiting receives, for any peer or for one. Those for a single tag are hashed, the
// others are in a list. Sequence numbers tell which of two was posted first.
//
// Invariant: count is the number of entries of exact and wild together; wild is in the order of
// seq.
type posted struct {
	count int
	exact hashTable
	wild  list.List[entry]
}

// push adds a receive. Its number is larger than all earlier ones.
func (p *posted) push(e *entry, seq uint64) {
	p.count++
	if e.seq = seq; e.mask == Exact {
		p.exact.push(e)
	} else {
		p.wild.PushBack(&e.inList, e)
	}
}

func (p *posted) remove(e *entry) {
	p.count--
	if e.mask == Exact {
		p.exact.remove(e)
	} else {
		p.wild.Remove(&e.inList)
	}
}

// find returns the first receive that takes a tag, or nil.
func (p *posted) find(tag uint64) *entry {
	var first *entry
	if p.exact.count != 0 {
		first = p.exact.find(tag)
	}
	if tag >= noteClass<<56 {
		return first // only one tag is ever received
	}
	for l := p.wild.Front(); l != nil; l = l.Next() {
		e := l.Owner()
		if first != nil && first.seq < e.seq {
			break
		}
		if e.takes(tag) {
			return e
		}
	}
	return first
}

// all returns the receives in any order: when they all end at once, a program cannot tell which was
// first.
func (p *posted) all() []*entry {
	all := make([]*entry, 0, p.count)
	for i := range p.exact.buckets {
		for l := p.exact.buckets[i].Front(); l != nil; l = l.Next() {
			all = append(all, l.Owner())
		}
	}
	for l := p.wild.Front(); l != nil; l = l.Next() {
		all = append(all, l.Owner())
	}
	return all
}

// matching pairs the receives for any peer with the messages of all peers. Each endpoint holds the
// receives for that peer alone, and has its messages in Endpoint.kept, too; all share the sequence
// numbers and the factor. Worker.mu guards it.
//
// Invariant: no receive that waits takes a message that waits.
type matching struct {
	posted     posted
	receives   uint64 // receives posted so far, which number them
	unexpected unexpected
	claimed    list.List[entry] // messages that the program has taken out of unexpected: see Message
	factor     uint64           // of all hash tables
}

// init makes the tables.
func (m *matching) init(factor uint64) {
	m.factor = factor
	m.posted.exact.init(factor)
	m.unexpected.hash(factor)
}

// number numbers a receive that is posted.
func (m *matching) number() uint64 {
	m.receives++
	return m.receives
}

// unexpected holds waiting messages, of all peers or of one: in a list, for receives of several
// tags, and hashed by tag, for receives of one tag, once the table has been made.
//
// Invariant: both hold the same messages, in the order in which they arrived.
type unexpected struct {
	byTag hashTable
	all   list.List[entry]
}

func (u *unexpected) push(e *entry) {
	if u.byTag.buckets != nil {
		u.byTag.push(e)
	}
	u.all.PushBack(&e.inList, e)
}

func (u *unexpected) remove(e *entry) {
	if u.byTag.buckets != nil {
		u.byTag.remove(e)
	}
	u.all.Remove(&e.inList)
}

// hash makes the table.
func (u *unexpected) hash(factor uint64) {
	u.byTag.init(factor)
	for l := u.all.Front(); l != nil; l = l.Next() {
		u.byTag.push(l.Owner())
	}
}

// find returns the first message that a receive takes, or nil.
func (u *unexpected) find(tag, mask uint64) *inbound {
	if u.all.Empty() {
		return nil
	}
	if mask == Exact && u.byTag.buckets != nil {
		if e := u.byTag.find(tag); e != nil {
			return e.in
		}
		return nil
	}
	for l := u.all.Front(); l != nil; l = l.Next() {
		if e := l.Owner(); (e.tag^tag)&mask == 0 && (mask == Exact || e.tag <= MaxTag || tag > MaxTag) {
			return e.in
		}
	}
	return nil
}
