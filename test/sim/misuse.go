package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// misuse is a wrong call outside of the data path, and the error that it must return. It must have
// no effect.
type misuse struct {
	name string
	want error
	do   func(e *end) error
}

// misuses happen on NICs of the world, beside its own objects. They close what they make.
var misuses = slices.Concat(badConfigs(), badCards(), []misuse{
	{"a domain over nothing", verbs.ErrInvalid, func(*end) error { return last(ibverbx.NewDomain()) }},
	{"a domain over nil", verbs.ErrInvalid,
		func(e *end) error { return last(ibverbx.NewDomain(e.devices()[0], nil)) }},
	{"a domain over the same twice", verbs.ErrInvalid,
		func(e *end) error { return last(ibverbx.NewDomain(e.devices()[0], e.devices()[0])) }},
	{"a domain closed twice", ibverbx.ErrClosed, func(e *end) error {
		return inDomain(e, func(d *ibverbx.Domain) error { return errors.Join(d.Close(), d.Close()) })
	}},
	{"everything on a closed domain", ibverbx.ErrClosed, onClosedDomain},
	{"memory with an impossible right", verbs.ErrInvalid, func(e *end) error {
		return inDomain(e, func(d *ibverbx.Domain) error {
			return last(d.Register(make([]byte, 8), verbs.AccessRemoteWrite))
		})
	}},
	{"memory closed twice", ibverbx.ErrClosed, func(e *end) error {
		return inDomain(e, func(d *ibverbx.Domain) error {
			mr, err := d.Register(make([]byte, 8), verbs.AccessAll)
			if err != nil || mr.All() != mr.Slice(0, mr.Len()) || mr.Keys() == nil || len(mr.Bytes()) != 8 {
				return err
			}
			return errors.Join(mr.Close(), mr.Close())
		})
	}},
	{"a virtual CQ of nothing", verbs.ErrInvalid, func(*end) error { return last(ibverbx.NewVirtualCQ()) }},
	{"a virtual CQ with two CQs of a device", verbs.ErrInvalid, func(e *end) error {
		return withCQ(e, func(a verbs.CQ) error {
			return withCQ(e, func(b verbs.CQ) error { return last(ibverbx.NewVirtualCQ(a, b)) })
		})
	}},
	{"waiting without a channel", verbs.ErrNotSupported, func(e *end) error {
		return withCQ(e, func(a verbs.CQ) error {
			c, err := ibverbx.NewVirtualCQ(a)
			if err != nil || c.Events() != nil {
				return err
			}
			return errors.Join(c.Wait(ended), c.Arm())
		})
	}},
	{"a CQ of an impossible depth", verbs.ErrInvalid, func(e *end) error {
		return inDomain(e, func(d *ibverbx.Domain) error { return last(d.NewCQ(-1)) })
	}},
	{"a virtual QP on no CQ", ibverbx.ErrClosed,
		func(*end) error { return last(ibverbx.NewVirtualQP(nil, nil, nil, ibverbx.Config{})) }},
	{"a virtual QP of nothing", verbs.ErrInvalid, func(e *end) error {
		return last(ibverbx.NewVirtualQP(e.cq.cq, nil, nil, ibverbx.Config{}))
	}},
	{"a notify QP beside a single one", verbs.ErrInvalid, besideOne},
	{"queue pairs on a device without CQ", verbs.ErrInvalid, func(e *end) error {
		if len(e.devices()) == 1 {
			return verbs.ErrInvalid
		}
		return inDomain(e, func(d *ibverbx.Domain) error {
			return withCQ(e, func(a verbs.CQ) error {
				c, err := ibverbx.NewVirtualCQ(a)
				if err != nil {
					return err
				}
				return last(d.NewQP(c, ibverbx.Config{}))
			})
		})
	}},
	{"queue pairs of another virtual QP", verbs.ErrInvalid, func(e *end) error {
		return last(ibverbx.NewVirtualQP(e.cq.cq, []verbs.QP{e.wires[0], e.wires[0]}, nil,
			ibverbx.Config{NoNotifyQP: true}))
	}},
	{"a CQ that is not deep enough", verbs.ErrInvalid, func(e *end) error {
		return inDomain(e, func(d *ibverbx.Domain) error {
			cq, err := d.NewCQ(4)
			if err != nil {
				return err
			}
			return errors.Join(last(d.NewQP(cq, ibverbx.Config{QPsPerDevice: 3})), cq.Close())
		})
	}},
	{"more messages than a CQ can be deep", verbs.ErrInvalid, func(e *end) error {
		return last(ibverbx.Open(e.devices(), ibverbx.Config{MaxMsgCntPerQP: 1 << 14, QPsPerDevice: 100}))
	}},
	{"an unknown scheme", verbs.ErrInvalid, func(*end) error {
		var s ibverbx.Scheme
		text, _ := ibverbx.Spray.MarshalText()
		if err := s.UnmarshalText(text); err != nil || s != ibverbx.Spray ||
			ibverbx.Scheme(9).String() == "" {
			return nil
		}
		return errors.Join(s.UnmarshalText([]byte("dqplb")), s.UnmarshalText([]byte("pigeon")))
	}},
	{"a connection of what is connected", verbs.ErrState, func(e *end) error {
		if e.vq.State() != verbs.StateRTS {
			return verbs.ErrState
		}
		return e.connectAgain()
	}},
	{"a virtual QP that was closed", ibverbx.ErrClosed, func(e *end) error {
		if e.state != closed {
			return ibverbx.ErrClosed
		}
		return everyError(ibverbx.ErrClosed, e.vq.Close(), e.vq.Reset(), e.vq.Drain(ended),
			e.vq.Shutdown(ended), e.vq.Connect(ibverbx.BusinessCard{}))
	}},
	{"a virtual CQ that was closed", ibverbx.ErrClosed, func(e *end) error {
		if !e.cq.closed || e.cq.cq.Stats().Ready != 0 {
			return ibverbx.ErrClosed
		}
		return everyError(ibverbx.ErrClosed, e.cq.cq.Close(), e.cq.cq.Arm(), e.cq.cq.Wait(ended),
			last(e.cq.cq.Poll(e.cq.buf[:])),
			last(ibverbx.NewVirtualQP(e.cq.cq, nil, nil, ibverbx.Config{})))
	}},
	{"a call that blocks without a context", verbs.ErrInvalid, func(e *end) error {
		if e.state == closed {
			return verbs.ErrInvalid
		}
		var none context.Context
		return everyError(verbs.ErrInvalid, e.vq.Drain(none), e.vq.Shutdown(none))
	}},
	{"a list of queue pairs with a gap", verbs.ErrInvalid, func(e *end) error {
		return withCQ(e, func(a verbs.CQ) error {
			c, err := ibverbx.NewVirtualCQ(a)
			if err != nil || len(c.CQs()) != 1 || c.CQs()[0] != a || c.Num() == e.cq.cq.Num() {
				return fmt.Errorf("virtual CQ of %v is number %d of %v: %w", a, c.Num(), c.CQs(), err)
			}
			return everyError(verbs.ErrInvalid,
				last(ibverbx.NewVirtualQP(c, []verbs.QP{nil}, nil, ibverbx.Config{})),
				last(ibverbx.NewVirtualCQ(a, nil)))
		})
	}},
	{"opened and closed at once", nil, func(e *end) error {
		q, err := ibverbx.Open(e.devices(), ibverbx.Config{QPsPerDevice: 2, MaxMsgCntPerQP: 1, Credits: 1})
		if err != nil {
			return err
		}
		if want := 2*len(e.devices()) + 1; len(q.QPs()) != want {
			err = fmt.Errorf("%d queue pairs, with the notify QP: must be %d", len(q.QPs()), want)
		}
		return errors.Join(err, q.Drain(ended), q.Close())
	}},
	{"anything on a NIC that is gone", verbs.ErrDeviceGone, func(e *end) error {
		if e.host.NICs[0].Dead == 0 {
			return verbs.ErrDeviceGone
		}
		// A fault may still be waiting for its request, or be over.
		made, err := e.host.Dom.NewQP(nil, ibverbx.Config{QPsPerDevice: 1, MaxMsgCntPerQP: 1, Credits: 1})
		if err != nil {
			mr, refused := e.host.Dom.Register(make([]byte, 1), verbs.AccessAll)
			if refused == nil { // on the others
				refused = errors.Join(mr.Close(), verbs.ErrDeviceGone)
			}
			return everyError(verbs.ErrDeviceGone, err, last(e.host.Dom.NewCQ(1)), refused)
		}
		if err := made.Close(); err != nil {
			return err
		}
		return verbs.ErrDeviceGone
	}},
	{"an impossible change of state", verbs.ErrInvalid, func(e *end) error {
		if e.state == closed {
			return verbs.ErrInvalid
		}
		err := e.vq.Modify(verbs.QPAttr{State: verbs.StateSQE}, verbs.QPAttrState, nil)
		var modify *verbs.ModifyError
		if !errors.As(err, &modify) {
			return err
		}
		return e.vq.Modify(verbs.QPAttr{}, verbs.QPAttrAV, &ibverbx.BusinessCard{})
	}},
	{"memory without a description", verbs.ErrInvalid, func(e *end) error {
		var none ibverbx.RemoteMR
		all := e.peer.host.Remote
		if none.Addr() != 0 || none.At(1).Length != 0 || all.At(all.Len()+1).Length != 0 ||
			all.At(1).Length != all.Len()-1 {
			return nil
		}
		return verbs.ErrInvalid
	}},
	{"a post of nothing", nil, func(e *end) error {
		return errors.Join(last(e.vq.PostSend()), last(e.vq.PostRecv()))
	}},
	{"memory that was closed", ibverbx.ErrClosed, (*end).postClosedMemory},
	{"a drain in RESET", nil, func(e *end) error {
		if e.vq.State() != verbs.StateReset || e.state == closed {
			return nil
		}
		return e.vq.Drain(ended)
	}},
})

// last is the error of a call with two results.
func last[T any](_ T, err error) error { return err }

// everyError is want if every error is that; otherwise the first that is not.
func everyError(want error, errs ...error) error {
	for i, err := range errs {
		if !errors.Is(err, want) {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return want
}

func inDomain(e *end, do func(*ibverbx.Domain) error) error {
	d, err := ibverbx.NewDomain(e.devices()...)
	if err != nil {
		return err
	}
	err = do(d)
	if closing := d.Close(); closing != nil && !errors.Is(closing, ibverbx.ErrClosed) {
		return closing
	}
	return err
}

func withCQ(e *end, do func(verbs.CQ) error) error {
	cq, err := e.devices()[0].CreateCQ(verbs.CQConfig{Depth: 16})
	if err != nil {
		return err
	}
	err = do(cq)
	if closing := cq.Close(); closing != nil {
		return closing
	}
	return err
}

// besideOne tries to make a virtual queue pair of a single queue pair and a notify queue pair.
func besideOne(e *end) error {
	return withCQ(e, func(cq verbs.CQ) error {
		pd, err := e.devices()[0].AllocPD()
		if err != nil {
			return err
		}
		var qps []verbs.QP
		for range 2 {
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			if err != nil {
				return err
			}
			qps = append(qps, qp)
		}
		c, err := ibverbx.NewVirtualCQ(cq)
		if err == nil {
			_, err = ibverbx.NewVirtualQP(c, qps[:1], qps[1], ibverbx.Config{})
		}
		for _, qp := range qps {
			if closing := qp.Close(); closing != nil {
				return closing
			}
		}
		if closing := pd.Close(); closing != nil {
			return closing
		}
		return err
	})
}

func onClosedDomain(e *end) error {
	d, err := ibverbx.NewDomain(e.devices()...)
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	return everyError(ibverbx.ErrClosed, last(d.Register(make([]byte, 1), verbs.AccessAll)), last(d.NewCQ(0)),
		last(d.NewQP(nil, ibverbx.Config{})), last(d.NewQP(e.cq.cq, ibverbx.Config{})), d.Close())
}

// badConfigs are configurations that must be refused.
func badConfigs() (list []misuse) {
	configs := []ibverbx.Config{
		{Scheme: 7}, {FragmentSize: math.MaxUint32}, {MaxMsgCntPerQP: -2}, {Credits: -1}, {MaxBanked: -1},
		{Testing: ibverbx.Testing{FirstNumber: numberModulo}}, {MaxSGE: -1},
		{MaxInline: -1}, {QPsPerDevice: -1}, {QPsPerDevice: ibverbx.MaxRails + 1},
		{Conn: ibverbx.ConnConfig{GIDIndex: -2}}, {Conn: ibverbx.ConnConfig{MTU: 6}},
		{Conn: ibverbx.ConnConfig{Timeout: 32}},
		{Conn: ibverbx.ConnConfig{RetryCount: 8}}, {Conn: ibverbx.ConnConfig{RNRRetry: 8}},
		{Conn: ibverbx.ConnConfig{MinRNRTimer: 32}},
		{Conn: ibverbx.ConnConfig{Access: verbs.AccessRemoteWrite}},
	}
	for _, cfg := range configs {
		list = append(list, misuse{sprintf("configuration %+v", cfg), verbs.ErrInvalid,
			func(e *end) error {
				return everyError(verbs.ErrInvalid, last(ibverbx.Open(e.devices(), cfg)),
					last(ibverbx.NewVirtualQP(e.cq.cq, nil, nil, cfg)))
			}})
	}
	return list
}

// badCards are texts that are no card or no description of memory, and cards that fit no end.
func badCards() (list []misuse) {
	for _, text := range []string{
		`{}`, `{"qpNums":[]}`, `{"qpNums":["0"]}`, `{"qpNums":["16777216"]}`,
		`{"qpNums":["1"],"notifyQpNum":"16777216"}`, `{"qpNums":["1"],"credits":-1}`,
		`{"qpNums":["1"],"mtu":999}`, `{"qpNums":["1"],"firstNum":16777215}`,
		`{"qpNums":["1"],"rails":[{},{}]}`, `{"qpNums":["1"],"rails":[{"device":64}]}`,
		`{"qpNums":["1"],"rails":[{"psn":16777216}]}`, `{"qpNums":["1","1"],"rails":[{},{}]}`, `{"qpNums":7}`,
		`{"qpNums":["1"],"scheme":"` + strings.Repeat("x", 70_000) + `"}`,
	} {
		list = append(list, misuse{"card " + text[:min(len(text), 60)], verbs.ErrInvalid,
			func(*end) error {
				return json.Unmarshal([]byte(text), new(ibverbx.BusinessCard))
			}})
	}
	for _, text := range []string{`{"addr":1}`, `{"addr":"18446744073709551615","length":"2"}`,
		`{"addr":"0","length":"1","rkeys":{"64":1}}`} {
		list = append(list, misuse{"memory " + text, verbs.ErrInvalid, func(*end) error {
			return json.Unmarshal([]byte(text), new(ibverbx.RemoteMR))
		}})
	}
	for _, card := range []ibverbx.BusinessCard{
		{}, {QPNums: make([]uint32, ibverbx.MaxRails+1)}, {QPNums: []uint32{1}, NotifyQPNum: 1 << 24},
		{QPNums: []uint32{1}, Credits: -1}, {QPNums: []uint32{1}, MTU: 9},
		{QPNums: []uint32{1 << 24}}, {QPNums: make([]uint32, 77)},
		{QPNums: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, NotifyQPNum: 10},
		{QPNums: []uint32{1}, FirstNumber: numberModulo},
	} {
		list = append(list, misuse{sprintf("a connection to %.80v", card), verbs.ErrInvalid,
			func(e *end) error {
				if e.state == closed {
					return verbs.ErrInvalid
				}
				return e.vq.Connect(card)
			}})
	}
	return list
}

// connectAgain tries to connect an end to the peer that it is connected to.
func (e *end) connectAgain() error {
	card, err := e.peer.vq.Card()
	if err != nil || e.conn.hostile || e.peer.state == closed {
		return verbs.ErrState // its card cannot be had now
	}
	card = e.w.sendCard(e.conn, e.peer, card)
	return e.vq.Connect(card)
}

// postClosedMemory posts requests with memory that was just closed, in one piece and in several.
func (e *end) postClosedMemory() error {
	if e.refusal() != nil {
		return ibverbx.ErrClosed
	}
	mr, err := e.host.Dom.Register(make([]byte, 64), verbs.AccessAll)
	if err != nil {
		return ibverbx.ErrClosed // a NIC is gone, or the domain is
	}
	if err := mr.Close(); err != nil {
		return err
	}
	write := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: mr.Slice(0, 4),
		Remote: e.peer.host.Remote.Slice(0, 4)}
	pieces := write
	pieces.SGL, pieces.Local = []ibverbx.Segment{e.host.MR.Slice(0, 2), mr.Slice(0, 2)}, ibverbx.Segment{}
	if e.conn.hostile {
		return ibverbx.ErrClosed // it may be refused for its remote side
	}
	if e.single && e.conn.plan.cfg[e.index%2].MaxSGE < 2 {
		pieces = write
	}
	errs := []error{last(e.vq.PostSend(write)), last(e.vq.PostSend(pieces))}
	if withSends.fits(e) {
		errs = append(errs, last(e.vq.PostRecv(ibverbx.RecvWR{Local: mr.Slice(0, 4)})))
	}
	return everyError(ibverbx.ErrClosed, errs...)
}

// misuse makes one of the wrong calls.
func (e *end) misuse() {
	w := e.w
	f := misuses[w.Rng.IntN(len(misuses))]
	before, sends, state := w.Fabric.Objects(), e.vq.Stats().Sends, e.vq.State()
	worked := e.vq.Err() == nil
	err := f.do(e)
	w.Logf("  %s: %v", f.name, err)
	if worked && e.vq.Err() != nil {
		e.checkErr() // the call met a fault, whose error comes first
		return
	}
	if !errors.Is(err, f.want) && !e.gone(err) && (!e.cq.closed || !errors.Is(err, ibverbx.ErrClosed)) {
		w.Broken(lab.Refusal, "%v: %s: %v, want %v", e, f.name, err, f.want)
	}
	if after := w.Fabric.Objects(); after != before || e.vq.Stats().Sends != sends || e.vq.State() != state {
		w.Broken(lab.Leak, "%v: %s leaves %v open, before it were %v; %d sends, before %d; %v, before %v", e,
			f.name, after, before, e.vq.Stats().Sends, sends, e.vq.State(), state)
	}
}

// devices are the NICs of the end's host, without their taps.
func (e *end) devices() (list []verbs.Device) {
	for _, d := range e.host.NICs {
		list = append(list, d.Device)
	}
	return list
}

// gone says whether an error can mean that a NIC of the end's host has died.
func (e *end) gone(err error) bool {
	for _, d := range e.host.NICs {
		if d.Died && errors.Is(err, verbs.ErrDeviceGone) {
			return true
		}
	}
	return false
}
