// Package list is a doubly linked list whose links are fields of the elements: it allocates
// nothing, and removes an element from the middle without a search. An element with several links
// can be in as many lists.
//
//	type job struct {
//		queue list.Link[job]
//	}
//	var q list.List[job]
//	q.PushBack(&j.queue, j)
//	for l := q.Front(); l != nil; l = l.Next() { use(l.Owner()) }
//	q.Remove(&j.queue)
//
// A link points to its owner, which costs a word and a load. The two alternatives are worse: a
// method of the element that returns its link is an indirect call in generic code, which the
// compiler does not inline; computing the owner from the link's address needs unsafe.
package list

// Link is an element's place in a list. The zero value is in none. It must not be copied while it
// is in a list.
type Link[T any] struct {
	next, prev *Link[T]
	owner      *T // nil while it is in no list
}

// Next returns the next link; nil for the last.
func (n *Link[T]) Next() *Link[T] { return n.next }

// Owner returns the element; nil while the link is in no list.
func (n *Link[T]) Owner() *T { return n.owner }

// Listed reports whether the link is in a list.
func (n *Link[T]) Listed() bool { return n.owner != nil }

// List is a list of elements. The zero value is empty. It is not safe for concurrent use.
//
// Invariant: head and tail are both nil or both set; count links lead from head to tail by next,
// and back by prev; each has an owner.
type List[T any] struct {
	head, tail *Link[T]
	count      int
}

// Len returns the number of elements.
func (l *List[T]) Len() int { return l.count }

// Empty reports whether the list has no element.
func (l *List[T]) Empty() bool { return l.head == nil }

// Front returns the link of the first element; nil if there is none.
func (l *List[T]) Front() *Link[T] { return l.head }

// First returns the first element; nil if there is none.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.owner
}

// PushBack appends an element by one of its links, which must be in no list.
func (l *List[T]) PushBack(n *Link[T], owner *T) {
	n.owner, n.prev = owner, l.tail
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
	l.count++
}

// PushFront puts an element before all others by one of its links, which must be in no list.
func (l *List[T]) PushFront(n *Link[T], owner *T) {
	n.owner, n.next = owner, l.head
	if l.head == nil {
		l.tail = n
	} else {
		l.head.prev = n
	}
	l.head = n
	l.count++
}

// Remove takes an element out by its link, which must be in this list.
func (l *List[T]) Remove(n *Link[T]) {
	next, prev := n.next, n.prev
	if prev == nil {
		l.head = next
	} else {
		prev.next = next
	}
	if next == nil {
		l.tail = prev
	} else {
		next.prev = prev
	}
	n.next, n.prev, n.owner = nil, nil, nil
	l.count--
}

// PopFront takes the first element out and returns it; nil if there is none.
func (l *List[T]) PopFront() *T {
	n := l.head
	if n == nil {
		return nil
	}
	owner := n.owner
	l.Remove(n)
	return owner
}
