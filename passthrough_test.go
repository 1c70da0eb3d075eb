package ibverbx

import (
	"errors"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// FuzzPassThroughCompletions gives a virtual queue pair of one queue pair completions of any
// content. Nothing is tracked, so each is reported as it is, with undefined fields cleared. The
// first that failed is the error, and closing does not wait.
func FuzzPassThroughCompletions(f *testing.F) {
	wc := func(status, opcode, flags byte, qp byte) []byte {
		return []byte{status, opcode, flags, qp, 1, 2, 3, 4, 5, 6, 7, 8}
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	ok, writes, receives := byte(verbs.StatusSuccess), byte(verbs.WCRDMAWrite), byte(verbs.WCRecvRDMAWithImm)
	f.Add(join(wc(ok, writes, 0, 0), wc(ok, receives, byte(verbs.WCWithImm), 0), wc(ok, receives, 0, 0)))
	f.Add(join(wc(byte(verbs.StatusRetryExcErr), 255, 255, 0), wc(byte(verbs.StatusWRFlushErr), receives, 255,
		0), wc(ok, writes, 0, 0)))
	f.Add(join(wc(ok, 255, 255, 1), wc(255, 255, 255, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1024 {
			return
		}
		null := verbstest.NewNull(1)
		q, err := Open([]verbs.Device{null.Device(0)}, Config{QPsPerDevice: 1, MaxMsgCntPerQP: 4})
		if err != nil {
			t.Fatal(err)
		}
		card, err := q.Card()
		if err = errors.Join(err, q.Connect(Elsewhere(card))); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		var failed error
		for in := (program{data}); len(in.data) > 0; {
			wc := verbs.WC{Status: verbs.Status(in.byte()), Opcode: verbs.WCOpcode(in.byte()),
				Flags: verbs.WCFlags(in.byte())}
			wc.QPNum = q.send.rails.data[0].num + uint32(in.byte()%4)
			wc.ID, wc.Imm = uint64(in.uint32())<<32|uint64(in.byte()), in.uint32()
			wc.ByteLen, wc.VendorErr = wc.Imm, wc.Imm
			want := WC{ID: wc.ID, Status: wc.Status, QPNum: q.Num()}
			switch {
			case wc.Status != verbs.StatusSuccess:
				want.Opcode, want.VendorErr = verbs.WCUnknown, wc.VendorErr
			default:
				want.Opcode = wc.Opcode
				if wc.Opcode.IsRecv() {
					want.ByteLen = uint64(wc.ByteLen)
				}
				if wc.Opcode.IsRecv() && wc.Flags&verbs.WCWithImm != 0 {
					want.Imm, want.Flags = wc.Imm, verbs.WCWithImm
				}
			}
			got := q.cq.ProcessCompletions(nil, 0, wc)
			if wc.QPNum != q.send.rails.data[0].num {
				if len(got) != 0 {
					t.Fatalf("%+v of no known queue pair is reported as %+v", wc, got)
				}
				continue
			}
			if len(got) != 1 || got[0] != want {
				t.Fatalf("%+v is reported as %+v, want %+v", wc, got, want)
			}
			if failed == nil {
				failed = wc.Status.Err()
			}
			if !errors.Is(q.Err(), failed) || (failed == nil) != (q.Err() == nil) {
				t.Fatalf("error %v, want %v", q.Err(), failed)
			}
		}
		if err := errors.Join(q.Close(), null.Close()); err != nil {
			t.Fatal(err)
		}
		if q.pass.probes.gaveUp {
			t.Fatal("closing has waited in vain for the NIC")
		}
	})
}

// Drain of a single queue pair is over where nothing is left, and where the queue pair was
// destroyed, whatever it held: nothing is posted on it any more. Where something is left, two
// requests of Drain's own are.
func TestDrainIsOver(t *testing.T) {
	for _, c := range []struct {
		closed, sends, probes, over bool
	}{
		{false, false, false, true}, {true, false, false, true}, {true, true, false, true},
		{true, false, true, true}, {false, true, false, false}, {false, false, true, false},
	} {
		q := newLone(t, Config{})
		p := q.pass
		p.rail.closed = c.closed
		if c.sends {
			p.sends++
		}
		if c.probes {
			p.probes.posted++
		}
		over, o := p.finishRecvs(), &p.probes
		if over != c.over || o.sendPosted == over || o.recvPosted == over {
			t.Errorf("%+v: over: %v, probes posted: %v, %v", c, over, o.sendPosted, o.recvPosted)
		}
	}
}
