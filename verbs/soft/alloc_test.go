package soft

import (
	"testing"

	"ibverbx/verbs"
)

func TestNoAllocations(t *testing.T) {
	const batch = 32
	for _, stepped := range []bool{false, true} {
		f, a, b := pair(t, Config{Stepped: stepped}, endConfig{buf: 1 << 20})
		add := a.write(b, 0, 0, 8)
		add.Opcode = verbs.OpAtomicFetchAdd
		read := a.write(b, 0, 0, 4096)
		read.Opcode = verbs.OpRDMARead
		inline := a.write(b, 0, 0, 0)
		inline.Flags |= verbs.SendInline
		inline.SGL, inline.Inline = nil, make([]byte, 32)
		kinds := map[string]verbs.SendWR{
			"write":       a.write(b, 0, 0, 8),
			"large write": a.write(b, 0, 0, 1<<20),
			"send":        a.send(0, 0, 64),
			"inline":      inline,
			"atomic":      add,
		}
		if !stepped {
			kinds["read"] = read
		}
		for name, wr := range kinds {
			wrs := make([]verbs.SendWR, batch)
			recvs := make([]verbs.RecvWR, batch)
			for i := range wrs {
				wrs[i] = wr
				recvs[i].SGL = b.sge(64*i, 64)
			}
			wcs := make([]verbs.WC, 2*batch)
			round := func() {
				want := batch
				if wr.Opcode.IsSend() {
					b.qp.PostRecv(recvs)
					want *= 2
				}
				a.qp.PostSend(wrs)
				for got := 0; got < want; {
					f.Run(10)
					n, _ := a.cq.Poll(wcs)
					m, _ := b.rcq.Poll(wcs)
					got += n + m
				}
			}
			round()
			round()
			if n := testing.AllocsPerRun(10, round); n != 0 {
				t.Errorf("%s, stepped %v: %v allocations a round", name, stepped, n)
			}
		}
	}
}
