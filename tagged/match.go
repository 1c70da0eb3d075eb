package tagged

// entry is what matching knows of a receive that waits for a message, or of a message that waits
// for a receive.
type entry struct {
	tag, mask uint64 // the mask of a message is Exact
	seq       uint64 // the order in which entries came

	hashNext, hashPrev *entry
	listNext, listPrev *entry

	req *Request // one of the two
	in  *inbound
}

// takes reports whether the receive e takes messages with a tag.
func (e *entry) takes(tag uint64) bool { return (tag^e.tag)&e.mask == 0 }

// entryList is a list of entries in the order in which they came.
type entryList struct{ head, tail *entry }

func (l *entryList) push(e *entry) {
	e.listNext, e.listPrev = nil, l.tail
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.listNext = e
	}
	l.tail = e
}

func (l *entryList) remove(e *entry) {
	if e.listPrev == nil {
		l.head = e.listNext
	} else {
		e.listPrev.listNext = e.listNext
	}
	if e.listNext == nil {
		l.tail = e.listPrev
	} else {
		e.listNext.listPrev = e.listPrev
	}
	e.listNext, e.listPrev = nil, nil
}

// hashTable finds the first entry with a tag. Entries of a bucket stand in the order in which they
// came.
//
// Invariant: len(buckets) is 1<<(64-shift), and at least half of count.
type hashTable struct {
	buckets []bucket
	shift   uint8
	count   int
}

type bucket struct{ head, tail *entry }

// bucket spreads tags by their product with 2^64 divided by the golden ratio: the upper bits depend
// on all of the tag's.
func (t *hashTable) bucket(tag uint64) *bucket { return &t.buckets[tag*0x9e3779b97f4a7c15>>t.shift] }

func (t *hashTable) init() { t.buckets, t.shift = make([]bucket, 64), 64-6 }

func (t *hashTable) find(tag uint64) *entry {
	for e := t.bucket(tag).head; e != nil; e = e.hashNext {
		if e.tag == tag {
			return e
		}
	}
	return nil
}

func (t *hashTable) push(e *entry) {
	if t.count++; t.count > 2*len(t.buckets) {
		t.grow()
	}
	t.bucket(e.tag).push(e)
}

func (b *bucket) push(e *entry) {
	e.hashNext, e.hashPrev = nil, b.tail
	if b.tail == nil {
		b.head = e
	} else {
		b.tail.hashNext = e
	}
	b.tail = e
}

func (t *hashTable) remove(e *entry) {
	t.count--
	b := t.bucket(e.tag)
	if e.hashPrev == nil {
		b.head = e.hashNext
	} else {
		e.hashPrev.hashNext = e.hashNext
	}
	if e.hashNext == nil {
		b.tail = e.hashPrev
	} else {
		e.hashNext.hashPrev = e.hashPrev
	}
	e.hashNext, e.hashPrev = nil, nil
}

// grow doubles the table. What shared a bucket keeps its order.
func (t *hashTable) grow() {
	old := t.buckets
	t.buckets, t.shift = make([]bucket, 2*len(old)), t.shift-1
	for i := range old {
		for e := old[i].head; e != nil; {
			next := e.hashNext
			t.bucket(e.tag).push(e)
			e = next
		}
	}
}

// posted are the receives that wait: those for one tag hashed, the others in a list. Sequence
// numbers tell which came first.
type posted struct {
	exact hashTable
	wild  entryList
	count int
	seq   uint64
}

func (p *posted) push(e *entry) {
	p.seq++
	p.count++
	if e.seq = p.seq; e.mask == Exact {
		p.exact.push(e)
	} else {
		p.wild.push(e)
	}
}

func (p *posted) remove(e *entry) {
	p.count--
	if e.mask == Exact {
		p.exact.remove(e)
	} else {
		p.wild.remove(e)
	}
}

// take removes and returns the first receive that takes a tag, or nil.
func (p *posted) take(tag uint64) *Request {
	if p.count == 0 {
		return nil
	}
	first := p.exact.find(tag)
	for e := p.wild.head; e != nil && (first == nil || e.seq < first.seq); e = e.listNext {
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

// unexpected are the messages that wait: hashed by tag for receives that take one, and in a list
// for the others.
type unexpected struct {
	byTag hashTable
	all   entryList
}

func (u *unexpected) push(e *entry) {
	u.byTag.push(e)
	u.all.push(e)
}

func (u *unexpected) remove(e *entry) {
	u.byTag.remove(e)
	u.all.remove(e)
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
	for e := u.all.head; e != nil; e = e.listNext {
		if (e.tag^tag)&mask == 0 {
			return e.in
		}
	}
	return nil
}
