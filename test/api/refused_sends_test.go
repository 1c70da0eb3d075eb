package api_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// ruled is an end to which the rules of requests are applied.
type ruled struct {
	*vqptest.End
	closed ibverbx.Segment // 64 bytes of a region that was closed
	oneNIC ibverbx.Segment // of a region that only the first NIC has
}

// edit makes another request of a write of 64 bytes.
type edit func(e *ruled, wr *ibverbx.SendWR)

// sendRule is a rule that requests keep: one at its limit is carried out, one beyond is refused.
type sendRule struct {
	name   string
	on     func(e *ruled) bool // the ends that have the rule; nil: every one
	within edit                // nil: the write
	beyond edit                // nil: there is no limit
	want   error
	says   string
}

const (
	ruleFragment = 1000 // the limits of a ruled end
	rulePieces   = 3
	ruleInline   = 32
)

func overOne(e *ruled) bool             { return e.DataRails() == 1 }
func overSeveral(e *ruled) bool         { return e.DataRails() > 1 }
func overTwoNICs(e *ruled) bool         { return len(e.NICs) > 1 }
func unchanged(*ruled, *ibverbx.SendWR) {}

// all makes several changes, one after the other.
func all(edits ...edit) edit {
	return func(e *ruled, wr *ibverbx.SendWR) {
		for _, change := range edits {
			change(e, wr)
		}
	}
}

func opcode(op verbs.Opcode) edit { return func(_ *ruled, wr *ibverbx.SendWR) { wr.Opcode = op } }

func flags(f verbs.SendFlags) edit { return func(_ *ruled, wr *ibverbx.SendWR) { wr.Flags |= f } }

func relaxed(_ *ruled, wr *ibverbx.SendWR) { wr.Relaxed = true }

// inline gives a request n bytes of its own in place of memory.
func inline(n int) edit {
	return func(_ *ruled, wr *ibverbx.SendWR) {
		wr.Flags, wr.Local, wr.Inline = wr.Flags|verbs.SendInline, ibverbx.Segment{}, make([]byte, n)
	}
}

// local gives a request n bytes from an offset of the buffer on, and remote names such at the peer.
func local(off, n uint64) edit {
	return func(e *ruled, wr *ibverbx.SendWR) { wr.Local = e.MR.Slice(off, n) }
}

func remote(off, n uint64) edit {
	return func(e *ruled, wr *ibverbx.SendWR) { wr.Remote = e.Peer.Slice(off, n) }
}

func nothing(_ *ruled, wr *ibverbx.SendWR) { wr.Local = ibverbx.Segment{} }

// list gives a request the pieces that a function names.
func list(of func(e *ruled) []ibverbx.Segment) edit {
	return func(e *ruled, wr *ibverbx.SendWR) { wr.Local, wr.SGL = ibverbx.Segment{}, of(e) }
}

// pieces gives a request n pieces of size bytes each, from the buffer's beginning on.
func pieces(n int, size uint64) edit {
	return list(func(e *ruled) (sgl []ibverbx.Segment) {
		for i := range uint64(n) {
			sgl = append(sgl, e.MR.Slice(i*size, size))
		}
		return sgl
	})
}

// everyRail has a request go over every rail: so many bytes on each, and some more.
func everyRail(each, more uint64) edit {
	return func(e *ruled, wr *ibverbx.SendWR) {
		n := each*uint64(e.DataRails()) + more
		wr.EveryRail, wr.Local, wr.Remote = true, e.MR.Slice(0, n), e.Peer.Slice(0, n)
	}
}

// atomicOn makes an atomic of a word of the peer.
func atomicOn(op verbs.Opcode, at uint64) edit { return all(opcode(op), local(0, 8), remote(at, 8)) }

var fetchAdd = atomicOn(verbs.OpAtomicFetchAdd, 0)

// everyKey is a key for each NIC that there may be.
func everyKey() *ibverbx.Keys {
	keys := map[verbs.DeviceID]uint32{}
	for dev := range verbs.DeviceID(8) {
		keys[dev] = 1
	}
	return ibverbx.NewKeys(keys)
}

// sendRules are all of them. The simulation spoils requests in many of these ways while they move;
// here stands where each limit lies, and what the refusal says.
var sendRules = slices.Concat([]sendRule{
	{"the opcodes", nil, nil, opcode(77), ibverbx.ErrOpcode, "opcode 77"},
	{"a signal", overSeveral, nil, func(_ *ruled, wr *ibverbx.SendWR) { wr.Flags = 0 }, ibverbx.ErrUnsignaled,
		"needs SendSignaled"},
	{"flags", nil, flags(verbs.SendFence | verbs.SendSolicited), flags(1 << 9), verbs.ErrInvalid,
		"unknown bits"},

	{"inline bytes", nil, inline(ruleInline), inline(ruleInline + 1), ibverbx.ErrLength, "33 bytes inline"},
	{"a payload without its flag", nil, func(_ *ruled, wr *ibverbx.SendWR) { wr.Inline = []byte{} },
		func(_ *ruled, wr *ibverbx.SendWR) { wr.Inline = []byte{1} }, verbs.ErrInvalid,
		"the flag SendInline is not"},
	{"inline beside memory", nil, nil, flags(verbs.SendInline), verbs.ErrInvalid, "leave Local"},
	{"an inline read", nil, nil, all(inline(1), opcode(verbs.OpRDMARead)), verbs.ErrInvalid,
		"cannot be inline"},
	{"a list beside a piece", nil, nil,
		func(_ *ruled, wr *ibverbx.SendWR) { wr.SGL = []ibverbx.Segment{wr.Local} }, verbs.ErrInvalid,
		"use one"},

	{"the beginning of the buffer", nil, local(0, 64),
		func(e *ruled, wr *ibverbx.SendWR) { wr.Local.Addr = e.MR.Addr() - 1 }, ibverbx.ErrBounds,
		"reaches beyond"},
	{"the end of the buffer", nil, local(1<<20-64, 64), local(1<<20-63, 64), ibverbx.ErrBounds,
		"reaches beyond its region"},
	{"an offset that wraps", nil, nil, local(math.MaxUint64-10, 64), ibverbx.ErrBounds, "reaches beyond"},
	{"a piece beyond the buffer", nil, pieces(2, 8), list(func(e *ruled) []ibverbx.Segment {
		return []ibverbx.Segment{e.MR.Slice(0, 8), e.MR.Slice(1<<20, 8)}
	}), ibverbx.ErrBounds, "reaches beyond"},
	{"the end of the peer's buffer", nil, remote(1<<20-64, 64), remote(1<<20-63, 64), ibverbx.ErrBounds,
		"reaches beyond"},
	{"the end of a remote segment", nil, remote(0, 64), remote(0, 63), ibverbx.ErrBounds,
		"64 bytes for a remote segment of 63"},
	{"pieces that wrap", nil, pieces(2, 8), list(func(*ruled) []ibverbx.Segment {
		return []ibverbx.Segment{{Length: math.MaxUint64, Keys: everyKey()}, {Length: 1, Keys: everyKey()}}
	}), ibverbx.ErrLength, "longer than the address space"},

	{"local keys", nil, nil, func(_ *ruled, wr *ibverbx.SendWR) { wr.Local.Keys = nil }, ibverbx.ErrNoKey,
		"MR.Slice"},
	{"local keys of each NIC", overTwoNICs, nil,
		func(e *ruled, wr *ibverbx.SendWR) { wr.Local = e.oneNIC }, ibverbx.ErrNoKey,
		"register it on every device"},
	{"pieces of one NIC", overTwoNICs, nil, list(func(e *ruled) []ibverbx.Segment {
		return []ibverbx.Segment{e.oneNIC, e.oneNIC}
	}), ibverbx.ErrNoKey, "register it on every device"},
	{"a piece of one NIC before another", overTwoNICs, nil, list(func(e *ruled) []ibverbx.Segment {
		return []ibverbx.Segment{e.oneNIC, e.MR.Slice(0, 8)}
	}), ibverbx.ErrNoKey, "register it on every device"},
	{"a piece of one NIC behind another", overTwoNICs, nil, list(func(e *ruled) []ibverbx.Segment {
		return []ibverbx.Segment{e.MR.Slice(0, 8), e.oneNIC}
	}), ibverbx.ErrNoKey, "register it on every device"},
	{"pieces without keys", nil, list(func(e *ruled) []ibverbx.Segment {
		return []ibverbx.Segment{e.MR.Slice(0, 8), {}, e.MR.Slice(8, 8)}
	}), list(func(e *ruled) []ibverbx.Segment {
		return []ibverbx.Segment{e.MR.Slice(0, 8), {Length: 1}}
	}), ibverbx.ErrNoKey, "has no keys"},
	{"remote keys", nil, nil, func(_ *ruled, wr *ibverbx.SendWR) { wr.Remote.Keys = nil }, ibverbx.ErrNoKey,
		"remote memory"},
	{"remote keys of each NIC", nil, nil, func(_ *ruled, wr *ibverbx.SendWR) {
		wr.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{63: 1})
	}, ibverbx.ErrNoKey, "device"},

	{"a closed region", nil, nil, func(e *ruled, wr *ibverbx.SendWR) { wr.Local = e.closed },
		ibverbx.ErrClosed, "region"},
	{"a closed region to read into", nil, nil,
		all(opcode(verbs.OpRDMARead), func(e *ruled, wr *ibverbx.SendWR) { wr.Local = e.closed }),
		ibverbx.ErrClosed, "region"},
	{"no bytes of a closed region", nil, nil,
		func(e *ruled, wr *ibverbx.SendWR) { wr.Local = e.closed; wr.Local.Length = 0 }, ibverbx.ErrClosed,
		"region"},

	{"bytes of an atomic", nil, fetchAdd, all(fetchAdd, local(0, 0)), ibverbx.ErrLength,
		"of 0 bytes in 1 pieces"},
	{"no more bytes of an atomic", nil, fetchAdd, opcode(verbs.OpAtomicFetchAdd), ibverbx.ErrLength, "eight"},
	{"pieces of an atomic", nil, all(fetchAdd, pieces(1, 8)), all(fetchAdd, pieces(2, 4)), ibverbx.ErrLength,
		"8 bytes in 2 pieces"},
	{"empty pieces of an atomic", nil, nil, all(fetchAdd, pieces(2, 0)), ibverbx.ErrLength, "eight"},
	{"memory of an atomic", nil, nil, all(atomicOn(verbs.OpAtomicCmpAndSwp, 4), nothing), ibverbx.ErrLength,
		"eight"},
	{"memory of an atomic at either end", nil, nil, all(fetchAdd, nothing,
		func(_ *ruled, wr *ibverbx.SendWR) { wr.Remote = ibverbx.RemoteSegment{} }), ibverbx.ErrLength,
		"eight"},
	{"alignment of FETCH_ADD", nil, atomicOn(verbs.OpAtomicFetchAdd, 8), atomicOn(verbs.OpAtomicFetchAdd, 9),
		ibverbx.ErrAlignment, "multiple of 8"},
	{"alignment of CMP_SWAP", nil, atomicOn(verbs.OpAtomicCmpAndSwp, 8), atomicOn(verbs.OpAtomicCmpAndSwp, 4),
		ibverbx.ErrAlignment, "multiple of 8"},

	{"pieces of a SEND", nil, all(opcode(verbs.OpSend), pieces(rulePieces, 8)),
		all(opcode(verbs.OpSend), pieces(rulePieces+1, 8)), verbs.ErrInvalid, "4 pieces"},
	{"bytes of a SEND", nil, opcode(verbs.OpSend), all(opcode(verbs.OpSend),
		func(_ *ruled, wr *ibverbx.SendWR) {
			wr.Local = ibverbx.Segment{Addr: 1, Length: 1<<31 + 1, Keys: everyKey()}
		}), ibverbx.ErrLength, "2147483649"},
	{"bytes of one message", overOne, nil, func(_ *ruled, wr *ibverbx.SendWR) {
		wr.Local = ibverbx.Segment{Addr: 1, Length: 1 << 32, Keys: everyKey()}
	}, ibverbx.ErrLength, "several queue pairs"},

	{"bytes over every rail", nil, everyRail(64, 0), all(everyRail(0, 0), opcode(verbs.OpRDMARead)),
		ibverbx.ErrLength, "not 0"},
	{"pieces over every rail", nil, all(everyRail(16, 0), func(e *ruled, wr *ibverbx.SendWR) {
		pieces(rulePieces, wr.Local.Length/rulePieces)(e, wr)
		wr.SGL[0].Length += wr.Remote.Length % rulePieces
	}), all(everyRail(64, 0), pieces(rulePieces+1, 16)), verbs.ErrInvalid, "4 pieces over every rail"},
	{"bytes on each rail", overSeveral, everyRail(ruleFragment, 0), everyRail(ruleFragment+1, 0),
		ibverbx.ErrLength, "a fragment has at most 1000"},
	{"an even cut", overSeveral, everyRail(1, 0), everyRail(1, 1), ibverbx.ErrLength,
		"must be a multiple of"},
	{"fragments of one queue pair", overOne, everyRail(ruleFragment+1, 0), nil, nil, ""},
}, optionRules(), closedPieces())

// optionRules says which operations may be relaxed, and which may go over every rail.
func optionRules() (list []sendRule) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead,
		verbs.OpAtomicFetchAdd} {
		list = append(list, sendRule{"a relaxed " + op.String(), nil, all(opcode(verbs.OpSend), relaxed),
			all(opcode(op), relaxed), verbs.ErrInvalid, "cannot be Relaxed"})
	}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpAtomicCmpAndSwp} {
		list = append(list, sendRule{op.String() + " over every rail", nil, everyRail(8, 0),
			all(everyRail(8, 0), opcode(op)), verbs.ErrInvalid, "cannot go over EveryRail"})
	}
	return list
}

// closedPieces has a closed region in each place of a list.
func closedPieces() (rules []sendRule) {
	for place := range rulePieces {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
			spoilt := list(func(e *ruled) []ibverbx.Segment { return piecesAround(e, place) })
			rules = append(rules, sendRule{"a closed region in a list", nil, nil,
				all(opcode(op), remote(0, 80), spoilt), ibverbx.ErrClosed, "region"})
		}
	}
	return rules
}

// piecesAround is a list with a piece of a closed region.
func piecesAround(e *ruled, place int) []ibverbx.Segment {
	sgl := []ibverbx.Segment{e.MR.Slice(0, 8), e.MR.Slice(8, 8), e.MR.Slice(16, 8)}
	sgl[place] = e.closed
	return sgl
}

// newRuled makes a link in a mode whose ends have the limits of the rules.
func newRuled(t *testing.T, m *vqptest.Mode) (a, b *ruled) {
	t.Helper()
	l := m.Link(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: ruleFragment, MaxSGE: rulePieces,
		MaxInline: ruleInline}})
	rule := func(e *vqptest.End) *ruled {
		dom, err := ibverbx.NewDomain(e.NICs[0])
		if err != nil {
			t.Fatal(err)
		}
		one, err := dom.Register(make([]byte, 64), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		mr, err := e.Domain().Register(make([]byte, 64), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		r := &ruled{e, mr.All(), one.All()}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = one.Close(); _ = dom.Close() }) // ahead of the link
		return r
	}
	return rule(l.A), rule(l.B)
}

// A request that keeps a rule is carried out. One that breaks it is refused, with an error of its
// own that says what to do, and leaves no trace; those before it in the call are accepted, and the
// connection goes on.
func TestRefusedSendsHaveNoEffect(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			a, b := newRuled(t, &m)
			for _, c := range sendRules {
				if c.on == nil || c.on(a) {
					c.apply(t, a, b)
				}
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := a.MR.Close(); err != nil {
				t.Errorf("something of a refused request is left: %v", err)
			}
		})
	}
}

func (c *sendRule) apply(t *testing.T, a, b *ruled) {
	t.Helper()
	request := func(id uint64, change edit) ibverbx.SendWR {
		wr := a.Write(verbs.OpRDMAWrite, id, 0, 64)
		if change != nil {
			change(a, &wr)
		}
		return wr
	}
	within := request(1, c.within)
	if within.Opcode.IsSend() {
		if _, err := b.PostRecv(ibverbx.RecvWR{Local: b.MR.Slice(0, 64)}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.PostSend(within); n != 1 || err != nil {
		t.Errorf("%s: refused at the limit: %v", c.name, err)
		return
	}
	vqptest.IDs(t, a.Wait(t, 1), verbs.StatusSuccess)
	if c.beyond == nil {
		return
	}
	before := a.Stats()
	n, err := a.PostSend(request(1, unchanged), request(2, unchanged), request(5, c.beyond),
		request(6, unchanged))
	var refused *ibverbx.PostError
	if n != 2 || !errors.Is(err, c.want) || !errors.As(err, &refused) || refused.Index != 2 ||
		refused.ID != 5 || refused.Op != "post send" || !strings.Contains(err.Error(), c.says) {
		t.Fatalf("%s: beyond the limit: %d accepted, %v; want 2, and %v at index 2 that says %q", c.name, n,
			err, c.want, c.says)
	}
	if got := vqptest.IDs(t, a.Wait(t, 2), verbs.StatusSuccess); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("%s: completed %v", c.name, got)
	}
	after := a.Stats()
	if more := a.Poll(t); len(more) != 0 || after.State != verbs.StateRTS || after.SendWindow != 0 ||
		after.Sends != before.Sends+2 {
		t.Fatalf("%s: a trace is left: %s %+v", c.name, vqptest.FormatWCs(more), after)
	}
}

// A SEND needs a key for the device whose queue pair carries it, and for no other; so does a
// receive.
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
