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

// What the memory of a host is filled with.
const (
	Keys     = 64 << 10 // places in the table of noise at which data may begin
	MaxNoise = 8 << 10  // no data is longer
	fresh    = 0xa5     // memory that nobody has used
	returned = 0xdb     // a source whose request has completed: the program uses it for something else

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

// makeNoise fills a table with bytes that are none of the poisons.
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

// Noise is the n bytes of noise that begin at a key.
func Noise(key, n int) []byte { return noise[key : key+n] }

// Scribble is what a program does with a source that it has got back.
func Scribble(b []byte) { copy(b, scribble) }

// Span is a piece of a host's memory.
type Span struct{ Off, N int }

// Part is n bytes of the span, from one of its bytes on.
func (s Span) Part(from, n int) Span { return Span{s.Off + from, n} }

// Split cuts the span behind n bytes.
func (s Span) Split(n int) (head, tail Span) { return s.Part(0, n), s.Part(n, s.N-n) }

// Layout is how a host's memory is divided, from its beginning.
type Layout struct {
	Size  int
	Words int // bytes before this one are zero: words for atomics
	Noise int // those before this one hold noise all along, for reads
	Spare int // bytes at the end, for what brings a run to its end
}

// Memory is a host's memory: one region, dealt out from the front, a piece for each request and
// never the same twice. So it is known what each byte must be. Memory that nobody was given is
// poisoned. What a request carries is noise from some place in a table, its key. What lies still is
// settled: memory that no request may write to any more must keep what it held then.
//
// Invariant: Layout.Noise <= used <= limit <= Layout.Size; bytes from used on are poisoned, but for
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
	AsItIs    = -1 // whatever it held when it was settled
	scribbled = -2
)

// NewMemory makes memory that nobody has used.
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

// Bytes is what a span holds.
func (m *Memory) Bytes(s Span) []byte { return m.arena[s.Off : s.Off+s.N : s.Off+s.N] }

// Used is how many bytes at the beginning are in use.
func (m *Memory) Used() int { return m.used }

// Alloc gives n bytes to a request, aligned for atomics and followed by some that nobody uses.
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

// Owner is the request that the memory at an offset was given to; nil for none.
func (m *Memory) Owner(off int) any {
	i := sort.Search(len(m.pieces), func(i int) bool { return m.pieces[i].end > off })
	if off < m.Noise || i == len(m.pieces) {
		return nil
	}
	return m.pieces[i].owner
}

// UseSpare lets Alloc give out the spare bytes.
func (m *Memory) UseSpare() { m.limit = m.Size }

// Reserve gives out spare bytes, always the same, as if nobody had used them.
func (m *Memory) Reserve(n int) Span {
	m.reserved = true
	s := Span{m.Size - m.Spare, n}
	copy(m.Bytes(s), poisoned)
	return s
}

// Fill writes the noise of a key into a span.
func (m *Memory) Fill(s Span, key int) { copy(m.Bytes(s), noise[key:]) }

// FillDrawn writes noise of a key that it draws into a span.
func (m *Memory) FillDrawn(s Span, rng *rand.Rand) (key int) {
	key = rng.IntN(Keys)
	m.Fill(s, key)
	return key
}

// Holds says whether a span holds the noise of a key.
func (m *Memory) Holds(s Span, key int) bool { return bytes.Equal(m.Bytes(s), Noise(key, s.N)) }

// Untouched says whether nobody has written to a span.
func (m *Memory) Untouched(s Span) bool { return bytes.Equal(m.Bytes(s), poisoned[:s.N]) }

// Partly says whether each byte of a span is untouched or holds the noise of a key.
func (m *Memory) Partly(s Span, key int) bool {
	for i, v := range m.Bytes(s) {
		if v != fresh && v != noise[key+i] {
			return false
		}
	}
	return true
}

// Settle fixes what a span holds: the noise of a key, or what is there now.
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

// Reuse is what a program does with a source that it has got back: it writes something else there.
func (m *Memory) Reuse(s Span) {
	Scribble(m.Bytes(s))
	m.Settle(s, scribbled)
}

// keeps says whether settled memory holds what it held.
func (m *Memory) keeps(e *settled) bool {
	switch e.key {
	case AsItIs:
		return maphash.Bytes(hashSeed, m.Bytes(e.Span)) == e.sum
	case scribbled:
		return bytes.Equal(m.Bytes(e.Span), scribble[:e.N])
	}
	return m.Holds(e.Span, e.key)
}

// Audit finds settled memory that has changed, and memory written to that was never given out.
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

// Word is the word at an offset.
func (m *Memory) Word(off int) uint64 { return binary.NativeEndian.Uint64(m.arena[off:]) }

// SetWord sets it.
func (m *Memory) SetWord(off int, v uint64) { binary.NativeEndian.PutUint64(m.arena[off:], v) }
