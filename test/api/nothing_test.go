package api_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// ofNothing are the ways to ask for a transfer of no bytes.
var ofNothing = []struct {
	name string
	edit func(e *vqptest.End, wr *ibverbx.SendWR)
}{
	{"a piece of no bytes", func(*vqptest.End, *ibverbx.SendWR) {}},
	{"no memory at either end", func(_ *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local, wr.Remote = ibverbx.Segment{}, ibverbx.RemoteSegment{}
	}},
	{"a list of empty pieces", func(e *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(8, 0), {}}
	}},
	{"addresses out of bounds", func(e *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local, wr.Remote = e.MR.Slice(1<<40, 0), e.Peer.Slice(1<<40, 0)
	}},
	{"inline", func(_ *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local = ibverbx.Segment{}
		if wr.Opcode != verbs.OpRDMARead {
			wr.Flags |= verbs.SendInline
		}
	}},
}

// A notification of no bytes keeps promise 4: no earlier write may still be on its way.
func TestNotificationOfNoBytesFollowsEarlierWrites(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			l := vqptest.SteppedLink(t, 3, ibverbx.Config{Scheme: scheme, FragmentSize: 100})
			l.B.ExpectRecv(t, 9)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 300))
			wr := l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 0)
			wr.Imm = 0 // nothing but the number travels
			l.A.Send(t, wr)
			for _, rail := range []int{2, 0} {
				for l.Do(vqptest.On(l.A, rail, soft.Execute)) || l.Do(vqptest.On(l.A, rail,
					soft.Acknowledge)) ||
					l.Do(vqptest.On(l.A, rail, soft.Reveal)) || l.Do(recvSeen) {
				}
			}
			l.Reports(l.A)
			l.Reports(l.B) // the write's fragment on rail 1 is on its way
			for range 200 {
				l.Fabric.Run(1)
				l.A.Pump(t)
			}
			l.Reports(l.A, 1, 2)
			l.Reports(l.B, 9)
		})
	}
}

func recvSeen(a soft.Action) bool { return a.Kind == soft.Reveal && a.Recv }

// A request of no bytes that fails is described as what it was.
func TestFailedRequestOfNoBytesIsNamed(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
			for _, c := range ofNothing {
				t.Run(scheme.String()+"/"+op.String()+"/"+c.name, func(t *testing.T) {
					l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2,
						Scheme: scheme}})
					wr := l.A.Write(op, 2, 16, 0)
					c.edit(l.A, &wr)
					l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0],
						Status: verbs.StatusRemOpErr})
					l.A.Send(t, wr)
					if wc := l.A.Wait(t, 1)[0]; wc.ID != 2 || wc.Status != verbs.StatusRemOpErr {
						t.Fatalf("%+v", wc)
					}
					var fe *ibverbx.FailedError
					if !errors.As(l.A.Err(), &fe) || !fe.HasID || fe.ID != 2 || fe.Length != 0 {
						t.Fatalf("%+v", fe)
					}
					want := ibverbx.PartFragment
					if op == verbs.OpRDMAWriteWithImm && scheme == ibverbx.Spray {
						want = ibverbx.PartNotification
					} else if fe.Fragment != 0 || fe.Fragments != 1 || fe.RemoteAddr != wr.Remote.Addr {
						t.Errorf("fragment %d of %d at %#x", fe.Fragment, fe.Fragments, fe.RemoteAddr)
					}
					if fe.Part != want {
						t.Errorf("part %v, want %v", fe.Part, want)
					}
				})
			}
		}
	}
}

// An atomic without memory is refused over one queue pair as over several, and so is one that is
// not aligned: the NIC would end the connection.
func TestAtomicsOfNoBytesAreRefused(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for _, op := range []verbs.Opcode{verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
			for _, c := range []struct {
				name string
				edit func(e *vqptest.End, wr *ibverbx.SendWR)
				want error
			}{
				{"no local memory", func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Local = ibverbx.Segment{} },
					ibverbx.ErrLength},
				{"no local memory, not aligned", func(e *vqptest.End, wr *ibverbx.SendWR) {
					wr.Local, wr.Remote = ibverbx.Segment{}, e.Peer.Slice(4, 8)
				}, ibverbx.ErrLength},
				{"empty pieces", func(e *vqptest.End, wr *ibverbx.SendWR) {
					wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(0, 0), {}}
				}, ibverbx.ErrLength},
				{"no memory at all", func(_ *vqptest.End, wr *ibverbx.SendWR) {
					wr.Local, wr.Remote = ibverbx.Segment{}, ibverbx.RemoteSegment{}
				}, ibverbx.ErrLength},
				{"not aligned", func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Remote = e.Peer.Slice(4, 8) },
					ibverbx.ErrAlignment},
			} {
				wr := l.A.Write(op, 1, 0, 8)
				c.edit(l.A, &wr)
				n, err := l.A.PostSend(wr)
				if n != 0 || !errors.Is(err, c.want) {
					t.Errorf("%v, %s: %d accepted, %v; want %v", op, c.name, n, err, c.want)
				}
			}
		}
		l.A.Send(t, l.A.Write(verbs.OpAtomicFetchAdd, 2, 0, 8))
		if got := vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess); got[0] != 2 {
			t.Errorf("completed %v", got)
		}
	})
}
