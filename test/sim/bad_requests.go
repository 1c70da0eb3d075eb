package sim

import (
	"errors"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// Requests that must be refused, and with which error. Each is a good request that was spoilt, and
// must have no effect.

// badSend is a way to spoil a request.
type badSend struct {
	name  string
	want  error
	where where
	spoil func(e *end, wr *ibverbx.SendWR)
}

// where says on which virtual queue pairs a spoilt request is an error.
type where uint8

const (
	anywhere  where = iota
	onSeveral       // several queue pairs
	withSends       // those that carry SEND
	noSends         // those that do not
	withNotifications
	noNotifications
)

// fits says whether an end is of that kind.
func (w where) fits(e *end) bool {
	carries := e.single || e.vq.Scheme() == ibverbx.Spray || !e.vq.Config().NoNotifyQP || e.plainPeer
	switch w {
	case onSeveral:
		return !e.single
	case withSends:
		return carries
	case noSends:
		return !carries
	case withNotifications:
		return !e.mute()
	case noNotifications:
		return e.mute()
	}
	return true
}

var badSends = []badSend{
	{"an unknown opcode", ibverbx.ErrOpcode, anywhere, func(_ *end, wr *ibverbx.SendWR) { wr.Opcode = 77 }},
	{"no signal", ibverbx.ErrUnsignaled, onSeveral,
		func(_ *end, wr *ibverbx.SendWR) { wr.Flags &^= verbs.SendSignaled }},
	{"unknown flags", verbs.ErrInvalid, anywhere, func(_ *end, wr *ibverbx.SendWR) { wr.Flags |= 1 << 20 }},
	{"inline bytes without the flag", verbs.ErrInvalid, anywhere,
		func(_ *end, wr *ibverbx.SendWR) { wr.Inline = []byte{1} }},
	{"inline bytes and memory", verbs.ErrInvalid, anywhere, func(_ *end, wr *ibverbx.SendWR) {
		wr.Flags, wr.Inline = wr.Flags|verbs.SendInline, []byte{1}
	}},
	{"an inline read", verbs.ErrInvalid, anywhere, func(_ *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.Flags, wr.Local, wr.Inline = verbs.OpRDMARead, wr.Flags|verbs.SendInline,
			ibverbx.Segment{}, []byte{1}
	}},
	{"too much inline", ibverbx.ErrLength, anywhere, func(_ *end, wr *ibverbx.SendWR) {
		wr.Flags, wr.Local, wr.Inline = wr.Flags|verbs.SendInline, ibverbx.Segment{}, make([]byte, 1000)
	}},
	{"a list and a piece", verbs.ErrInvalid, anywhere,
		func(_ *end, wr *ibverbx.SendWR) { wr.SGL = []ibverbx.Segment{wr.Local} }},
	{"no bytes for every rail", ibverbx.ErrLength, anywhere,
		func(_ *end, wr *ibverbx.SendWR) { wr.EveryRail, wr.Local.Length = true, 0 }},
	{"an atomic of no bytes", ibverbx.ErrLength, anywhere, func(e *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.Local, wr.Remote = verbs.OpAtomicFetchAdd, ibverbx.Segment{},
			e.peer.host.Remote.Slice(uint64(e.w.Rng.IntN(8)), 8)
	}},
	{"no local keys", ibverbx.ErrNoKey, anywhere, func(_ *end, wr *ibverbx.SendWR) { wr.Local.Keys = nil }},
	{"a key for another device", ibverbx.ErrNoKey, anywhere, func(_ *end, wr *ibverbx.SendWR) {
		wr.Local.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{63: 1})
	}},
	{"local memory beyond the region", ibverbx.ErrBounds, anywhere,
		func(e *end, wr *ibverbx.SendWR) { wr.Local = e.host.MR.Slice(arenaSize-1, 8) }},
	{"a list beyond the region", ibverbx.ErrBounds, anywhere, func(e *end, wr *ibverbx.SendWR) {
		wr.SGL, wr.Local = []ibverbx.Segment{e.host.MR.Slice(0, 4), e.host.MR.Slice(arenaSize-1, 4)},
			ibverbx.Segment{}
	}},
	{"a list round the address space", ibverbx.ErrLength, anywhere, func(_ *end, wr *ibverbx.SendWR) {
		huge := ibverbx.Segment{Addr: 1, Length: 1<<63 + 1, Keys: everyKey()}
		wr.SGL, wr.Local = []ibverbx.Segment{huge, huge}, ibverbx.Segment{}
	}},
	{"no remote keys", ibverbx.ErrNoKey, anywhere, func(_ *end, wr *ibverbx.SendWR) { wr.Remote.Keys = nil }},
	{"a remote key for another device", ibverbx.ErrNoKey, anywhere, func(_ *end, wr *ibverbx.SendWR) {
		wr.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{63: 1})
	}},
	{"more than the remote segment", ibverbx.ErrBounds, anywhere,
		func(_ *end, wr *ibverbx.SendWR) { wr.Remote.Length = wr.Local.Length - 1 }},
	{"remote memory beyond the region", ibverbx.ErrBounds, anywhere,
		func(e *end, wr *ibverbx.SendWR) { wr.Remote = e.peer.host.Remote.Slice(arenaSize-2, 1000) }},
	{"an atomic of nine bytes", ibverbx.ErrLength, anywhere, func(e *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.Local, wr.Remote = verbs.OpAtomicFetchAdd, e.host.MR.Slice(0, 9),
			e.peer.host.Remote.Slice(0, 9)
	}},
	{"an atomic that is not aligned", ibverbx.ErrAlignment, anywhere, func(e *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.Local, wr.Remote = verbs.OpAtomicFetchAdd, e.host.MR.Slice(0, 8),
			e.peer.host.Remote.Slice(4, 8)
	}},
	{"relaxed order", verbs.ErrInvalid, anywhere, func(_ *end, wr *ibverbx.SendWR) { wr.Relaxed = true }},
	{"a notification that nothing carries", ibverbx.ErrOpcode, noNotifications,
		func(_ *end, wr *ibverbx.SendWR) { wr.Opcode = verbs.OpRDMAWriteWithImm }},
	{"a notification over every rail", verbs.ErrInvalid, withNotifications, func(_ *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.EveryRail = verbs.OpRDMAWriteWithImm, true
	}},
	{"less than a byte for every rail", ibverbx.ErrLength, onSeveral,
		func(_ *end, wr *ibverbx.SendWR) { wr.EveryRail, wr.Local.Length = true, 1 }},
	{"too much for every rail", ibverbx.ErrLength, onSeveral, func(e *end, wr *ibverbx.SendWR) {
		n := uint64(e.vq.DataRails()) * uint64(e.vq.Config().FragmentSize+1)
		wr.Opcode, wr.EveryRail, wr.Local, wr.Remote = verbs.OpRDMARead, true, e.host.MR.Slice(0, n),
			e.peer.host.Remote.Slice(0, n)
	}},
	{"too many pieces for every rail", verbs.ErrInvalid, anywhere, func(e *end, wr *ibverbx.SendWR) {
		n := uint64(e.vq.DataRails())
		wr.EveryRail, wr.Local, wr.SGL, wr.Remote = true, ibverbx.Segment{}, make([]ibverbx.Segment, 50),
			e.peer.host.Remote.Slice(0, n)
		wr.SGL[49] = e.host.MR.Slice(0, n)
	}},
	{"a SEND of too many pieces", verbs.ErrInvalid, withSends, func(e *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.Local, wr.SGL = verbs.OpSend, ibverbx.Segment{}, make([]ibverbx.Segment, 50)
		for i := range wr.SGL {
			wr.SGL[i] = e.host.MR.Slice(0, 1)
		}
	}},
	{"a SEND where no queue pair carries it", ibverbx.ErrOpcode, noSends,
		func(_ *end, wr *ibverbx.SendWR) { wr.Opcode = verbs.OpSend }},
	{"a message of more than 2 GiB", ibverbx.ErrLength, withSends, func(e *end, wr *ibverbx.SendWR) {
		wr.Opcode, wr.Local = verbs.OpSend, ibverbx.Segment{Addr: 4096, Length: 1<<31 + 1, Keys: everyKey()}
	}},
}

// postBadSend posts a batch whose last request is spoilt: all others are accepted.
func (e *end) postBadSend(wrs []ibverbx.SendWR, first int) {
	bad := badSends[e.w.Rng.IntN(len(badSends))]
	if !bad.where.fits(e) {
		bad = badSends[0]
	}
	wr := ibverbx.SendWR{
		ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: e.host.MR.Slice(0, 4), Remote: e.peer.host.Remote.Slice(0, 4),
	}
	bad.spoil(e, &wr)
	good, before, want := len(wrs), e.vq.Stats().Sends, e.refusal()
	n, err := e.vq.PostSend(append(wrs, wr)...)
	if n > good {
		e.w.Broken(lab.Refusal, "%v: a request with %s is accepted", e, bad.name)
	}
	e.logPosted(first, n, err)
	e.keepSends(first + n)
	switch {
	case want != nil:
		e.checkRefusal("send", n, good+1, err, want, e.sendQueueFull)
	case (e.single || e.conn.hostile) && n < good || e.conn.hostile && errors.Is(err, ibverbx.ErrNoKey):
		e.checkRefusal("send", n, good, err, nil, e.sendQueueFull)
	case n != good || !errors.Is(err, bad.want) || e.vq.Stats().Sends != before+uint64(n):
		e.w.Broken(lab.Refusal, "%v: a request with %s: %d of %d accepted, error %v, want %v", e, bad.name, n,
			good+1, err, bad.want)
	}
}

// everyKey is keys for all devices of a world.
func everyKey() *ibverbx.Keys {
	keys := map[verbs.DeviceID]uint32{}
	for dev := range verbs.DeviceID(8) {
		keys[dev] = 1
	}
	return ibverbx.NewKeys(keys)
}

func (e *end) sendQueueFull() bool { return len(e.wires[0].sends) >= e.wires[0].Cap().MaxSendWR }

func (e *end) recvQueueFull() bool { return len(e.wires[0].recvs) >= e.wires[0].Cap().MaxRecvWR }

// badRecv is a way to spoil a receive.
type badRecv struct {
	name  string
	want  error
	spoil func(e *end, wr *ibverbx.RecvWR)
}

var badRecvs = []badRecv{
	{"a list and a piece", verbs.ErrInvalid,
		func(_ *end, wr *ibverbx.RecvWR) { wr.SGL = []ibverbx.Segment{wr.Local} }},
	{"no keys", ibverbx.ErrNoKey, func(_ *end, wr *ibverbx.RecvWR) { wr.Local.Keys = nil }},
	{"memory beyond the region", ibverbx.ErrBounds,
		func(e *end, wr *ibverbx.RecvWR) { wr.Local = e.host.MR.Slice(arenaSize-1, 2) }},
	{"a list beyond the region", ibverbx.ErrBounds, func(e *end, wr *ibverbx.RecvWR) {
		wr.SGL, wr.Local = []ibverbx.Segment{e.host.MR.Slice(arenaSize, 1)}, ibverbx.Segment{}
	}},
	{"too many pieces", verbs.ErrInvalid, func(e *end, wr *ibverbx.RecvWR) {
		wr.SGL, wr.Local = make([]ibverbx.Segment, 50), ibverbx.Segment{}
		for i := range wr.SGL {
			wr.SGL[i] = e.host.MR.Slice(0, 1)
		}
	}},
	{"a piece of more than 2 GiB", ibverbx.ErrLength,
		func(_ *end, wr *ibverbx.RecvWR) { wr.Local.Length = 1<<31 + 1 }},
}

// postBadRecv posts a batch whose last receive is spoilt.
func (e *end) postBadRecv(wrs []ibverbx.RecvWR) {
	bad := badRecvs[e.w.Rng.IntN(len(badRecvs))]
	wr := ibverbx.RecvWR{ID: 1, Local: e.host.MR.Slice(0, 4)}
	bad.spoil(e, &wr)
	if e.mute() && e.w.Rng.IntN(3) == 0 {
		wr, bad = ibverbx.RecvWR{ID: 1}, badRecv{name: "no memory", want: ibverbx.ErrOpcode}
	}
	if noSends.fits(e) {
		bad.want = ibverbx.ErrOpcode
		if wr.Local != (ibverbx.Segment{}) && len(wr.SGL) != 0 {
			bad.want = verbs.ErrInvalid
		}
	}
	good, before, want := len(wrs), e.vq.Stats().Recvs, e.refusal()
	first := len(e.recvs) - good
	n, err := e.vq.PostRecv(append(wrs, wr)...)
	if n > good {
		e.w.Broken(lab.Refusal, "%v: a receive with %s is accepted", e, bad.name)
	}
	e.logRecvs(first, n, err)
	e.keepRecvs(first + n)
	switch {
	case want != nil:
		e.checkRefusal("receive", n, good+1, err, want, e.recvQueueFull)
	case e.single && n < good:
		e.checkRefusal("receive", n, good, err, nil, e.recvQueueFull)
	case n != good || !errors.Is(err, bad.want) || e.vq.Stats().Recvs != before+uint64(n):
		e.w.Broken(lab.Refusal, "%v: a receive with %s: %d of %d accepted, error %v, want %v", e, bad.name, n,
			good+1, err, bad.want)
	}
}
