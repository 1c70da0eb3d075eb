package api_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// boundary is a limit of requests: a request on it is accepted, the next one beyond is refused.
type boundary struct {
	name   string
	within func(e *vqptest.End, wr *ibverbx.SendWR)
	beyond func(e *vqptest.End, wr *ibverbx.SendWR)
	want   error
	says   string
}

// pieces gives a request n pieces of size bytes each, from the buffer's beginning on.
func pieces(e *vqptest.End, wr *ibverbx.SendWR, n int, size uint64) {
	wr.Local, wr.SGL = ibverbx.Segment{}, nil
	for i := range uint64(n) {
		wr.SGL = append(wr.SGL, e.MR.Slice(i*size, size))
	}
}

func inline(wr *ibverbx.SendWR, n int) {
	wr.Flags, wr.Local, wr.Inline = wr.Flags|verbs.SendInline, ibverbx.Segment{}, make([]byte, n)
}

func everyRail(e *vqptest.End, wr *ibverbx.SendWR, n uint64) {
	wr.EveryRail, wr.Local, wr.Remote = true, e.MR.Slice(0, n), e.Peer.Slice(0, n)
}

func fetchAdd(e *vqptest.End, wr *ibverbx.SendWR, at uint64) {
	wr.Opcode, wr.Local, wr.Remote = verbs.OpAtomicFetchAdd, e.MR.Slice(0, 8), e.Peer.Slice(at, 8)
}

const (
	boundFragment = 1000
	boundPieces   = 3
	boundInline   = 32
)

// Limits of every virtual queue pair.
var boundaries = []boundary{
	{"inline bytes",
		func(_ *vqptest.End, wr *ibverbx.SendWR) { inline(wr, boundInline) },
		func(_ *vqptest.End, wr *ibverbx.SendWR) { inline(wr, boundInline+1) },
		ibverbx.ErrLength, "33 bytes inline"},
	{"pieces of a SEND",
		func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Opcode = verbs.OpSend; pieces(e, wr, boundPieces, 8) },
		func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Opcode = verbs.OpSend
			pieces(e, wr, boundPieces+1,
				8)
		},
		verbs.ErrInvalid, "4 pieces"},
	{"pieces of an atomic",
		func(e *vqptest.End, wr *ibverbx.SendWR) { fetchAdd(e, wr, 0); pieces(e, wr, 1, 8) },
		func(e *vqptest.End, wr *ibverbx.SendWR) { fetchAdd(e, wr, 0); pieces(e, wr, 2, 4) },
		ibverbx.ErrLength, "8 bytes in 2 pieces"},
	{"bytes of an atomic",
		func(e *vqptest.End, wr *ibverbx.SendWR) { fetchAdd(e, wr, 0) },
		func(e *vqptest.End, wr *ibverbx.SendWR) { fetchAdd(e, wr, 0); wr.Local.Length = 0 },
		ibverbx.ErrLength, "of 0 bytes in 1 pieces"},
	{"alignment of an atomic",
		func(e *vqptest.End, wr *ibverbx.SendWR) { fetchAdd(e, wr, 8) },
		func(e *vqptest.End, wr *ibverbx.SendWR) { fetchAdd(e, wr, 9) },
		ibverbx.ErrAlignment, "multiple of 8"},
	{"the end of the buffer",
		func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = e.MR.Slice(e.MR.Len()-64, 64) },
		func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = e.MR.Slice(e.MR.Len()-63, 64) },
		ibverbx.ErrBounds, "reaches beyond its region"},
	{"the end of a remote segment",
		func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Remote.Length = 64 },
		func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Remote.Length = 63 },
		ibverbx.ErrBounds, "64 bytes for a remote segment of 63"},
	{"pieces without keys",
		func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(0, 8), {}, e.MR.Slice(8, 8)}
		},
		func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(0, 8), {Length: 1}}
		},
		ibverbx.ErrNoKey, "has no keys"},
	{"pieces that wrap",
		func(e *vqptest.End, wr *ibverbx.SendWR) { pieces(e, wr, 2, 8) },
		func(_ *vqptest.End, wr *ibverbx.SendWR) {
			keys := map[verbs.DeviceID]uint32{}
			for dev := range verbs.DeviceID(8) {
				keys[dev] = 1
			}
			huge := ibverbx.Segment{Length: math.MaxUint64, Keys: ibverbx.NewKeys(keys)}
			wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{huge, {Length: 1, Keys: huge.Keys}}
		},
		ibverbx.ErrLength, "longer than the address space"},
	{"what is relaxed",
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Opcode, wr.Relaxed = verbs.OpSend, true },
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Relaxed = true },
		verbs.ErrInvalid, "cannot be Relaxed"},
	{"what goes over every rail",
		func(e *vqptest.End, wr *ibverbx.SendWR) { everyRail(e, wr, 64) },
		func(e *vqptest.End, wr *ibverbx.SendWR) {
			everyRail(e, wr,
				64)
			wr.Opcode = verbs.OpRDMAWriteWithImm
		},
		verbs.ErrInvalid, "cannot go over EveryRail"},
	{"pieces over every rail",
		func(e *vqptest.End, wr *ibverbx.SendWR) { everyRail(e, wr, 64); pieces(e, wr, boundPieces, 16) },
		func(e *vqptest.End, wr *ibverbx.SendWR) { everyRail(e, wr, 64); pieces(e, wr, boundPieces+1, 16) },
		verbs.ErrInvalid, "4 pieces"},
	{"a payload without its flag",
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Inline = []byte{} },
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Inline = []byte{1} },
		verbs.ErrInvalid, "the flag SendInline is not"},
	{"flags",
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Flags |= verbs.SendFence | verbs.SendSolicited },
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Flags |= 1 << 9 },
		verbs.ErrInvalid, "unknown bits"},
}

// Limits of several queue pairs.
var fragmentedBoundaries = []boundary{
	{"a signal",
		func(_ *vqptest.End, _ *ibverbx.SendWR) {},
		func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Flags = 0 },
		ibverbx.ErrUnsignaled, "needs SendSignaled"},
	{"bytes on each rail",
		func(e *vqptest.End, wr *ibverbx.SendWR) { everyRail(e, wr, boundFragment*uint64(e.DataRails())) },
		func(e *vqptest.End, wr *ibverbx.SendWR) {
			everyRail(e, wr,
				(boundFragment+1)*uint64(e.DataRails()))
		},
		ibverbx.ErrLength, "a fragment has at most 1000"},
	{"an even cut",
		func(e *vqptest.End, wr *ibverbx.SendWR) { everyRail(e, wr, uint64(e.DataRails())) },
		func(e *vqptest.End, wr *ibverbx.SendWR) { everyRail(e, wr, uint64(e.DataRails())+1) },
		ibverbx.ErrLength, "must be a multiple of"},
}

// Every limit of a request is exactly where it is said to be: one on it is carried out, one beyond
// is refused with its error, without effect, and the connection goes on.
func TestRequestsUpToTheirLimits(t *testing.T) {
	for _, m := range vqptest.Modes {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, QP: ibverbx.Config{Scheme: m.Scheme,
			QPsPerDevice: m.QPs,
			FragmentSize: boundFragment, MaxSGE: boundPieces, MaxInline: boundInline}})
		list := boundaries
		if l.A.DataRails() > 1 {
			list = append(list[:len(list):len(list)], fragmentedBoundaries...)
		}
		for _, c := range list {
			request := func(edit func(*vqptest.End, *ibverbx.SendWR)) ibverbx.SendWR {
				wr := l.A.Write(verbs.OpRDMAWrite, 5, 0, 64)
				edit(l.A, &wr)
				return wr
			}
			within := request(c.within)
			if within.Opcode == verbs.OpSend {
				if _, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 64)}); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := l.A.PostSend(within); n != 1 || err != nil {
				t.Errorf("%s, %s: refused at the limit: %v", m.Name, c.name, err)
				continue
			}
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			n, err := l.A.PostSend(request(c.beyond))
			if n != 0 || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, %s: beyond the limit: %d accepted, %v; want %v that says %q", m.Name, c.name, n,
					err, c.want, c.says)
			}
			if s := l.A.Stats(); s.State != verbs.StateRTS || s.SendWindow != 0 {
				t.Fatalf("%s, %s: a trace is left: %+v", m.Name, c.name, s)
			}
		}
	}
}

// A single queue pair cuts nothing, so FragmentSize bounds no message of it, over "every" rail
// neither.
func TestSingleQueuePairIgnoresTheSizeOfFragments(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: boundFragment}})
	wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 0)
	everyRail(l.A, &wr, boundFragment+1)
	l.A.Send(t, wr)
	vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
}

// A SEND needs a key for the device whose queue pair carries it, and for no other.
func TestSendNeedsTheKeyOfItsCarrier(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{}, func(t *testing.T, l *vqptest.Link) {
		carrier := l.A.NICs[0].ID()
		key, _ := l.A.MR.Keys().Key(carrier)
		local := l.A.MR.Slice(0, 8)
		for dev := range verbs.DeviceID(8) {
			local.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{dev: key})
			n, err := l.A.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
				Local: local})
			if (n == 1) != (dev == carrier) || n == 0 && !errors.Is(err, ibverbx.ErrNoKey) {
				t.Errorf("a key for device %d: %d accepted, %v", dev, n, err)
			}
			into := l.B.MR.Slice(0, 8)
			into.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{dev: 1})
			n, err = l.B.PostRecv(ibverbx.RecvWR{Local: into})
			if (n == 1) != (dev == l.B.NICs[0].ID()) || n == 0 && !errors.Is(err, ibverbx.ErrNoKey) {
				t.Errorf("a receive with a key for device %d: %d accepted, %v", dev, n, err)
			}
		}
	})
}

// A receive has as many pieces as the queue pair takes, and no piece is longer than a message.
func TestReceivesUpToTheirLimits(t *testing.T) {
	for _, m := range vqptest.Modes {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, QP: ibverbx.Config{Scheme: m.Scheme,
			QPsPerDevice: m.QPs,
			MaxRecvSGE:   boundPieces}})
		var wr ibverbx.SendWR
		for _, c := range []struct {
			pieces int
			want   error
		}{{boundPieces, nil}, {boundPieces + 1, verbs.ErrInvalid}} {
			pieces(l.B, &wr, c.pieces, 8)
			n, err := l.B.PostRecv(ibverbx.RecvWR{SGL: wr.SGL})
			if !errors.Is(err, c.want) || (n == 1) != (c.want == nil) {
				t.Errorf("%s: %d pieces: %d accepted, %v", m.Name, c.pieces, n, err)
			}
		}
		huge := ibverbx.Segment{Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{l.B.NICs[0].ID(): 1})}
		for _, c := range []struct {
			length uint64
			want   error
		}{{1 << 31, nil}, {1<<31 + 1, ibverbx.ErrLength}} {
			huge.Length = c.length
			n, err := l.B.PostRecv(ibverbx.RecvWR{Local: huge})
			if !errors.Is(err, c.want) || (n == 1) != (c.want == nil) {
				t.Errorf("%s: a piece of %d bytes: %d accepted, %v", m.Name, c.length, n, err)
			}
		}
	}
}

func TestOrderOptionsAreRefusedWhereTheyDoNotApply(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		rails := uint64(l.A.DataRails())
		every := func(op verbs.Opcode, n uint64) ibverbx.SendWR {
			wr := l.A.Write(op, 1, 0, n)
			wr.EveryRail = true
			return wr
		}
		relaxed := func(op verbs.Opcode) ibverbx.SendWR {
			wr := l.A.Write(op, 1, 0, 8)
			wr.Relaxed = true
			return wr
		}
		pieces := every(verbs.OpRDMARead, 0)
		pieces.Local = ibverbx.Segment{}
		for range 64 * rails {
			pieces.SGL = append(pieces.SGL, l.A.MR.Slice(0, 1))
		}
		type refusal struct {
			wr   ibverbx.SendWR
			want error
			says string
		}
		list := []refusal{
			{relaxed(verbs.OpRDMAWrite), verbs.ErrInvalid, "Relaxed"},
			{relaxed(verbs.OpRDMAWriteWithImm), verbs.ErrInvalid, "Relaxed"},
			{relaxed(verbs.OpRDMARead), verbs.ErrInvalid, "Relaxed"},
			{relaxed(verbs.OpAtomicFetchAdd), verbs.ErrInvalid, "Relaxed"},
			{every(verbs.OpRDMAWriteWithImm, rails), verbs.ErrInvalid, "EveryRail"},
			{every(verbs.OpSend, rails), verbs.ErrInvalid, "EveryRail"},
			{every(verbs.OpAtomicCmpAndSwp, 8), verbs.ErrInvalid, "EveryRail"},
			{every(verbs.OpRDMARead, 0), ibverbx.ErrLength,
				fmt.Sprintf("0 bytes over every rail: must be a multiple of the %d", rails)},
			{pieces, verbs.ErrInvalid, "pieces over every rail"},
		}
		if rails > 1 {
			list = append(list,
				refusal{every(verbs.OpRDMARead, rails+1), ibverbx.ErrLength,
					fmt.Sprintf("must be a multiple of the %d", rails)},
				refusal{every(verbs.OpRDMAWrite, rails*1001), ibverbx.ErrLength,
					"a fragment has at most 1000"})
		}
		for _, c := range list {
			if n, err := l.A.PostSend(c.wr); n != 0 || !errors.Is(err, c.want) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: %d, %v", c.wr.Opcode, n, err)
			}
		}
		if s := l.A.Stats(); s.Sends != 0 || s.SendWindow != 0 {
			t.Errorf("a trace is left: %+v", s)
		}
	})
}

// What travels as one message is refused where it is longer than the NIC's port carries, and
// nothing is lost: a SEND always, and on a single queue pair everything.
func TestMessagesBeyondThePortAreRefused(t *testing.T) {
	const longest = 4096
	fabric := soft.Config{Device: soft.DeviceConfig{MaxMsgSize: longest}}
	for _, m := range vqptest.Modes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
			t.Run(fmt.Sprintf("%s/%v", m.Name, op), func(t *testing.T) {
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, Fabric: fabric,
					QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs}})
				if op.IsSend() {
					if _, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 2*longest)}); err != nil {
						t.Fatal(err)
					}
				}
				n, err := l.A.PostSend(l.A.Write(op, 1, 0, longest+1))
				if !op.IsSend() && m.Name != "single" {
					if err != nil {
						t.Fatal(err) // it is fragmented
					}
					vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
					return
				}
				if n != 0 || !errors.Is(err, ibverbx.ErrLength) || !strings.Contains(err.Error(), "4096") {
					t.Fatalf("%d, %v", n, err)
				}
				l.A.Send(t, l.A.Write(op, 2, 0, longest))
				vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			})
		}
	}
}
