package roce

import (
	"testing"

	"ibverbx/verbs"
)

// Once warm, nothing that posts, sends, receives or polls allocates, at either end.
func TestNoAllocations(t *testing.T) {
	const batch = 16
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<18)
	a, b := pair[0], pair[1]
	kinds := map[string]func(*verbs.SendWR){
		"write":       func(wr *verbs.SendWR) {},
		"large write": func(wr *verbs.SendWR) { wr.SGL[0].Length = 1 << 18 },
		"read":        func(wr *verbs.SendWR) { wr.Opcode, wr.SGL[0].Length = verbs.OpRDMARead, 1<<16 },
		"atomic":      func(wr *verbs.SendWR) { wr.Opcode = verbs.OpAtomicFetchAdd },
		"send":        func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSend },
		"inline": func(wr *verbs.SendWR) {
			wr.Flags, wr.SGL, wr.Inline = wr.Flags|verbs.SendInline, nil, make([]byte, 32)
		},
	}
	for name, change := range kinds {
		wrs, recvs := make([]verbs.SendWR, batch), make([]verbs.RecvWR, batch)
		for i := range wrs {
			wrs[i] = a.write(b, uint64(i), 8)
			change(&wrs[i])
			recvs[i].SGL = []verbs.SGE{{Addr: b.mr.Addr(), Length: 8, LKey: b.mr.LKey()}}
		}
		wcs := make([]verbs.WC, batch)
		round := func() {
			want := batch
			if wrs[0].Opcode.IsSend() {
				_, _ = b.qp.PostRecv(recvs)
				want *= 2
			}
			_, _ = a.qp.PostSend(wrs)
			for got := 0; got < want; {
				n, _ := a.cq.Poll(wcs)
				m, _ := b.cq.Poll(wcs)
				got += n + m
				for _, wc := range wcs[:max(n, m)] {
					if wc.Status != verbs.StatusSuccess {
						t.Fatalf("%s: %v", name, wc.Status)
					}
				}
			}
		}
		for range 4 {
			round()
		}
		// What repairs a loss may allocate, and a receiver that is not run for long loses
		// packets. What posts and polls allocate, they allocate every time.
		least := testing.AllocsPerRun(20, round)
		for tries := 1; least >= 1 && tries < 10; tries++ {
			least = min(least, testing.AllocsPerRun(20, round))
		}
		if least >= 1 {
			t.Errorf("%s: at least %v allocations a round of %d", name, least, batch)
		}
	}
}
