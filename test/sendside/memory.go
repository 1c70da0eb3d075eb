package sendside

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"sync"
)

// Every operation has memory of its own, on both sides. What a byte must hold is therefore known at
// all times: poison before it is given to an operation, and again in a source that the program has
// got back; noise from a place in a table where data has landed; and what was found there when an
// operation ended that did not succeed, since nobody may touch it after that.
const (
	arenaSize = 96 << 10
	reserved  = 2 << 10 // the end of it, for what brings a run to its end
	libraryAt = 64      // bytes before it are words for atomics
	library   = 2 << 10 // the end of bytes that hold noise all along, for gets
	maxNoise  = 4 << 10 // no operation is longer
	fresh     = 0xa5    // memory that nobody has used
	// a source after its completion: it is the program's again, who has other plans for it
	returned = 0xdb
	allNoise = 64 << 10 // places in the table
)

var (
	noise    = makeNoise()
	poisoned = bytes.Repeat([]byte{fresh}, arenaSize)
	scribble = bytes.Repeat([]byte{returned}, maxNoise)
	hashSeed = maphash.MakeSeed()
	arenas   = sync.Pool{New: func() any { return &alignedArena{} }}
)

// alignedArena is memory that begins at a multiple of eight.
type alignedArena struct {
	_     [0]uint64
	bytes [arenaSize]byte
}

// makeNoise fills a table with bytes that are none of the poisons.
func makeNoise() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	table := make([]byte, allNoise+maxNoise)
	for i := range table {
		for table[i] = fresh; table[i] == fresh || table[i] == returned; {
			table[i] = byte(rng.Uint32())
		}
	}
	return table
}

// noisy is n bytes of noise from a place in the table.
func noisy(key, n int) []byte { return noise[key : key+n] }

// span is a piece of a host's memory.
type span struct{ off, n int }

// memory is a host's memory: one region, dealt out from the front.
type memory struct {
	whole   *alignedArena
	arena   []byte
	used    int
	settled []settled
}

// settled is memory whose content must not change any more.
type settled struct {
	span
	key  int // of the noise that it holds; keySum: see sum; keyScribbled
	sum  uint64
	what string // whose it was
}

const (
	keySum       = -1
	keyScribbled = -2
)

func newMemory() *memory {
	m := &memory{whole: arenas.Get().(*alignedArena), used: library}
	m.arena = m.whole.bytes[:]
	copy(m.arena, poisoned)
	clear(m.arena[:libraryAt])
	copy(m.arena[libraryAt:library], noise)
	return m
}

func (m *memory) free() { arenas.Put(m.whole) }

func (m *memory) bytes(s span) []byte { return m.arena[s.off : s.off+s.n : s.off+s.n] }

// alloc gives out n bytes, followed by some that nobody gets.
func (m *memory) alloc(n int) (span, bool) {
	size := (n + 15) &^ 7
	if m.used+size > arenaSize-reserved {
		return span{}, false
	}
	s := span{m.used, n}
	m.used += size
	return s, true
}

// reserve gives out the memory that is kept for the end, as if nobody had used it.
func (m *memory) reserve(n int) span {
	s := span{arenaSize - reserved, n}
	copy(m.bytes(s), poisoned)
	return s
}

// holds says whether a span holds the noise that begins at key.
func (m *memory) holds(s span, key int) bool { return bytes.Equal(m.bytes(s), noisy(key, s.n)) }

// untouched says whether nobody has written to a span.
func (m *memory) untouched(s span) bool { return bytes.Equal(m.bytes(s), poisoned[:s.n]) }

// partly says whether every byte of a span is fresh, or the noise that begins at key.
func (m *memory) partly(s span, key int) bool {
	for i, v := range m.bytes(s) {
		if v != fresh && v != noise[key+i] {
			return false
		}
	}
	return true
}

// settle fixes what a span holds now.
func (m *memory) settle(s span, key int, what string) {
	if s.n == 0 {
		return
	}
	e := settled{span: s, key: key, what: what}
	if key == keySum {
		e.sum = maphash.Bytes(hashSeed, m.bytes(s))
	}
	m.settled = append(m.settled, e)
}

// reuse is what a program does with a source that it has got back.
func (m *memory) reuse(s span, what string) {
	copy(m.bytes(s), scribble)
	m.settle(s, keyScribbled, what)
}

// audit finds settled memory that has changed, and memory written to that was never given out.
func (m *memory) audit() (what string, at span, ok bool) {
	for i := range m.settled {
		e := &m.settled[i]
		var good bool
		switch e.key {
		case keySum:
			good = maphash.Bytes(hashSeed, m.bytes(e.span)) == e.sum
		case keyScribbled:
			good = bytes.Equal(m.bytes(e.span), scribble[:e.n])
		default:
			good = m.holds(e.span, e.key)
		}
		if !good {
			return e.what, e.span, false
		}
	}
	if s := (span{libraryAt, library - libraryAt}); !m.holds(s, 0) {
		return "memory that is only read", s, false
	}
	if rest := (span{m.used, arenaSize - reserved - m.used}); !m.untouched(rest) {
		return "memory that nobody has asked for", rest, false
	}
	return "", span{}, true
}

func (m *memory) word(off int) uint64 { return binary.NativeEndian.Uint64(m.arena[off:]) }
