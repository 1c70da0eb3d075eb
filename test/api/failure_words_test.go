package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The parts of a request have one word each.
func TestWordsOfParts(t *testing.T) {
	for part, want := range map[ibverbx.FailedPart]string{
		ibverbx.PartUnknown: "unknown", ibverbx.PartFragment: "fragment", ibverbx.PartMessage: "message",
		ibverbx.PartNotification: "notification", ibverbx.PartMarker: "marker",
		ibverbx.PartImmediate: "immediate", ibverbx.PartCredit: "credit", ibverbx.PartWatch: "watch",
		ibverbx.PartWatch + 1: "part 8",
	} {
		if got := part.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A single queue pair whose NIC is gone fails at the request that was refused, and describes it:
// its payload in one piece, in several, or inline.
func TestRefusedRequestIsDescribed(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(e *vqptest.End, wr *ibverbx.SendWR)
		want ibverbx.FailedError // what describes memory; LocalAddr counts from the buffer
	}{
		{"one piece", func(*vqptest.End, *ibverbx.SendWR) {}, ibverbx.FailedError{Length: 64}},
		{"pieces", func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.SGL, wr.Local = []ibverbx.Segment{e.MR.Slice(8, 8), e.MR.Slice(32, 16)}, ibverbx.Segment{}
		}, ibverbx.FailedError{Length: 24, LocalAddr: 8, Scattered: true}},
		{"one piece among empty ones", func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.SGL, wr.Local = []ibverbx.Segment{{}, e.MR.Slice(16, 8), {}}, ibverbx.Segment{}
		}, ibverbx.FailedError{Length: 8, LocalAddr: 16}},
		{"inline", func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Flags, wr.Inline, wr.Local = wr.Flags|verbs.SendInline, []byte("inline"), ibverbx.Segment{}
		}, ibverbx.FailedError{Length: 6}},
		{"send", func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Opcode = verbs.OpSend },
			ibverbx.FailedError{Length: 64}},
	} {
		for _, behind := range []int{0, 2} { // alone, and at the end of a batch
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxSGE: 3, MaxInline: 8}})
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0], Skip: behind,
				Err: verbs.ErrDeviceGone})
			wr := l.A.Write(verbs.OpRDMAWrite, 7, 0, 64)
			c.edit(l.A, &wr)
			batch := []ibverbx.SendWR{l.A.Write(verbs.OpRDMAWrite, 1, 0, 8),
				l.A.Write(verbs.OpRDMAWrite, 2, 0, 8)}
			n, err := l.A.PostSend(append(batch[:behind:behind], wr)...)
			var f *ibverbx.FailedError
			if !errors.As(l.A.Err(), &f) {
				t.Fatalf("%s: posted %d, %v; no failure: %v", c.name, n, err, l.A.Err())
			}
			remote, local := wr.Remote.Addr, l.A.MR.Addr()+c.want.LocalAddr
			if c.name == "inline" {
				local = 0
			}
			if wr.Opcode == verbs.OpSend {
				remote = 0
			}
			if !f.HasID || f.ID != 7 || f.Length != c.want.Length || f.RemoteAddr != remote ||
				f.LocalAddr != local || f.Scattered != c.want.Scattered || f.Recv ||
				f.Part != ibverbx.PartMessage || f.Opcode != wr.Opcode.WCOpcode() ||
				!errors.Is(f, verbs.ErrDeviceGone) {
				t.Errorf("%s: %+v", c.name, f)
			}
			if n != behind {
				t.Errorf("%s: accepted %d, want %d", c.name, n, behind)
			}
		}
	}
}

// Errors that no completion explains name what is known.
func TestWordsOfFailures(t *testing.T) {
	for want, f := range map[string]*ibverbx.FailedError{
		"virtual qp 3: request id 5: rail 1 (mlx5_0 qp 9)": {QPNum: 3, HasID: true, ID: 5,
			Part: ibverbx.PartMessage, Rail: 1, Device: "mlx5_0", RailQPNum: 9, Opcode: verbs.WCUnknown},
		"virtual qp 3: receive id 5: mlx5_0": {QPNum: 3, HasID: true, ID: 5, Recv: true,
			Part: ibverbx.PartMessage, Rail: -1, Device: "mlx5_0", Opcode: verbs.WCUnknown},
		"RDMA_WRITE id 5, one of its fragments": {HasID: true, ID: 5, Part: ibverbx.PartFragment,
			Fragment: -1,
			Opcode:   verbs.WCRDMAWrite, Rail: -1},
		"RDMA_WRITE id 5, one of 4 fragments": {HasID: true, ID: 5, Part: ibverbx.PartFragment, Fragment: -1,
			Fragments: 4, Opcode: verbs.WCRDMAWrite, Rail: -1},
		"RDMA_WRITE id 5, fragment 3 of 4": {HasID: true, ID: 5, Part: ibverbx.PartFragment, Fragment: 2,
			Fragments: 4, Opcode: verbs.WCRDMAWrite, Rail: -1},
		"RDMA_WRITE id 5, fragment 3:": {HasID: true, ID: 5, Part: ibverbx.PartFragment, Fragment: 2,
			Opcode: verbs.WCRDMAWrite, Rail: -1},
		"(vendor 0x81)": {Rail: -1, VendorErr: 0x81},
	} {
		f.Err = verbs.ErrDeviceGone
		if got := f.Error(); !strings.Contains(got, want) {
			t.Errorf("%q: want %q in it", got, want)
		}
	}
}

// Posts that a NIC refuses are counted by the rail, whether for now or permanently.
func TestRefusedPostsAreCounted(t *testing.T) {
	for _, m := range vqptest.Modes {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, QP: ibverbx.Config{Scheme: m.Scheme,
			QPsPerDevice: m.QPs}})
		l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, QPNum: l.A.RailQPs[0], Device: l.A.NICs[0],
			Count: 2})
		for done := false; !done; {
			n, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 0, 8))
			if done = n == 1; !done && !verbs.IsTransient(err) {
				t.Fatalf("%s: %v", m.Name, err)
			}
		}
		vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
		if r := l.A.Stats().Rails[0]; r.Refused != 2 || r.Errors != 0 {
			t.Errorf("%s: %d posts refused, %d errors; want 2 and none", m.Name, r.Refused, r.Errors)
		}
		carrier := len(l.B.RailQPs) - 1 // of SENDs
		if m.Scheme == ibverbx.Spray {
			carrier = 0
		}
		l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, QPNum: l.B.RailQPs[carrier], Device: l.B.NICs[0],
			Count: 2})
		for done := false; !done; {
			n, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 8)})
			if done = n == 1; !done && !verbs.IsTransient(err) {
				t.Fatalf("%s: %v", m.Name, err)
			}
		}
		l.A.Send(t, ibverbx.SendWR{Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 8)})
		vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
		if r := l.B.Stats().Rails[carrier]; r.Refused != 2 || r.Errors != 0 {
			t.Errorf("%s: %d receives refused, %d errors; want 2 and none", m.Name, r.Refused, r.Errors)
		}
		l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, QPNum: l.A.RailQPs[0], Device: l.A.NICs[0]})
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 8))
		for l.A.Err() == nil {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 8))
			l.A.Pump(t)
		}
		if r := l.A.Stats().Rails[0]; r.Errors == 0 {
			t.Errorf("%s: no error is counted", m.Name)
		}
	}
}
