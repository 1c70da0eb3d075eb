//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"ibverbx/verbs"
)

// distinct has another value in every attribute.
func distinct() verbs.QPAttr {
	return verbs.QPAttr{
		PathMTU: verbs.MTU2048, DestQPNum: 0x123456, RQPSN: 0x234567, SQPSN: 0x345678,
		Access:      verbs.AccessRemoteRead | verbs.AccessRemoteWrite,
		MaxRDAtomic: 5, MaxDestRDAtomic: 6, MinRNRTimer: 17, PKeyIndex: 0, Port: 2, Timeout: 18,
		RetryCount: 3, RNRRetry: 4,
		AH: verbs.AH{DGID: verbs.GID{0: 0x20, 7: 0x77, 15: 0xff}, SGIDIndex: 1, HopLimit: 63,
			TrafficClass: 104, FlowLabel: 0xabcde, SL: 5,
			DLID: 0x4321, Port: 2, Global: true},
	}
}

// inC is attr as ibv_modify_qp should have seen it; of what mask does not name nothing matters.
func inC(attr verbs.QPAttr, mask verbs.QPAttrMask) modified {
	m := modified{Mask: uint32(mask)}
	for bit, set := range map[verbs.QPAttrMask]func(){
		verbs.QPAttrState:           func() { m.State = uint32(attr.State) },
		verbs.QPAttrCurState:        func() { m.CurState = uint32(attr.CurState) },
		verbs.QPAttrAccess:          func() { m.Access = uint32(attr.Access) },
		verbs.QPAttrPKeyIndex:       func() { m.PKeyIndex = uint32(attr.PKeyIndex) },
		verbs.QPAttrPort:            func() { m.Port = uint32(attr.Port) },
		verbs.QPAttrPathMTU:         func() { m.PathMTU = uint32(attr.PathMTU) },
		verbs.QPAttrTimeout:         func() { m.Timeout = uint32(attr.Timeout) },
		verbs.QPAttrRetryCount:      func() { m.RetryCount = uint32(attr.RetryCount) },
		verbs.QPAttrRNRRetry:        func() { m.RNRRetry = uint32(attr.RNRRetry) },
		verbs.QPAttrRQPSN:           func() { m.RQPSN = attr.RQPSN },
		verbs.QPAttrMaxRDAtomic:     func() { m.MaxRDAtomic = uint32(attr.MaxRDAtomic) },
		verbs.QPAttrMinRNRTimer:     func() { m.MinRNRTimer = uint32(attr.MinRNRTimer) },
		verbs.QPAttrSQPSN:           func() { m.SQPSN = attr.SQPSN },
		verbs.QPAttrMaxDestRDAtomic: func() { m.MaxDestRDAtomic = uint32(attr.MaxDestRDAtomic) },
		verbs.QPAttrDestQPNum:       func() { m.DestQPNum = attr.DestQPNum },
		verbs.QPAttrAV: func() {
			ah := attr.AH
			m.FlowLabel, m.SGIDIndex, m.HopLimit, m.TrafficClass = ah.FlowLabel, uint32(ah.SGIDIndex),
				uint32(ah.HopLimit), uint32(ah.TrafficClass)
			m.DLID, m.SL, m.AHPort, m.DGID = uint32(ah.DLID), uint32(ah.SL), uint32(ah.Port), ah.DGID
			if ah.Global {
				m.IsGlobal = 1
			}
		},
	} {
		if mask&bit != 0 {
			set()
		}
	}
	return m
}

// only keeps of what C saw the attributes that its mask names.
func (m modified) only() modified {
	attr := verbs.QPAttr{
		State: verbs.QPState(m.State), CurState: verbs.QPState(m.CurState),
		Access: verbs.AccessFlags(m.Access), PKeyIndex: uint16(m.PKeyIndex),
		Port: uint8(m.Port), PathMTU: verbs.MTU(m.PathMTU), Timeout: uint8(m.Timeout),
		RetryCount: uint8(m.RetryCount), RNRRetry: uint8(m.RNRRetry),
		RQPSN: m.RQPSN, MaxRDAtomic: uint8(m.MaxRDAtomic), MinRNRTimer: uint8(m.MinRNRTimer), SQPSN: m.SQPSN,
		MaxDestRDAtomic: uint8(m.MaxDestRDAtomic), DestQPNum: m.DestQPNum,
		AH: verbs.AH{DGID: m.DGID, SGIDIndex: uint8(m.SGIDIndex), HopLimit: uint8(m.HopLimit),
			TrafficClass: uint8(m.TrafficClass), FlowLabel: m.FlowLabel,
			SL: uint8(m.SL), DLID: uint16(m.DLID), Port: uint8(m.AHPort), Global: m.IsGlobal == 1},
	}
	return inC(attr, verbs.QPAttrMask(m.Mask))
}

func TestModifySeenByC(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{state: verbs.StateInit})
	r.setState(verbs.StateReset)
	attr := distinct()
	check := func(mask verbs.QPAttrMask) {
		t.Helper()
		ok(t, r.qp.Modify(&attr, mask))
		got := s.modified(t)
		if want := inC(attr, mask); got.only() != want {
			t.Errorf("%v: C saw\n%+v, want\n%+v", mask, got, want)
		}
		if got.SrcPathBits != 0 || got.StaticRate != 0 {
			t.Errorf("%v: source path bits %d, static rate %d", mask, got.SrcPathBits, got.StaticRate)
		}
	}
	for _, step := range steps {
		attr.State = step.state
		check(step.mask)
		if got := r.qp.State(); got != step.state {
			t.Errorf("state %v, want %v", got, step.state)
		}
	}
	attr.CurState, attr.Access, attr.MinRNRTimer = verbs.StateRTS, verbs.AccessRemoteAtomic, 3
	check(verbs.QPAttrState | verbs.QPAttrCurState | verbs.QPAttrAccess | verbs.QPAttrMinRNRTimer)

	got, err := r.qp.Query()
	want := attr
	want.State, want.CurState = verbs.StateRTS, verbs.StateRTS
	if err != nil || got != want {
		t.Errorf("query:\n got %+v\nwant %+v\n%v", got, want, err)
	}

	attr.State = verbs.StateSQD
	check(verbs.QPAttrState)
	attr.Timeout, attr.RetryCount, attr.AH.HopLimit, attr.Port = 20, 6, 1, 1
	check(verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrAV | verbs.QPAttrPort |
		verbs.QPAttrRNRRetry | verbs.QPAttrMaxRDAtomic)
	attr.AH.Global = false
	s.setPort(0, 2, "link_layer", int(verbs.LinkLayerInfiniBand))
	check(verbs.QPAttrAV)
}

// In every state, every transition with every set of attributes that matters is judged as
// verbs.CheckModify judges, and what is refused never reaches C.
func TestModifyTable(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	up := map[verbs.QPState][]verbs.QPState{
		verbs.StateReset: {verbs.StateReset},
		verbs.StateInit:  {verbs.StateInit},
		verbs.StateRTR:   {verbs.StateRTR},
		verbs.StateRTS:   {verbs.StateRTS},
		verbs.StateSQD:   {verbs.StateRTS, verbs.StateSQD},
		verbs.StateErr:   {verbs.StateErr},
	}
	var masks []verbs.QPAttrMask
	for _, step := range steps {
		masks = append(masks, step.mask, step.mask|verbs.QPAttrAccess, step.mask|verbs.QPAttrSQPSN)
		for bit := verbs.QPAttrMask(1); bit <= verbs.QPAttrDestQPNum; bit <<= 1 {
			if step.mask&bit != 0 && bit != verbs.QPAttrState {
				masks = append(masks, step.mask&^bit)
			}
		}
	}
	masks = append(masks, 0, verbs.QPAttrState, verbs.QPAttrState|verbs.QPAttrCurState, verbs.QPAttrAccess,
		verbs.QPAttrAV, 1<<21, verbs.QPAttrMask(1<<14))
	r := rigOn(t, s, d, rigConfig{state: verbs.StateInit})
	for from, way := range up {
		for to := verbs.StateReset; to <= verbs.StateErr+1; to++ {
			for _, mask := range masks {
				r.setState(verbs.StateReset)
				for _, state := range way {
					switch state {
					case verbs.StateReset:
					case verbs.StateInit, verbs.StateRTR, verbs.StateRTS:
						raise(t, r.qp, state)
					case verbs.StateErr:
						raise(t, r.qp, verbs.StateInit)
						r.setState(state)
					default:
						r.setState(state)
					}
				}
				attr := path()
				attr.State, attr.CurState = to, from
				want := verbs.CheckModify(from, &attr, mask)
				got := r.qp.Modify(&attr, mask)
				what := fmt.Sprintf("%v to %v with %v", from, to, mask)
				if (want == nil) != (got == nil) {
					t.Fatalf("%s: %v, want %v", what, got, want)
				}
				state := from
				if want == nil && mask&verbs.QPAttrState != 0 {
					state = to
				}
				if now := r.qp.State(); now != state {
					t.Fatalf("%s: the state is %v, want %v", what, now, state)
				}
				if want == nil {
					continue
				}
				var modify *verbs.ModifyError
				if !errors.As(got, &modify) || modify.Error() != want.Error() {
					t.Fatalf("%s: %v, want %v", what, got, want)
				}
			}
		}
	}
}

// What the kernel refuses is explained as far as it can be.
func TestModifyHints(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{state: verbs.StateInit})
	attr := path()
	attr.State = verbs.StateRTR
	mask := steps[1].mask

	refused := func(errno syscall.Errno, words ...string) {
		t.Helper()
		err := r.qp.Modify(&attr, mask)
		is(t, err, errno)
		mentions(t, err, append(words, fmt.Sprintf("modify qp: standin0 qp %d: ibv_modify_qp", r.qp.Num()),
			"from INIT to RTR")...)
		if got := r.qp.State(); got != verbs.StateInit {
			t.Errorf("state %v after a refusal", got)
		}
	}
	attr.AH.SGIDIndex = 6
	refused(syscall.EINVAL, "entry 6", "port 1", "empty")
	attr.AH.SGIDIndex = 200
	refused(syscall.EINVAL, "index 200", "0 to 7")
	attr.AH.SGIDIndex, attr.AH.Global = 3, false
	refused(syscall.EINVAL, "AH.Global")
	attr.AH.Global, attr.AH.Port = true, 9
	refused(syscall.EINVAL, "port 9")
	attr.AH.Port = 1
	s.setPort(0, 1, "state", int(verbs.PortDown))
	s.fail("ibv_modify_qp", syscall.EINVAL)
	refused(syscall.EINVAL, "port 1", "DOWN")
	s.setPort(0, 1, "state", int(verbs.PortActive))
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		s.fail("ibv_modify_qp", errno)
		refused(errno, "no way to ::1")
		s.setPort(0, 1, "state", int(verbs.PortDown))
		s.fail("ibv_modify_qp", errno)
		refused(errno, "port 1 is DOWN")
		s.setPort(0, 1, "state", int(verbs.PortActive))
	}
	s.fail("ibv_modify_qp", syscall.EINVAL)
	refused(syscall.EINVAL, "::ffff:10.0.1.1", "::1", "both have to be IPv4")
	good := attr
	attr.MaxDestRDAtomic = 100
	s.fail("ibv_modify_qp", syscall.EINVAL)
	refused(syscall.EINVAL, "MaxDestRDAtomic 100", "15")
	attr = good
	attr.PathMTU = verbs.MTU4096
	s.fail("ibv_modify_qp", syscall.EINVAL)
	refused(syscall.EINVAL, "path MTU 4096", "port 1 has 1024")
	attr = good
	s.fail("ibv_modify_qp", syscall.ENOMEM)
	refused(syscall.ENOMEM, "cannot allocate memory")
	ok(t, r.qp.Modify(&attr, mask))
}

// The NIC moves a queue pair to ERR by itself; the state follows, and so does what is posted.
func TestStateFollowsNIC(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{})
	r.recv(verbs.RecvWR{ID: 1})
	if got := r.qp.State(); got != verbs.StateRTS {
		t.Fatalf("state %v", got)
	}
	s.killQP(0, r.qp.Num())
	if got := r.qp.State(); got != verbs.StateErr {
		t.Errorf("state %v after the NIC failed it", got)
	}
	attr := path()
	err := r.qp.Modify(&attr, verbs.QPAttrAccess)
	is(t, err, verbs.ErrInvalid)
	r.recv(verbs.RecvWR{ID: 2})
	r.post(r.send(3, 1))
	for _, wc := range append(r.poll(r.rcq, 2), r.poll(r.cq, 1)...) {
		if wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("%+v", wc)
		}
	}
	r.setState(verbs.StateReset)
	raise(t, r.qp, verbs.StateRTS)
	r.post(r.send(4, 1))
	if wc := r.poll(r.cq, 1)[0]; wc.ID != 4 || wc.Status != verbs.StatusSuccess {
		t.Errorf("after a reset: %+v", wc)
	}
}

// To ERR flushes what is outstanding, sends and receives, in order; to RESET drops it.
func TestModifyFlushes(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{})
	outstanding := func() {
		s.hold(0, r.qp.Num(), 1)
		unsignaled := r.send(2, 1)
		unsignaled.Flags = 0
		r.post(r.send(1, 1), unsignaled, r.send(3, 1))
		r.recv(verbs.RecvWR{ID: 11}, verbs.RecvWR{ID: 12})
		s.hold(0, r.qp.Num(), 0)
	}
	s.hold(0, r.qp.Num(), 1)
	r.post(r.send(1, 1), r.send(2, 1))
	r.recv(verbs.RecvWR{ID: 11}, verbs.RecvWR{ID: 12})
	r.setState(verbs.StateErr)
	s.hold(0, r.qp.Num(), 0)
	for i, wc := range r.poll(r.cq, 2) {
		if wc.ID != uint64(1+i) || wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("%+v", wc)
		}
	}
	for i, wc := range r.poll(r.rcq, 2) {
		if wc.ID != uint64(11+i) || wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("%+v", wc)
		}
	}
	r.setState(verbs.StateReset)
	raise(t, r.qp, verbs.StateRTS)
	outstanding()
	r.setState(verbs.StateReset)
	r.poll(r.cq, 0)
	r.poll(r.rcq, 0)
}

// A NIC that takes no inline data refuses the default of 64 bytes, and gets a queue pair without;
// who asks for 64 bytes is refused.
func TestDefaultInline(t *testing.T) {
	s := openStandin(t, standinConfig{})
	s.fail("ibv_create_qp", syscall.EINVAL)
	r := newRig(t, s, rigConfig{})
	if n := r.qp.Cap().MaxInline; n != 0 {
		t.Errorf("%d bytes inline", n)
	}
	s.fail("ibv_create_qp", syscall.EINVAL)
	_, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.rcq, Cap: verbs.QPCap{MaxInline: 64}})
	is(t, err, verbs.ErrInvalid)
	mentions(t, err, "64 bytes inline")
}
