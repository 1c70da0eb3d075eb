package verbstest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

func testStates(t *testing.T, s *suite) {
	s.run(t, "transitions", s.transitions)
	s.run(t, "attributes", s.attributes)
	s.run(t, "query", s.queryQP)
	s.run(t, "mask", s.masks)
	s.run(t, "post_send_too_early", s.postSendTooEarly)
	s.run(t, "post_recv", s.postRecvByState)
	s.run(t, "post_send_in_err", s.postSendInErr)
	s.run(t, "post_recv_in_err", s.postRecvInErr)
	s.run(t, "rtr_receives", s.receivesInRTR)
	s.run(t, "sqd", s.drainedQueue)
}

// allStates lists the states to start from, and how to get there. SQE is missing: no reliable
// connection enters it.
var allStates = map[verbs.QPState][]verbs.QPState{
	verbs.StateReset: {},
	verbs.StateInit:  {verbs.StateInit},
	verbs.StateRTR:   {verbs.StateInit, verbs.StateRTR},
	verbs.StateRTS:   {verbs.StateInit, verbs.StateRTR, verbs.StateRTS},
	verbs.StateSQD:   {verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateSQD},
	verbs.StateErr:   {verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateErr},
}

// legal lists the transitions of a reliable connection (IBTA 10.3.1; ib_modify_qp_is_ok in the
// kernel).
var legal = map[[2]verbs.QPState]bool{
	{verbs.StateReset, verbs.StateReset}: true, {verbs.StateReset, verbs.StateInit}: true,
	{verbs.StateInit, verbs.StateReset}: true, {verbs.StateInit, verbs.StateInit}: true,
	{verbs.StateInit, verbs.StateRTR}:  true,
	{verbs.StateInit, verbs.StateErr}:  true,
	{verbs.StateRTR, verbs.StateReset}: true, {verbs.StateRTR, verbs.StateRTS}: true,
	{verbs.StateRTR, verbs.StateErr}:   true,
	{verbs.StateRTS, verbs.StateReset}: true, {verbs.StateRTS, verbs.StateRTS}: true,
	{verbs.StateRTS, verbs.StateSQD}:   true,
	{verbs.StateRTS, verbs.StateErr}:   true,
	{verbs.StateSQD, verbs.StateReset}: true, {verbs.StateSQD, verbs.StateRTS}: true,
	{verbs.StateSQD, verbs.StateSQD}:   true,
	{verbs.StateSQD, verbs.StateErr}:   true,
	{verbs.StateErr, verbs.StateReset}: true, {verbs.StateErr, verbs.StateErr}: true,
}

// raise takes a pair's first queue pair to a state. It skips the test if the NIC has no SQD: mlx5
// refuses it.
func (s *suite) raise(t *testing.T, p *Pair, to verbs.QPState) verbs.QPAttr {
	t.Helper()
	attr, _, err := p.connectConfig().attrs(p.A.QP, p.B.QP)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range allStates[to] {
		if err := step(p.A.QP, attr, state); err != nil {
			if state == verbs.StateSQD && !s.env.Strict && !errors.As(err, new(*verbs.ModifyError)) {
				t.Skipf("no SQD: %v", err)
			}
			t.Fatal(err)
		}
	}
	if got := p.A.QP.State(); got != to {
		t.Fatalf("state %v, want %v", got, to)
	}
	return attr
}

// transitions tries every pair of states.
func (s *suite) transitions(t *testing.T) {
	for from := range allStates {
		for to := verbs.StateReset; to <= verbs.StateErr+1; to++ {
			s.run(t, fmt.Sprintf("%v_%v", from, to), func(t *testing.T) {
				p := s.pair(t, PairConfig{Unconnected: true})
				attr := s.raise(t, p, from)
				attr.State = to
				mask := verbs.QPAttrState
				if from != to && from < verbs.StateRTS { // transitions upwards require attributes
					mask |= modifyMask[to]
				}
				err := s.modify(p.A.QP, attr, mask)
				if legal[[2]verbs.QPState{from, to}] {
					if err != nil && to == verbs.StateSQD && !s.env.Strict &&
						!errors.As(err, new(*verbs.ModifyError)) {
						t.Skipf("no SQD: %v", err)
					}
					if err != nil {
						t.Fatal(err)
					}
					p.A.wantState(to)
					return
				}
				wantRefused(t, err, verbs.ErrState, from, to)
				if got := p.A.QP.State(); got != from {
					t.Errorf("state %v after the refusal, want %v", got, from)
				}
			})
		}
	}
}

// modify changes a queue pair. A NIC may refuse to leave SQD while the send queue still drains
// (IBTA 10.3.1.7; rdma_rxe answers EINVAL to all but ERR); modify then tries again.
func (s *suite) modify(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	draining := qp.State() == verbs.StateSQD && !s.env.Strict
	for end := time.Now().Add(s.env.Timeout); ; time.Sleep(time.Millisecond) {
		err := qp.Modify(&attr, mask)
		if err == nil || !draining || errors.As(err, new(*verbs.ModifyError)) || time.Now().After(end) {
			return err
		}
	}
}

// wantRefused checks a refusal's ModifyError and returns it.
func wantRefused(t *testing.T, err, sentinel error, from, to verbs.QPState) *verbs.ModifyError {
	t.Helper()
	var m *verbs.ModifyError
	if !errors.As(err, &m) || !errors.Is(err, sentinel) {
		t.Fatalf("from %v to %v: error %q (%T), want a ModifyError that is %q", from, to, text(err), err,
			sentinel)
	}
	if m.From != from || m.To != to {
		t.Errorf("the error speaks of %v to %v, not of %v to %v", m.From, m.To, from, to)
	}
	return m
}

// attributes leaves out each required attribute in turn, and adds one that is not allowed.
func (s *suite) attributes(t *testing.T) {
	from := verbs.StateReset
	for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
		p := s.pair(t, PairConfig{Unconnected: true})
		attr := s.raise(t, p, from)
		attr.State = to
		for bit := verbs.QPAttrCurState; bit <= verbs.QPAttrDestQPNum; bit <<= 1 {
			if modifyMask[to]&bit == 0 {
				continue
			}
			err := p.A.QP.Modify(&attr, modifyMask[to]&^bit)
			if m := wantRefused(t, err, verbs.ErrInvalid, from, to); m.Missing != bit || m.NotAllowed != 0 {
				t.Errorf("%v to %v without %v: missing %v, not allowed %v", from, to, bit, m.Missing,
					m.NotAllowed)
			}
		}
		extra := verbs.QPAttrDestQPNum
		if to == verbs.StateRTR {
			extra = verbs.QPAttrTimeout
		}
		err := p.A.QP.Modify(&attr, modifyMask[to]|extra)
		if m := wantRefused(t, err, verbs.ErrInvalid, from, to); m.NotAllowed != extra || m.Missing != 0 {
			t.Errorf("%v to %v with %v: missing %v, not allowed %v", from, to, extra, m.Missing, m.NotAllowed)
		}
		attr.CurState = verbs.StateErr
		err = p.A.QP.Modify(&attr, modifyMask[to]|verbs.QPAttrCurState)
		if !errors.As(err, new(*verbs.ModifyError)) {
			t.Errorf("%v to %v with a wrong present state: %v", from, to, err)
		}
		if got := p.A.QP.State(); got != from {
			t.Fatalf("state %v after refusals, want %v", got, from)
		}
		if err := step(p.A.QP, attr, to); err != nil {
			t.Fatalf("after refusals: %v", err)
		}
		from = to
	}
}

// queryQP reads back what was set.
func (s *suite) queryQP(t *testing.T) {
	p := s.pair(t, PairConfig{Adjust: func(_ verbs.QP, a *verbs.QPAttr) {
		a.Access = verbs.AccessRemoteRead
		a.Timeout, a.RetryCount, a.RNRRetry, a.MinRNRTimer = 15, 3, 5, 13
		a.MaxRDAtomic, a.MaxDestRDAtomic = 2, 2
	}})
	attr, _, err := p.connectConfig().attrs(p.A.QP, p.B.QP)
	if err != nil {
		t.Fatal(err)
	}
	if err := wantAttrs(p.A.QP, &attr); err != nil {
		t.Error(err)
	}
}

// wantAttrs returns how the attributes of a queue pair in RTS differ from those that were set.
func wantAttrs(qp verbs.QP, want *verbs.QPAttr) error {
	got, err := qp.Query()
	if err != nil {
		return err
	}
	const remote = verbs.AccessAll &^ verbs.AccessLocalWrite
	if got.State != verbs.StateRTS || got.DestQPNum != want.DestQPNum || got.PathMTU > want.PathMTU ||
		got.PathMTU.Bytes() == 0 || got.Timeout != want.Timeout || got.RetryCount != want.RetryCount ||
		got.RNRRetry != want.RNRRetry || got.MinRNRTimer != want.MinRNRTimer || got.Port != want.Port ||
		got.Access&remote != want.Access&remote ||
		// NICs that count in powers of two report more reads than were asked for.
		got.MaxRDAtomic < want.MaxRDAtomic || got.MaxDestRDAtomic < want.MaxDestRDAtomic ||
		max(got.MaxRDAtomic, got.MaxDestRDAtomic) == nonsense.MaxRDAtomic {
		return fmt.Errorf("queue pair %d has attributes\n%+v, was given\n%+v", qp.Num(), got, *want)
	}
	return nil
}

// masks checks that attributes outside the mask have no effect.
func (s *suite) masks(t *testing.T) {
	p := s.pair(t, PairConfig{Unconnected: true})
	if err := connectAmidNonsense(p.A.QP, p.B.QP, p.connectConfig()); err != nil {
		t.Fatal(err)
	}
	p.A.probe(1)
	p.B.probe(2)
}

// nonsense holds attributes with which no queue pair works.
var nonsense = verbs.QPAttr{
	CurState: verbs.StateErr + 1, PathMTU: 99, DestQPNum: 1<<32 - 1, RQPSN: 1<<32 - 1, SQPSN: 1<<32 - 1,
	Access: 1 << 31, MaxRDAtomic: 255, MaxDestRDAtomic: 255, MinRNRTimer: 255, PKeyIndex: 1<<16 - 1,
	Port: 255, Timeout: 255, RetryCount: 255, RNRRetry: 255,
	AH: verbs.AH{SGIDIndex: 255, SL: 255, Port: 255},
}

// connectAmidNonsense is Connect with nonsense in all attributes outside the masks. It returns an
// error if a queue pair takes any of it.
func connectAmidNonsense(a, b verbs.QP, cfg ConnectConfig) error {
	attrA, attrB, err := cfg.attrs(a, b)
	if err != nil {
		return err
	}
	for _, state := range wayUp {
		for qp, attr := range map[verbs.QP]*verbs.QPAttr{a: &attrA, b: &attrB} {
			given := nonsense
			nic.Apply(&given, attr, modifyMask[state])
			if err := step(qp, given, state); err != nil {
				return err
			}
		}
	}
	return errors.Join(wantAttrs(a, &attrA), wantAttrs(b, &attrB))
}

// postSendTooEarly checks that a refused send has no effect.
func (s *suite) postSendTooEarly(t *testing.T) {
	for _, state := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR} {
		s.run(t, state.String(), func(t *testing.T) {
			p := s.pair(t, PairConfig{Unconnected: true})
			attrA, attrB, err := p.connectConfig().attrs(p.A.QP, p.B.QP)
			if err != nil {
				t.Fatal(err)
			}
			for _, to := range allStates[verbs.StateRTS] {
				if err := step(p.B.QP, attrB, to); err != nil {
					t.Fatal(err)
				}
			}
			Fill(p.A.Buf.B, 1)
			want := make([]byte, len(p.B.Buf.B))
			for _, at := range append([]verbs.QPState{verbs.StateReset}, allStates[verbs.StateRTS]...) {
				if at != verbs.StateReset {
					if err := step(p.A.QP, attrA, at); err != nil {
						t.Fatal(err)
					}
				}
				if at == state {
					n, err := p.A.QP.PostSend([]verbs.SendWR{{
						ID: 666, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
						SGL:        p.A.Buf.SGL(0, 64),
						RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
					}})
					if n != 0 {
						t.Errorf("%d accepted", n)
					}
					wantErr(t, "post send", err, verbs.ErrState)
				}
			}
			p.A.probe(1)
			wantBytes(t, "the target of the refused write", p.B.Buf.B, want)
		})
	}
}

// postRecvByState checks that RESET refuses a receive and that INIT keeps it for later.
func (s *suite) postRecvByState(t *testing.T) {
	p := s.pair(t, PairConfig{Unconnected: true})
	n, err := p.B.QP.PostRecv([]verbs.RecvWR{{ID: 666}})
	if n != 0 {
		t.Errorf("RESET: %d accepted", n)
	}
	wantErr(t, "post receive in RESET", err, verbs.ErrState)
	attrA, attrB, err := p.connectConfig().attrs(p.A.QP, p.B.QP)
	if err != nil {
		t.Fatal(err)
	}
	id := uint64(1)
	for _, state := range allStates[verbs.StateRTS] {
		if err := step(p.A.QP, attrA, state); err != nil {
			t.Fatal(err)
		}
		if err := step(p.B.QP, attrB, state); err != nil {
			t.Fatal(err)
		}
		p.B.PostRecv(verbs.RecvWR{ID: id, SGL: p.B.Buf.SGL(0, 64)})
		id++
	}
	p.B.wantNone(p.B.RecvCQ)
	for range 3 {
		p.A.PostSend(verbs.SendWR{ID: 9, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			SGL: p.A.Buf.SGL(0, 64)})
	}
	p.A.wantOK(p.A.WaitSend(3), 9, 9, 9)
	p.B.wantOK(p.B.WaitRecv(3), 1, 2, 3)
}

// postSendInErr checks that a send in ERR is accepted and flushed, signaled or not.
func (s *suite) postSendInErr(t *testing.T) {
	p := s.pair(t, PairConfig{})
	p.A.Modify(verbs.StateErr)
	p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled},
		verbs.SendWR{ID: 2, Opcode: verbs.OpSend})
	p.A.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled})
	p.A.wantFlushed(p.A.WaitSend(3), 1, 2, 3)
	p.A.wantNone(p.A.SendCQ)
}

// postRecvInErr checks that a receive posted in ERR is flushed. Drivers that post receives without
// notifying the NIC (rdma_rxe) need help from their provider: a second move to ERR makes them look.
func (s *suite) postRecvInErr(t *testing.T) {
	p := s.pair(t, PairConfig{})
	p.A.Modify(verbs.StateErr)
	p.A.PostRecv(verbs.RecvWR{ID: 1, SGL: p.A.Buf.SGL(0, 64)}, verbs.RecvWR{ID: 2})
	p.A.PostRecv(verbs.RecvWR{ID: 3})
	p.A.wantFlushed(p.A.WaitRecv(3), 1, 2, 3)
	p.A.wantNone(p.A.RecvCQ)
}

// receivesInRTR checks that RTR receives everything.
func (s *suite) receivesInRTR(t *testing.T) {
	p := s.pair(t, PairConfig{Unconnected: true})
	attrA, attrB, err := p.connectConfig().attrs(p.A.QP, p.B.QP)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range allStates[verbs.StateRTR] {
		if err := step(p.B.QP, attrB, state); err != nil {
			t.Fatal(err)
		}
	}
	for _, state := range allStates[verbs.StateRTS] {
		if err := step(p.A.QP, attrA, state); err != nil {
			t.Fatal(err)
		}
	}
	Fill(p.A.Buf.B, 5)
	p.B.PostRecv(verbs.RecvWR{ID: 1, SGL: p.B.Buf.SGL(0, 100)})
	p.A.PostSend(
		verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: p.A.Buf.SGL(0, 100)},
		verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(100, 100),
			RemoteAddr: p.B.Buf.At(100), RKey: p.B.Buf.RKey()})
	p.A.wantOK(p.A.WaitSend(1), 2)
	p.B.wantOK(p.B.WaitRecv(1), 1)
	wantBytes(t, "received in RTR", p.B.Buf.B[:200], p.A.Buf.B[:200])
}

// drainedQueue checks that SQD holds what is posted and RTS sends it.
func (s *suite) drainedQueue(t *testing.T) {
	p := s.pair(t, PairConfig{})
	if err := step(p.A.QP, verbs.QPAttr{}, verbs.StateSQD); err != nil {
		if !s.env.Strict && !errors.As(err, new(*verbs.ModifyError)) {
			t.Skipf("no SQD: %v", err)
		}
		t.Fatal(err)
	}
	Fill(p.A.Buf.B, 5)
	p.A.PostSend(verbs.SendWR{
		ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 64),
		RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
	})
	// The other direction works, and after its round trip a request in this direction would have
	// arrived.
	p.B.probe(9)
	p.A.wantNone(p.A.SendCQ)
	// RESET drops it; the pair connects anew.
	if err := s.modify(p.A.QP, verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState); err != nil {
		t.Fatal(err)
	}
	p.B.Modify(verbs.StateReset)
	p.A.Drain()
	p.B.Drain()
	p.Connect()
	p.A.Modify(verbs.StateSQD)
	p.A.PostSend(verbs.SendWR{
		ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(64, 64),
		RemoteAddr: p.B.Buf.At(64), RKey: p.B.Buf.RKey(),
	})
	if err := s.modify(p.A.QP, verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState); err != nil {
		t.Fatal(err)
	}
	held := []uint64{2}
	if !s.env.Strict {
		// rdma_rxe (Linux 6.1) does not look at the send queue when it may go on, but when a
		// request is posted.
		p.A.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		held = append(held, 3)
	}
	p.A.wantOK(p.A.WaitSend(len(held)), held...)
	wantBytes(t, "the write that was forgotten", p.B.Buf.B[:64], make([]byte, 64))
	wantBytes(t, "the write that was held", p.B.Buf.B[64:128], p.A.Buf.B[64:128])
}
