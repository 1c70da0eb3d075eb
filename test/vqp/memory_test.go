package vqp_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// memory is the registered memory of a host, in one region: sources that never change, so that what
// comes from them can be checked at any time; words for atomics; and plots for what arrives, one
// for each request.
type memory struct {
	host  *host
	buf   []byte
	mr    *ibverbx.MR
	rng   *rand.Rand
	plots []plot // in use
	next  uint64 // where to look for the next one
	words uint64 // in use
}

// plot is memory to which the data of one request goes.
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
	h.rig.tb.Helper()
	m := &memory{host: h, rng: rand.New(rand.NewPCG(seed, 1)), next: groundAt}
	var err error
	if m.mr, err = h.dom.Alloc(groundAt+groundBytes, verbs.AccessAll); err != nil {
		h.rig.tb.Fatal(err)
	}
	m.buf = m.mr.Bytes()
	vqptest.FillRandom(m.buf[:sourceBytes], seed)
	return m
}

// source is the offset of n bytes that never change: others with each call.
func (m *memory) source(n uint64) uint64 { return m.rng.Uint64N(sourceBytes - n + 1) }

// word is the offset of eight bytes for the atomics of an end.
func (m *memory) word() uint64 {
	at := wordsAt + m.words*8
	m.words++
	return at
}

// land gives out n bytes that nothing else uses. They and those around them are zero.
func (m *memory) land(n uint64) plot {
	m.host.rig.tb.Helper()
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
	m.host.rig.tb.Fatalf("the test has more in flight than there is memory for: %d plots, and one of %d "+
		"bytes\n%s", len(m.plots), n, m.host.rig.describe())
	return plot{}
}

// release frees a plot.
func (m *memory) release(p plot) {
	if i := slices.Index(m.plots, p); i >= 0 {
		m.plots = slices.Delete(m.plots, i, i+1)
	}
}

// bytes is what a plot holds.
func (m *memory) bytes(p plot) []byte { return m.buf[p.at : p.at+p.length] }

// holds checks that a plot begins with want, and that the rest of it and the bytes around it are
// still zero.
func (m *memory) holds(what string, p plot, want []byte) {
	m.host.rig.tb.Helper()
	got := m.bytes(p)
	switch n := len(want); {
	case n > len(got):
		m.host.rig.tb.Fatalf("%s: %d bytes for a plot of %d", what, n, len(got))
	case !bytes.Equal(got[:n], want):
		i := 0
		for got[i] == want[i] {
			i++
		}
		m.host.rig.tb.Fatalf("%s: %d bytes, wrong from byte %d on\n%s", what, n, i, m.host.rig.describe())
	case !zero(got[n:]) || !zero(m.buf[p.at-fence:p.at]) || !zero(m.buf[p.at+p.length:p.at+p.length+fence]):
		m.host.rig.tb.Fatalf("%s: %d bytes, and something beside them was written", what, n)
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
