package sendside

import (
	"errors"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// mistake is a call with a wrong argument, and the error that it must return.
type mistake struct {
	name string
	want error
	call func(e *end) error
}

var mistakes = []mistake{
	{"am short too long", transport.ErrTooLong, func(e *end) error {
		return e.ep.AMShort(0, nil, make([]byte, e.ep.Limits().AMShort+1))
	}},
	{"header too long", transport.ErrTooLong,
		func(e *end) error { return e.ep.AMShort(0, make([]byte, transport.MaxHeader+1), nil) }},
	{"header and data too long together", transport.ErrTooLong, func(e *end) error {
		return e.ep.AMShort(0, make([]byte, 8), make([]byte, e.ep.Limits().AMShort-7))
	}},
	{"no handler", transport.ErrNoHandler, func(e *end) error { return e.ep.AMShort(amIDs, nil, nil) }},
	{"no such id", transport.ErrNoHandler, func(e *end) error { return e.ep.AMShort(200, nil, nil) }},
	{"no handler, bcopy", transport.ErrNoHandler, func(e *end) error {
		_, err := e.ep.AMBcopy(amIDs+1, nil, func([]byte) int { return 0 })
		return err
	}},
	{"pack says too much", transport.ErrTooLong, func(e *end) error {
		_, err := e.ep.AMBcopy(0, nil, func(dst []byte) int { return len(dst) + 1 })
		return err
	}},
	{"pack says less than nothing", transport.ErrTooLong, func(e *end) error {
		_, err := e.ep.PutBcopy(func([]byte) int { return -1 }, e.remoteAt(library, 8))
		return err
	}},
	{"am zcopy too long", transport.ErrTooLong, func(e *end) error {
		err := e.ep.AMZcopy(nil, 0, nil, e.site.MR.Slice(0, uint64(e.ep.Limits().AMZcopy)+1))
		return err
	}},
	{"am zcopy in too many pieces", verbs.ErrInvalid, func(e *end) error {
		err := e.ep.AMZcopy(nil, 0, nil, make([]ibverbx.Segment, e.ep.Limits().Pieces+1)...)
		return err
	}},
	{"am zcopy from nowhere", ibverbx.ErrNoKey, func(e *end) error {
		return e.ep.AMZcopy(nil, 0, nil, ibverbx.Segment{Addr: 4096, Length: 8})
	}},
	{"put short too long", transport.ErrTooLong, func(e *end) error {
		return e.ep.PutShort(make([]byte, e.ep.Limits().PutShort+1), e.remoteAt(library, 1000))
	}},
	{"put beyond the end", ibverbx.ErrBounds, func(e *end) error {
		return e.ep.PutShort(make([]byte, 8), e.remoteAt(arenaSize-7, 7))
	}},
	{"put without a key", ibverbx.ErrNoKey,
		func(e *end) error { return e.ep.PutShort(make([]byte, 8), ibverbx.RemoteSegment{Length: 8}) }},
	{"put bcopy beyond the end", ibverbx.ErrBounds, func(e *end) error {
		_, err := e.ep.PutBcopy(func([]byte) int { return 9 }, e.remoteAt(arenaSize-8, 8))
		return err
	}},
	{"put zcopy beyond the end of the source", ibverbx.ErrBounds, func(e *end) error {
		_, err := e.ep.PutZcopy(nil, e.remoteAt(library, 64), e.site.MR.Slice(arenaSize-8, 9))
		return err
	}},
	{"get bcopy too long", transport.ErrTooLong, func(e *end) error {
		_, err := e.ep.GetBcopy(nil, make([]byte, e.ep.Limits().GetBcopy+1), e.remoteAt(0, arenaSize))
		return err
	}},
	{"get beyond the end", ibverbx.ErrBounds, func(e *end) error {
		_, err := e.ep.GetBcopy(nil, make([]byte, 9), e.remoteAt(arenaSize-8, 8))
		return err
	}},
	{"get zcopy to nowhere", ibverbx.ErrNoKey, func(e *end) error {
		_, err := e.ep.GetZcopy(nil, e.remoteAt(0, 64), ibverbx.Segment{Addr: 4096, Length: 8})
		return err
	}},
	{"misaligned atomic", ibverbx.ErrAlignment, func(e *end) error {
		return e.ep.FetchAdd(nil, nil, e.remoteAt(4, 8), 1)
	}},
	{"atomic on too few bytes", ibverbx.ErrBounds, func(e *end) error {
		return e.ep.CompareSwap(nil, nil, e.remoteAt(0, 4), 0, 1)
	}},
	// With the peer's card, since a new card asks the NIC for its address: one that is dead has no
	// answer, before the endpoint has failed, too.
	{"connect twice", verbs.ErrInvalid, func(e *end) error { return e.ep.Connect(e.card) }},
	{"request without a function", verbs.ErrInvalid,
		func(e *end) error { return e.ep.Pending(&transport.Pending{}) }},
	{"handler too late", verbs.ErrInvalid,
		func(e *end) error { return e.site.worker.Handle(amIDs, e.site.handle) }},
	{"handler twice", verbs.ErrInvalid, func(e *end) error { return e.site.worker.Handle(0, e.site.handle) }},
	{"no such handler", verbs.ErrInvalid,
		func(e *end) error { return e.site.worker.Handle(transport.MaxAMID+1, e.site.handle) }},
}

// misuse makes one of the mistakes. It must be refused with the right error, without effect.
func (e *end) misuse() {
	w := e.w
	if !e.connected || e.closed || e.closing || e.intruder() != nil {
		return
	}
	m := mistakes[w.Rng.IntN(len(mistakes))]
	before, was := e.gauge(), e.ep.Err()
	w.calling++
	err := m.call(e)
	w.calling--
	after := e.gauge()
	w.Logf("  %s: %v", m.name, err)
	if after != before {
		w.Broken(ruleNoEffect, "%v: %s: %+v before, %+v after", e, m.name, before, after)
	}
	switch {
	case errors.Is(err, m.want):
	case err == transport.ErrNoResource && (before.Outstanding >= before.Limit || before.Credits == 0 ||
		before.bounce == 0 || before.Pending != 0 || w.Refusing()):
	case was != nil && err != nil, e.ep.Err() != nil && e.mayFail() != "":
	default:
		w.Broken(lab.Refusal, "%v: %s: %v, and not %v", e, m.name, err, m.want)
	}
}
