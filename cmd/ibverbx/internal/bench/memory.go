package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
)

const (
	// maxRound bounds the messages of a round: their immediates have 16 bits for the number.
	maxRound = 1 << 16
	// maxSlots bounds the messages with a slot each: more small ones only make the rounds longer.
	maxSlots = 16384
	// tail is the room behind the target slots for the counter of atomics and the words of the
	// layers.
	tail = 64
)

// memory has the sources and targets of the two ends of a run. All columns of a table use the same
// memory.
type memory struct {
	window int // bytes that a round writes to
	ends   [2]buffers
	seed   uint64
	rounds uint64 // so far, of all measurements over it
}

// nextRound returns the number of the next round. No number comes twice, so that the data of an
// earlier cell is as wrong as that of an earlier round of this cell. Two processes count alike,
// because both take part in every round.
func (m *memory) nextRound() uint64 {
	m.rounds++
	return m.rounds
}

// buffers are one end's.
type buffers struct {
	src []byte // random, never written; empty when the end sends nothing
	dst []byte // window bytes, and the tail
}

// newMemory makes the memory of a run, filled. For an end that another process drives it has only
// the source, if that is needed to compare the end's messages.
func newMemory(p *Params, here [2]bool) *memory {
	m := &memory{window: int(p.Memory), seed: p.Seed}
	if p.Mode.Series() {
		m.window = min(m.window, latencyWindow)
	}
	for _, z := range p.Sizes {
		m.window = max(m.window, int(z))
	}
	for i := range m.ends {
		src, dst := p.bufferSizes(i, m.window)
		if src > 0 && (here[i] || p.Verify) {
			m.ends[i].src = randomBytes(src, p.Seed+uint64(i))
		}
		if !here[i] {
			continue
		}
		m.ends[i].dst = make([]byte, dst)
	}
	return m
}

// bufferSizes returns the sizes of an end's buffers.
func (p *Params) bufferSizes(end, window int) (src, dst int) {
	both := p.Bidirectional || p.Answered()
	sends := (end == 0) != p.reads()
	if (sends || both) && !p.Op.Atomic() {
		src = window + layers.Shifts*layers.ShiftStep
	}
	dst = tail
	if !sends || both || p.Op.Atomic() {
		dst = window + tail
	}
	return src, dst
}

func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	chacha := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24),
		byte(seed >> 32), byte(seed >> 40), byte(seed >> 48), byte(seed >> 56)})
	_, _ = chacha.Read(b) // never fails
	return b
}

// slots returns how many messages of a size fit.
func (m *memory) slots(size int) int { return min(m.window/size, maxSlots) }

// round returns the contents of a round's messages.
func (m *memory) round(number uint64, size int) layers.Round {
	return layers.Round{Number: number, Seed: m.seed, Size: size, Slots: m.slots(size)}
}

// verify compares the slots of a round with the data sent to them.
func (m *memory) verify(dst, src []byte, round uint64, slots, size int) error {
	for slot := range slots {
		if err := m.verifySlot(dst, src, round, slot, size); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) verifySlot(dst, src []byte, round uint64, slot, size int) error {
	from := m.round(round, size).Source(slot)
	want, got := src[from:from+size], dst[slot*size:(slot+1)*size]
	if bytes.Equal(want, got) {
		return nil
	}
	return wrongBytes(got, want, round, slot)
}

// wrongBytes reports where two messages differ.
func wrongBytes(got, want []byte, round uint64, slot int) error {
	first, count := -1, 0
	for i := range want {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			count++
		}
	}
	if first < 0 { // they arrived between the two comparisons
		return fmt.Errorf("%w: message %d of round %d (%v): wrong when it was announced, right a moment "+
			"later", layers.ErrVerify, slot, round, units.Size(len(want)))
	}
	return fmt.Errorf("%w: message %d of round %d (%v): %d bytes differ, the first at offset %d: %#02x, "+
		"sent was %#02x",
		layers.ErrVerify, slot, round, units.Size(len(want)), count, first, got[first], want[first])
}
