package rc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

func bothKinds(t *testing.T, f func(t *testing.T, ours bool)) {
	for _, ours := range []bool{false, true} {
		t.Run(fmt.Sprintf("ours=%v", ours), func(t *testing.T) { f(t, ours) })
	}
}

// Every opcode, at sizes around the path MTU, across the wrap of the PSN.
func TestEveryOpcode(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		n := newNetwork(t, 1, shape{ours: ours, psn: [2]uint32{0xfffff0, 3}})
		a, b := n.ends[0], n.ends[1]
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range a.mem {
			a.mem[i] = byte(rng.Uint32())
		}
		id := uint64(0)
		do := func(wr verbs.SendWR, recv bool) {
			t.Helper()
			id++
			wr.ID, wr.Flags = id, wr.Flags|verbs.SendSignaled
			if recv {
				b.recv(verbs.RecvWR{ID: id, SGL: b.sge(1<<19, 1<<18)})
			}
			a.send(wr)
			n.run()
			wcs := a.poll()
			if len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess || wcs[0].ID != id {
				t.Fatalf("%v of %d bytes: %v", wr.Opcode, wr.Bytes(), wcs)
			}
			if recv {
				got := b.poll()
				if len(got) != 1 || got[0].Status != verbs.StatusSuccess || got[0].ID != id ||
					got[0].ByteLen != uint32(wr.Bytes()) || wr.Opcode.HasImm() && got[0].Imm != wr.Imm {
					t.Fatalf("%v of %d bytes received: %v", wr.Opcode, wr.Bytes(), got)
				}
			}
		}
		for _, size := range []int{0, 1, 2, 3, 4, 8, 255, 256, 257, 511, 512, 513, 4096, 70001} {
			remote := verbs.SendWR{SGL: a.sge(100, size), RemoteAddr: b.mr.Addr() + 7, RKey: b.mr.RKey()}
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
				clear(b.mem)
				wr := remote
				wr.Opcode, wr.Imm = op, 0xdeadbeef
				do(wr, op.HasImm())
				if !bytes.Equal(b.mem[7:7+size], a.mem[100:100+size]) || b.mem[7+size] != 0 {
					t.Fatalf("%v of %d bytes: wrong bytes", op, size)
				}
			}
			for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm} {
				clear(b.mem)
				do(verbs.SendWR{Opcode: op, Imm: 7, SGL: a.sge(100, size)}, true)
				if !bytes.Equal(b.mem[1<<19:][:size], a.mem[100:100+size]) {
					t.Fatalf("%v of %d bytes: wrong bytes", op, size)
				}
			}
			for i := range b.mem {
				b.mem[i] = byte(rng.Uint32())
			}
			wr := remote
			wr.Opcode = verbs.OpRDMARead
			do(wr, false)
			if !bytes.Equal(b.mem[7:7+size], a.mem[100:100+size]) {
				t.Fatalf("read of %d bytes: wrong bytes", size)
			}
		}
		atomic := verbs.SendWR{SGL: a.sge(0, 8), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		clear(b.mem)
		atomic.Opcode, atomic.CompareAdd = verbs.OpAtomicFetchAdd, 5
		do(atomic, false)
		do(atomic, false)
		if a.mem[0] != 5 || b.mem[0] != 10 {
			t.Fatalf("fetch and add twice: found %d, left %d", a.mem[0], b.mem[0])
		}
		atomic.Opcode, atomic.CompareAdd, atomic.Swap = verbs.OpAtomicCmpAndSwp, 10, 77
		do(atomic, false)
		do(atomic, false)
		if a.mem[0] != 77 || b.mem[0] != 77 {
			t.Fatalf("compare and swap twice: found %d, left %d", a.mem[0], b.mem[0])
		}
		if s := a.q.Stats(); s.Resent != 0 || s.Timeouts != 0 || s.Probes != 0 {
			t.Errorf("on a perfect network: %+v", s)
		}
	})
}

// The trailer of a packet ends where the header of the next one begins, and overlaps nothing that
// the batch holds, whatever the pads are.
func TestTrailersJoinHeaders(t *testing.T) {
	var b Batch
	for i := range BatchPackets {
		h := wire.Header{Opcode: wire.WriteMiddle, PSN: uint32(i), DestQP: 7}
		b.add(&h, make([]byte, 8+i%5))
	}
	want := b.packets
	for i := range BatchPackets {
		trailer := b.Trailer(i)
		if n := int(want[i].Pad) + wire.ICRCSize; len(trailer) != n {
			t.Errorf("packet %d: a trailer of %d bytes for a pad of %d", i, len(trailer), want[i].Pad)
		}
		// The header lies behind that array: bytes need no alignment.
		if next := &b.packets[i+1]; &trailer[len(trailer)-1] != &next.before[len(next.before)-1] {
			t.Errorf("packet %d: the trailer does not end where the next header begins", i)
		}
		for j := range trailer {
			trailer[j] = 0xff
		}
	}
	for i, p := range b.Packets() {
		if p.Header != want[i].Header || p.Len != want[i].Len || p.Pad != want[i].Pad {
			t.Errorf("packet %d was changed by a trailer", i)
		}
	}
}
