package verbstest

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"ibverbx/verbs"
)

func testAtomics(t *testing.T, s *suite) {
	s.run(t, "one_by_one", s.atomicsOneByOne)
	s.run(t, "misaligned", s.atomicMisaligned)
	s.run(t, "concurrent", s.atomicsConcurrent)
}

// word reads and writes the 64-bit words of a buffer as the processor does, which is how a NIC
// treats them.
func word(b []byte, i int) uint64       { return binary.NativeEndian.Uint64(b[8*i:]) }
func setWord(b []byte, i int, v uint64) { binary.NativeEndian.PutUint64(b[8*i:], v) }

func (s *suite) atomicsOneByOne(t *testing.T) {
	const max = ^uint64(0)
	for _, c := range []struct {
		name         string
		op           verbs.Opcode
		before       uint64
		compare, swp uint64
		after        uint64
	}{
		{"add", verbs.OpAtomicFetchAdd, 0x0102030405060708, 0x1000, 0, 0x0102030405061708},
		{"add_wraps", verbs.OpAtomicFetchAdd, max, 2, 0, 1},
		{"add_zero", verbs.OpAtomicFetchAdd, 77, 0, 0, 77},
		{"add_negative", verbs.OpAtomicFetchAdd, 5, max, 0, 4},
		{"swap_hit", verbs.OpAtomicCmpAndSwp, 0x0102030405060708, 0x0102030405060708, max - 1, max - 1},
		{"swap_miss", verbs.OpAtomicCmpAndSwp, 0x0102030405060708, 0x0102030405060709, max - 1,
			0x0102030405060708},
		{"swap_zero", verbs.OpAtomicCmpAndSwp, 0, 0, 9, 9},
	} {
		s.run(t, c.name, func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			Fill(p.A.Buf.B, 3)
			Fill(p.B.Buf.B, 4)
			setWord(p.B.Buf.B, 1, c.before)
			wantA, wantB := slices.Clone(p.A.Buf.B), slices.Clone(p.B.Buf.B)
			setWord(wantA, 2, c.before)
			setWord(wantB, 1, c.after)
			p.A.PostSend(verbs.SendWR{
				ID: 1, Opcode: c.op, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(16, 8),
				RemoteAddr: p.B.Buf.At(8), RKey: p.B.Buf.RKey(), CompareAdd: c.compare, Swap: c.swp,
			})
			wcs := p.A.WaitSend(1)
			p.A.wantOK(wcs, 1)
			if wcs[0].Opcode != c.op.WCOpcode() || wcs[0].ByteLen != 8 {
				t.Errorf("completion of a %v of %d bytes, want %v of 8", wcs[0].Opcode, wcs[0].ByteLen,
					c.op.WCOpcode())
			}
			wantBytes(t, "the requester's memory", p.A.Buf.B, wantA)
			wantBytes(t, "the target", p.B.Buf.B, wantB)
		})
	}
}

// atomicMisaligned addresses something else than a multiple of 8. IBTA 9.4.5 makes that an invalid
// request; a provider may also refuse it at the post.
func (s *suite) atomicMisaligned(t *testing.T) {
	p := s.pair(t, PairConfig{})
	n, err := p.A.QP.PostSend([]verbs.SendWR{{
		ID: 1, Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 8),
		RemoteAddr: p.B.Buf.At(4), RKey: p.B.Buf.RKey(), CompareAdd: 1,
	}})
	if n == 0 {
		wantErr(t, "post", err, verbs.ErrInvalid)
	} else {
		p.A.wantStatus(p.A.WaitSend(1), []verbs.Status{verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr}, 1)
	}
	wantBytes(t, "the target", p.B.Buf.B[:16], make([]byte, 16))
}

// atomicsConcurrent adds one to the same two words over four connections at once, two in each
// direction. Every value is fetched exactly once, which no lost or doubled addition would allow.
func (s *suite) atomicsConcurrent(t *testing.T) {
	const (
		perQP = 200
		batch = 4
	)
	a, b := NewNode(t, s.env, s.a), NewNode(t, s.env, s.b)
	p1, p2 := NewPair(a, b, PairConfig{}), NewPair(a, b, PairConfig{})
	// A second connection's target is the first one's.
	jobs := []struct {
		from   *End
		target *Buffer
	}{{p1.A, p1.B.Buf}, {p2.A, p1.B.Buf}, {p1.B, p1.A.Buf}, {p2.B, p1.A.Buf}}
	fetched := make([][]uint64, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		wg.Go(func() {
			e := job.from
			for range perQP / batch {
				for k := range batch {
					n, err := e.QP.PostSend([]verbs.SendWR{{
						ID: uint64(k), Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled,
						SGL:        e.Buf.SGL(1024+8*k, 8),
						RemoteAddr: job.target.Addr(), RKey: job.target.RKey(), CompareAdd: 1,
					}})
					if n != 1 {
						t.Errorf("post: %v", err)
						return
					}
				}
				for got := 0; got < batch; {
					var wcs [batch]verbs.WC
					n := 0
					if !e.Until(func() bool { n, _ = e.SendCQ.Poll(wcs[:]); return n > 0 }) {
						t.Error("no completion")
						return
					}
					for _, wc := range wcs[:n] {
						if wc.Status != verbs.StatusSuccess || wc.ID != uint64(got) {
							t.Errorf("request %d: %v, want request %d", wc.ID, wc.Status, got)
							return
						}
						fetched[i] = append(fetched[i], word(e.Buf.B, 128+got))
						got++
					}
				}
			}
		})
	}
	wg.Wait()
	for side := range 2 {
		all := slices.Concat(fetched[2*side], fetched[2*side+1])
		slices.Sort(all)
		if !slices.Equal(all, ids(0, 2*perQP)) {
			t.Errorf("word %d: the fetched values are not each of 0 to %d once", side, 2*perQP-1)
		}
		if got := word(jobs[2*side].target.B, 0); got != 2*perQP {
			t.Errorf("word %d: sum %d, want %d", side, got, 2*perQP)
		}
	}
}
