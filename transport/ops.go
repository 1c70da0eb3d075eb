package transport

// opKind is what an operation that is outstanding stands for.
type opKind uint8

const (
	opData    opKind = iota // an active message, a put or a get
	opUnpack                // a get whose data is to be copied out of its bounce buffer
	opAtomic                // its result is in the slot's cell
	opControl               // a message of the transport itself
	opFlush                 // was never posted: fires when everything before it has
)

// op is an outstanding operation.
type op struct {
	comp   *Completion // may be nil
	dst    []byte      // opUnpack: where the data goes
	result *uint64     // opAtomic: where the old value goes; may be nil
	buf    int32       // its bounce buffer, or noBuffer
	kind   opKind
}

// opRing holds the outstanding operations of an endpoint, oldest first. A virtual queue pair
// completes in posting order, so the next completion is always the head's.
//
// It grows to what is really outstanding, so that with many endpoints it stays in the cache.
//
// Invariant: head <= tail <= head+len(slots); every slot between them but those of opFlush has a
// completion to come.
type opRing struct {
	slots      []op // a power of two
	mask       uint32
	head, tail uint32
}

// minOps is the first size of a ring.
const minOps = 8

func (r *opRing) init() { r.slots, r.mask = make([]op, minOps), minOps-1 }

// push opens the next slot and returns it as its last user left it.
func (r *opRing) push() *op {
	if r.len() == len(r.slots) {
		r.grow()
	}
	r.tail++
	return &r.slots[(r.tail-1)&r.mask]
}

func (r *opRing) grow() {
	slots := make([]op, 2*len(r.slots))
	mask := uint32(len(slots) - 1)
	for i := r.head; i != r.tail; i++ {
		slots[i&mask] = r.slots[i&r.mask]
	}
	r.slots, r.mask = slots, mask
}

func (r *opRing) len() int    { return int(r.tail - r.head) }
func (r *opRing) front() *op  { return &r.slots[r.head&r.mask] }
func (r *opRing) empty() bool { return r.head == r.tail }
