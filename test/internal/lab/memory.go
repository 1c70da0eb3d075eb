package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sort"
	"sync"
)

// These are the contents of a host's memory.
const (
	Keys     = 64 << 10 // places in the table of noise at which data may begin
	MaxNoise = 8 << 10  // no data is longer
	fresh    = 0xa5     // unused memory
	returned = 0xdb     // a source whose request has completed, reused by the program

	mostArena = 160 << 10
)

var (
	noise    = makeNoise()
	poisoned = bytes.Repeat([]byte{fresh}, mostArena)
	scribble = bytes.Repeat([]byte{returned}, MaxNoise)
	hashSeed = maphash.MakeSeed()
	arenas   = sync.Pool{New: func() any { return new(arena) }}
)

// arena begins at a multiple of eight, for atomics.
type arena struct {
	_     [0]uint64
	bytes [mostArena]byte
}

// makeNoise fills a table with bytes other than the poisons.
func makeNoise() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	table := make([]byte, Keys+MaxNoise)
	for i := range table {
		for table[i] = fresh; table[i] == fresh || table[i] == returned; {
			table[i] = byte(rng.Uint32())
		}
	}
	return table
}

// Noise returns the n bytes of noise that begin at a key.
func Noise(key, n int) []byte { return noise[key : key+n] }

// Scribble overwrites a source that the program has got back.
func Scribble(b []byte) { copy(b, scribble) }

// Span is a piece of a host's memory.
type Span struct{ Off, N int }

// Part returns n bytes of the span, from one of its bytes on.
func (s Span) Part(from, n int) Span { return Span{s.Off + from, n} }

// Split cuts the span behind n bytes.
func (s Span) Split(n int) (head, tail Span) { return s.Part(0, n), s.Part(n, s.N-n) }

// Layout is the division of a host's memory, from its beginning.
type Layout struct {
	Size  int
	Words int // bytes before this one are zero: words for atomics
	Noise int // those before this one always hold noise, for reads
	Spare int // bytes at the end, for the requests that end a run
}

// Memory is a host's memory: one region, given out from the front, a piece for each request and
// never the same twice, so each byte's value is known. Unused memory is poisoned. A request carries
// noise from some place in a table, its key. Memory that no request may write to any more is
// settled, and must not change.
//
// Invariant: Layout.Noise <= used <= limit <= Layout.Size; bytes from used on are poisoned, except
// those that Reserve has given out.
type Memory struct {
	Layout
	whole    *arena
	arena    []byte
	used     int
	limit    int
	reserved bool // Reserve has given out the spare bytes
	pieces   []piece
	settled  []settled
}

// piece is memory that was given out. It begins where the one before it ends.
type piece struct {
	end   int
	owner any
}

// settled is memory whose content must not change any more.
type settled struct {
	Span
	key int    // of the noise that it holds, AsItIs or scribbled
	sum uint64 // of AsItIs: hash of what it held
}

// Keys of memory that holds no noise.
const (
	AsItIs    = -1 // its contents when it was settled
	scribbled = -2
)

// NewMemory makes unused memory.
func NewMemory(l Layout) *Memory {
	m := &Memory{Layout: l, whole: arenas.Get().(*arena), used: l.Noise, limit: l.Size - l.Spare}
	m.arena = m.whole.bytes[:l.Size]
	copy(m.arena, poisoned)
	clear(m.arena[:l.Words])
	copy(m.arena[l.Words:l.Noise], noise)
	return m
}

// Free lets another world use the memory.
func (m *Memory) Free() { arenas.Put(m.whole) }

// Bytes returns the contents of a span.
func (m *Memory) Bytes(s Span) []byte { return m.arena[s.Off : s.Off+s.N : s.Off+s.N] }

// Used returns how many bytes at the beginning are in use.
func (m *Memory) Used() int { return m.used }

// Alloc gives n bytes to a request, aligned for atomics and followed by some unused ones.
func (m *Memory) Alloc(n int, owner any) (Span, bool) {
	size := (n + 15) &^ 7
	if m.used+size > m.limit {
		return Span{}, false
	}
	s := Span{m.used, n}
	m.used += size
	m.pieces = append(m.pieces, piece{m.used, owner})
	return s, true
}

// Owner returns the request that has the memory at an offset; nil for none.
func (m *Memory) Owner(off int) any {
	i := sort.Search(len(m.pieces), func(i int) bool { return m.pieces[i].end > off })
	if off < m.Noise || i == len(m.pieces) {
		return nil
	}
	return m.pieces[i].owner
}

// UseSpare lets Alloc give out the spare bytes.
func (m *Memory) UseSpare() { m.limit = m.Size }

// Reserve gives out spare bytes, always the same, as if unused.
func (m *Memory) Reserve(n int) Span {
	m.reserved = true
	s := Span{m.Size - m.Spare, n}
	copy(m.Bytes(s), poisoned)
	return s
}

// Fill writes the noise of a key into a span.
func (m *Memory) Fill(s Span, key int) { copy(m.Bytes(s), noise[key:]) }

// FillDrawn draws a key, and writes its noise into a span.
func (m *Memory) FillDrawn(s Span, rng *rand.Rand) (key int) {
	key = rng.IntN(Keys)
	m.Fill(s, key)
	return key
}

// Holds reports whether a span holds the noise of a key.
func (m *Memory) Holds(s Span, key int) bool { return bytes.Equal(m.Bytes(s), Noise(key, s.N)) }

// Untouched reports whether a span was never written to.
func (m *Memory) Untouched(s Span) bool { return bytes.Equal(m.Bytes(s), poisoned[:s.N]) }

// Partly reports whether each byte of a span is untouched or holds the noise of a key.
func (m *Memory) Partly(s Span, key int) bool {
	for i, v := range m.Bytes(s) {
		if v != fresh && v != noise[key+i] {
			return false
		}
	}
	return true
}

// Settle fixes the contents of a span: the noise of a key, or its present contents.
func (m *Memory) Settle(s Span, key int) {
	if s.N == 0 {
		return
	}
	e := settled{Span: s, key: key}
	if key == AsItIs {
		e.sum = maphash.Bytes(hashSeed, m.Bytes(s))
	}
	m.settled = append(m.settled, e)
}

// Reuse overwrites a source that the program has got back.
func (m *Memory) Reuse(s Span) {
	Scribble(m.Bytes(s))
	m.Settle(s, scribbled)
}

// keeps reports whether settled memory is unchanged.
func (m *Memory) keeps(e *settled) bool {
	switch e.key {
	case AsItIs:
		return maphash.Bytes(hashSeed, m.Bytes(e.Span)) == e.sum
	case scribbled:
		return bytes.Equal(m.Bytes(e.Span), scribble[:e.N])
	}
	return m.Holds(e.Span, e.key)
}

// Audit finds settled memory that has changed, and writes to memory that was never given out.
func (m *Memory) Audit() (what string, at Span, ok bool) {
	for i := range m.settled {
		if e := &m.settled[i]; !m.keeps(e) {
			return fmt.Sprintf("memory of %v", m.Owner(e.Off)), e.Span, false
		}
	}
	if s := (Span{m.Words, m.Noise - m.Words}); !m.Holds(s, 0) {
		return "memory that is only read", s, false
	}
	end := m.Size
	if m.reserved {
		end -= m.Spare
	}
	if rest := (Span{m.used, end - m.used}); !m.Untouched(rest) {
		return "memory that was not given out", rest, false
	}
	return "", Span{}, true
}

// Word returns the word at an offset.
func (m *Memory) Word(off int) uint64 { return binary.NativeEndian.Uint64(m.arena[off:]) }

// SetWord sets the word at an offset.
func (m *Memory) SetWord(off int, v uint64) { binary.NativeEndian.PutUint64(m.arena[off:], v) }
