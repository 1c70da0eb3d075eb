package tagged

import "ibverbx/internal/list"

// entry is what matching knows of a receive that waits for a message, or of a message that waits
// for a receive.
type entry struct {
	tag, mask uint64 // the mask of a message is Exact
	seq       uint64 // of receives: the order in which they were posted

	inBucket list.Link[entry] // of hashTable
	inList   list.Link[entry] // of posted.wild or unexpected.all

	req *Request // the receive, or
	in  *inbound // the message
}

// takes reports whether the receive e takes messages with a tag.
func (e *entry) takes(tag uint64) bool { return (tag^e.tag)&e.mask == 0 }

// hashTable finds the first entry with a tag. Entries of a bucket stand in the order in which they
// came.
//
// Invariant: len(buckets) is 1<<(64-shift), and at least half of count.
type hashTable struct {
	buckets []list.List[entry]
	shift   uint8
	count   int // entries
}

// bucket spreads tags by their product with 2^64 divided by the golden ratio: the upper bits depend
// on all of the tag's.
func (t *hashTable) bucket(tag uint64) *list.List[entry] {
	return &t.buckets[tag*0x9e3779b97f4a7c15>>t.shift]
}

func (t *hashTable) init() { t.buckets, t.shift = make([]list.List[entry], 64), 64-6 }

// find is the first entry with a tag, or nil.
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
	t.bucket(e.tag).PushBack(&e.inBucket, e)
}

func (t *hashTable) remove(e *entry) {
	t.count--
	t.bucket(e.tag).Remove(&e.inBucket)
}

// grow doubles the table. Entries that share a bucket keep their order.
func (t *hashTable) grow() {
	old := t.buckets
	t.buckets, t.shift = make([]list.List[entry], 2*len(old)), t.shift-1
	for i := range old {
		for e := old[i].PopFront(); e != nil; e = old[i].PopFront() {
			t.bucket(e.tag).PushBack(&e.inBucket, e)
		}
	}
}

// posted are the receives that wait: those for one tag hashed, the others in a list. Sequence
// numbers say which of two came first.
//
// Invariant: count is the number of entries of exact and wild together; wild is in the order of
// seq.
type posted struct {
	exact hashTable
	wild  list.List[entry]
	count int
	seq   uint64 // of the last one that was pushed
}

func (p *posted) push(e *entry) {
	p.seq++
	p.count++
	if e.seq = p.seq; e.mask == Exact {
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

// take removes and returns the first receive that takes a tag, or nil.
func (p *posted) take(tag uint64) *Request {
	if p.count == 0 {
		return nil
	}
	first := p.exact.find(tag)
	for l := p.wild.Front(); l != nil; l = l.Next() {
		e := l.Owner()
		if first != nil && first.seq < e.seq {
			break
		}
		if e.takes(tag) {
			first = e
			break
		}
	}
	if first == nil {
		return nil
	}
	p.remove(first)
	return first.req
}

// unexpected are the messages that wait: hashed by tag for receives of one tag, and in a list for
// receives of several.
//
// Invariant: both hold the same messages.
type unexpected struct {
	byTag hashTable
	all   list.List[entry]
}

func (u *unexpected) push(e *entry) {
	u.byTag.push(e)
	u.all.PushBack(&e.inList, e)
}

func (u *unexpected) remove(e *entry) {
	u.byTag.remove(e)
	u.all.Remove(&e.inList)
}

// find returns the first message that a receive takes, or nil.
func (u *unexpected) find(tag, mask uint64) *inbound {
	if u.byTag.count == 0 {
		return nil
	}
	if mask == Exact {
		if e := u.byTag.find(tag); e != nil {
			return e.in
		}
		return nil
	}
	for l := u.all.Front(); l != nil; l = l.Next() {
		if e := l.Owner(); (e.tag^tag)&mask == 0 {
			return e.in
		}
	}
	return nil
}
