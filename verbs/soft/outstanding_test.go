package soft

import (
	"strings"
	"testing"

	"ibverbx/verbs"
)

// can reports whether an action that starts like this can happen now.
func can(f *Fabric, prefix string) bool {
	for _, a := range f.Actions(nil) {
		if strings.HasPrefix(a.String(), prefix) {
			return true
		}
	}
	return false
}

// A queue pair has as many reads and atomics outstanding as MaxRDAtomic says; the next one waits
// for an acknowledgement, and so does what is behind it. Writes are not counted.
func TestReadsWaitForEachOther(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.MaxRDAtomic = 2 })
	read := func(id uint64) verbs.SendWR {
		wr := a.write(b, id, int(8*id), 8)
		wr.Opcode = verbs.OpRDMARead
		return wr
	}
	add := a.write(b, 3, 24, 8)
	add.Opcode, add.CompareAdd = verbs.OpAtomicFetchAdd, 1
	a.post(read(1), a.write(b, 2, 16, 8), add, read(4), a.write(b, 5, 40, 8))
	for range 3 {
		do(t, f, "execute")
	}
	if can(f, "execute") {
		t.Error("a third read is outstanding")
	}
	do(t, f, "acknowledge soft0 qp 17 wr 1")
	do(t, f, "execute soft0 qp 17 wr 4")
	do(t, f, "execute soft0 qp 17 wr 5")
	f.Run(100)
	for i, wc := range await(t, a.cq, 5) {
		if wc.ID != uint64(i+1) || wc.Status != verbs.StatusSuccess {
			t.Errorf("%d: %+v", i, wc)
		}
	}
	// After a reset nothing is outstanding any more.
	a.post(read(1), read(2))
	do(t, f, "execute")
	do(t, f, "execute")
	setState(t, a, verbs.StateReset)
	setState(t, b, verbs.StateReset)
	connect(t, a, b, func(c *connection) { c.MaxRDAtomic = 1 })
	a.post(read(3))
	do(t, f, "execute soft0 qp 17 wr 3")
}

// Packet sequence numbers go round after 2^24-1.
func TestSequenceNumbersGoRound(t *testing.T) {
	_, a, b := pair(t, Config{}, endConfig{}, func(c *connection) { c.SQPSN, c.RQPSN = 1<<24-2, 1<<24-2 })
	for id := range uint64(4) {
		b.recv(verbs.RecvWR{ID: id, SGL: b.sge(0, 8)})
		a.post(a.send(id, 0, 8))
		awaitStatus(t, a.cq, id, verbs.StatusSuccess)
		awaitStatus(t, b.rcq, id, verbs.StatusSuccess)
	}
}

// A message is as long as the NIC's limit, and as the receive that takes it.
func TestLongestMessages(t *testing.T) {
	for _, c := range []struct {
		length, receive int
		want            verbs.Status
	}{
		{4096, 4096, verbs.StatusSuccess}, {4097, 8192, verbs.StatusLocLenErr},
		{64, 64, verbs.StatusSuccess}, {65, 64, verbs.StatusRemInvReqErr}, {0, 0, verbs.StatusSuccess},
	} {
		_, a, b := pair(t, Config{Device: small}, endConfig{}, fewReads)
		b.recv(verbs.RecvWR{ID: 7, SGL: b.sge(0, c.receive)})
		a.post(a.send(1, 0, c.length))
		awaitStatus(t, a.cq, 1, c.want)
		if c.want == verbs.StatusSuccess {
			if wc := awaitStatus(t, b.rcq, 7, c.want); wc.ByteLen != uint32(c.length) {
				t.Errorf("%d bytes arrived of %d", wc.ByteLen, c.length)
			}
		}
	}
}

// What a queue pair in ERR flushes has the vendor's code for it, on either queue.
func TestFlushedHaveTheVendorsCode(t *testing.T) {
	_, a, b := pair(t, Config{Stepped: true}, endConfig{})
	a.post(a.write(b, 1, 0, 8))
	a.recv(verbs.RecvWR{ID: 2})
	setState(t, a, verbs.StateErr)
	a.qp.f.Run(10)
	for cq, id := range map[*CQ]uint64{a.cq: 1, a.rcq: 2} {
		if wc := awaitStatus(t, cq, id, verbs.StatusWRFlushErr); wc.VendorErr != 0xf9 ||
			wc.QPNum != a.qp.Num() {
			t.Errorf("%+v", wc)
		}
	}
}
