package vqp_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
)

// memory is the registered memory of a host, in one region: a source that never changes, so that
// whatever comes from it can be checked at any time, words for atomics, and a landing ground that
// is given out a plot a request.
type memory struct {
	host  *host
	buf   []byte
	mr    *ibverbx.MR
	rng   *rand.Rand
	plots []plot // given out
	next  uint64 // where to look for the next one
	words uint64 // given out
}

// plot is where the data of one request is to land.
type plot struct{ at, length uint64 }

const (
	sourceBytes = 256 << 10
	wordsAt     = sourceBytes
	wordsBytes  = 4096
	groundAt    = wordsAt + wordsBytes
	groundBytes = 2 << 20
	// fence is how many bytes around a plot must stay zero.
	fence = 8
)

func newMemory(h *host, seed uint64) *memory {
	h.lab.tb.Helper()
	m := &memory{host: h, buf: make([]byte, groundAt+groundBytes), rng: rand.New(rand.NewPCG(seed, 1)),
		next: groundAt}
	fillRandom(m.buf[:sourceBytes], seed)
	var err error
	if m.mr, err = h.dom.Register(m.buf, verbs.AccessAll); err != nil {
		h.lab.tb.Fatal(err)
	}
	return m
}

func fillRandom(p []byte, seed uint64) {
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(p) // never fails
}

// source is the offset of n bytes that never change, each time others.
func (m *memory) source(n uint64) uint64 { return m.rng.Uint64N(sourceBytes - n + 1) }

// word is the offset of eight bytes of its own for an end's atomics.
func (m *memory) word() uint64 {
	at := wordsAt + m.words*8
	m.words++
	return at
}

// land gives out n bytes, zero and with zeros around them, that nobody else uses.
func (m *memory) land(n uint64) plot {
	m.host.lab.tb.Helper()
	size := (fence + n + fence + 7) &^ 7
	for range 2 {
		for m.next+size <= uint64(len(m.buf)) {
			p := plot{m.next + fence, n}
			i := slices.IndexFunc(m.plots, func(q plot) bool {
				return q.at < m.next+size &&
					m.next < q.at+q.length+fence
			})
			if i < 0 {
				clear(m.buf[m.next : m.next+size])
				m.plots = append(m.plots, p)
				m.next += size
				return p
			}
			m.next = (m.plots[i].at + m.plots[i].length + fence + 7) &^ 7
		}
		m.next = groundAt
	}
	m.host.lab.tb.Fatalf("the test has more in flight than there is memory for: %d plots, and one of %d "+
		"bytes\n%s", len(m.plots), n, m.host.lab.story())
	return plot{}
}

// release takes a plot back.
func (m *memory) release(p plot) {
	if i := slices.Index(m.plots, p); i >= 0 {
		m.plots = slices.Delete(m.plots, i, i+1)
	}
}

// bytes is what lies in a plot.
func (m *memory) bytes(p plot) []byte { return m.buf[p.at : p.at+p.length] }

// holds checks that a plot begins with want and that the rest of it, and its surroundings, were not
// touched.
func (m *memory) holds(what string, p plot, want []byte) {
	m.host.lab.tb.Helper()
	got := m.bytes(p)
	switch n := len(want); {
	case n > len(got):
		m.host.lab.tb.Fatalf("%s: %d bytes for a plot of %d", what, n, len(got))
	case !bytes.Equal(got[:n], want):
		i := 0
		for got[i] == want[i] {
			i++
		}
		m.host.lab.tb.Fatalf("%s: %d bytes, wrong from byte %d on\n%s", what, n, i, m.host.lab.story())
	case !zero(got[n:]) || !zero(m.buf[p.at-fence:p.at]) || !zero(m.buf[p.at+p.length:p.at+p.length+fence]):
		m.host.lab.tb.Fatalf("%s: %d bytes, and something beside them was written", what, n)
	}
}

func zero(p []byte) bool {
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}

func wordAt(p []byte) uint64        { return binary.NativeEndian.Uint64(p) }
func wordBytes(v uint64) (b []byte) { return binary.NativeEndian.AppendUint64(nil, v) }
