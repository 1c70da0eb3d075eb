package sim

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"sync"
)

// Every request has memory of its own, on both sides. What a byte must hold is therefore known at
// all times: poison before it is given to a request, and again in a source that the program has got
// back; noise from a place in a table where a message has landed; and what was found there when a
// failed request was reported, since nobody may touch it after that.
const (
	arenaSize = 160 << 10
	spareSize = 56 << 10 // the last of it, for the receives and messages that bring a run to its end
	maxNoise  = 8 << 10  // no message is longer
	fresh     = 0xa5     // memory that nobody has used
	// a source after its completion: it is the program's again, who has other plans for it
	returned = 0xdb
)

var (
	noise    = makeNoise()
	poisoned = bytes.Repeat([]byte{fresh}, arenaSize)
	scribble = bytes.Repeat([]byte{returned}, maxNoise)
	hashSeed = maphash.MakeSeed()
	arenas   = sync.Pool{New: func() any { return new([arenaSize]byte) }}
)

// makeNoise fills a table with bytes that are none of the poisons.
func makeNoise() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	table := make([]byte, 64<<10+maxNoise)
	for i := range table {
		for table[i] = fresh; table[i] == fresh || table[i] == returned; {
			table[i] = byte(rng.Uint32())
		}
	}
	return table
}

// span is a piece of a host's memory.
type span struct{ off, n int }

// memory is a host's memory: one region, dealt out from the front.
type memory struct {
	arena   *[arenaSize]byte
	used    int
	limit   int
	settled []settled
}

// settled is memory whose content must not change any more.
type settled struct {
	span
	key  int // of the noise that it holds; -1: see sum; -2: it was scribbled over
	sum  uint64
	what string // whose it was
}

func newMemory() *memory {
	m := &memory{arena: arenas.Get().(*[arenaSize]byte), limit: arenaSize - spareSize}
	copy(m.arena[:], poisoned)
	return m
}

func (m *memory) bytes(s span) []byte { return m.arena[s.off : s.off+s.n] }

// alloc gives out n bytes, aligned for atomics and followed by some that nobody gets.
func (m *memory) alloc(n int) (span, bool) {
	size := (n + 15) &^ 7
	if m.used+size > m.limit {
		return span{}, false
	}
	s := span{m.used, n}
	m.used += size
	return s, true
}

// fill writes a message into a span and returns where in the table it is from.
func (m *memory) fill(s span, rng *rand.Rand) (key int) {
	key = rng.IntN(len(noise) - maxNoise)
	copy(m.bytes(s), noise[key:])
	return key
}

// holds says whether a span holds the message that begins at key.
func (m *memory) holds(s span, key int) bool {
	return bytes.Equal(m.bytes(s), noise[key:key+s.n])
}

// untouched says whether nobody has written to a span.
func (m *memory) untouched(s span) bool { return bytes.Equal(m.bytes(s), poisoned[:s.n]) }

// settle fixes what a span holds now.
func (m *memory) settle(s span, key int, what string) {
	if s.n == 0 {
		return
	}
	e := settled{span: s, key: key, what: what}
	if key == -1 {
		e.sum = maphash.Bytes(hashSeed, m.bytes(s))
	}
	m.settled = append(m.settled, e)
}

// reuse is what a program does with a source that it has got back.
func (m *memory) reuse(s span, what string) {
	copy(m.bytes(s), scribble)
	m.settle(s, -2, what)
}

// audit finds settled memory that has changed, and memory written to that was never given out.
func (m *memory) audit() (what string, at span, ok bool) {
	for i := range m.settled {
		e := &m.settled[i]
		var good bool
		switch e.key {
		case -1:
			good = maphash.Bytes(hashSeed, m.bytes(e.span)) == e.sum
		case -2:
			good = bytes.Equal(m.bytes(e.span), scribble[:e.n])
		default:
			good = m.holds(e.span, e.key)
		}
		if !good {
			return e.what, e.span, false
		}
	}
	if rest := (span{m.used, arenaSize - m.used}); !m.untouched(rest) {
		return "memory that nobody has asked for", rest, false
	}
	return "", span{}, true
}

func (m *memory) word(s span) uint64       { return binary.NativeEndian.Uint64(m.bytes(s)) }
func (m *memory) setWord(s span, v uint64) { binary.NativeEndian.PutUint64(m.bytes(s), v) }
