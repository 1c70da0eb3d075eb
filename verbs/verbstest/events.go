package verbstest

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"ibverbx/verbs"
)

// quiet is how long the suite waits before it concludes that no event arrives. A later event goes
// unnoticed: that may hide an error, but never reports a false one.
const quiet = 20 * time.Millisecond

func testEvents(t *testing.T, s *suite) {
	s.run(t, "one_for_each_arm", s.eventPerArm)
	s.run(t, "not_armed", s.eventNotArmed)
	s.run(t, "solicited", s.eventSolicited)
	s.run(t, "solicited_error", s.eventSolicitedError)
	s.run(t, "arm_poll_sleep", s.armPollSleep)
	s.run(t, "shared_channel", s.eventSharedChannel)
	s.run(t, "context", s.eventContext)
}

// waitEvent waits for an event and reports whether there was one.
func (n *Node) waitEvent(c *verbs.CompChannel, d time.Duration) bool {
	if n.Env.Idle == nil {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		return c.Wait(ctx) == nil
	}
	for end := time.Now().Add(d); ; {
		n.Env.Idle()
		select {
		case <-c.Events():
			return true
		default:
		}
		if time.Now().After(end) {
			return false
		}
		runtime.Gosched()
	}
}

func (e *End) wantEvent(c *verbs.CompChannel) {
	e.T.Helper()
	if !e.waitEvent(c, e.Env.Timeout) {
		e.T.Fatal("no event")
	}
}

func (e *End) wantNoEvent(c *verbs.CompChannel) {
	e.T.Helper()
	if e.waitEvent(c, quiet) {
		e.T.Error("an event without arming")
	}
}

func (e *End) arm(cq verbs.CQ, solicitedOnly bool) {
	e.T.Helper()
	if err := cq.Arm(solicitedOnly); err != nil {
		e.T.Fatalf("arm: %v", err)
	}
}

// eventPair makes a pair whose second side has its completion queues on a channel, with receives
// posted.
func (s *suite) eventPair(t *testing.T, receives int) (*Pair, *verbs.CompChannel) {
	t.Helper()
	channel := verbs.NewCompChannel()
	p := s.pair(t, PairConfig{Channel: channel})
	for i := range receives {
		p.B.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: p.B.Buf.SGL(0, 64)})
	}
	return p, channel
}

func (p *Pair) message(flags verbs.SendFlags) {
	p.A.T.Helper()
	p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | flags,
		SGL: p.A.Buf.SGL(0, 8)})
	p.A.wantOK(p.A.WaitSend(1), 1)
}

func (s *suite) eventPerArm(t *testing.T) {
	p, channel := s.eventPair(t, 20)
	for round := range uint64(5) {
		p.B.arm(p.B.RecvCQ, false)
		p.message(0)
		p.B.wantEvent(channel)
		p.B.wantOK(p.B.WaitRecv(1), 2*round)
		// The queue is not armed any more.
		p.message(0)
		p.B.wantOK(p.B.WaitRecv(1), 2*round+1)
		p.B.wantNoEvent(channel)
	}
	// The send side's queue has events just the same.
	p.A.arm(p.A.SendCQ, false)
	p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	p.A.wantEvent(channel)
	p.A.wantOK(p.A.WaitSend(1), 1)
}

func (s *suite) eventNotArmed(t *testing.T) {
	p, channel := s.eventPair(t, 3)
	for i := range uint64(3) {
		p.message(verbs.SendSolicited)
		p.B.wantOK(p.B.WaitRecv(1), i)
	}
	p.B.wantNoEvent(channel)
}

func (s *suite) eventSolicited(t *testing.T) {
	p, channel := s.eventPair(t, 10)
	p.B.arm(p.B.RecvCQ, true)
	p.message(0)
	p.B.wantOK(p.B.WaitRecv(1), 0)
	p.B.wantNoEvent(channel)
	p.message(verbs.SendSolicited)
	p.B.wantEvent(channel)
	p.B.wantOK(p.B.WaitRecv(1), 1)
	// A write with immediate can be solicited as well.
	p.B.arm(p.B.RecvCQ, true)
	p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled |
		verbs.SendSolicited})
	p.B.wantEvent(channel)
	p.B.wantOK(p.B.WaitRecv(1), 2)
	p.A.wantOK(p.A.WaitSend(1), 1)
	// Arming for all after arming for solicited ones only counts for all (ibv_req_notify_cq(3),
	// IBTA 11.4.2.2).
	p.B.arm(p.B.RecvCQ, true)
	p.B.arm(p.B.RecvCQ, false)
	p.B.arm(p.B.RecvCQ, true)
	p.message(0)
	p.B.wantEvent(channel)
	p.B.wantOK(p.B.WaitRecv(1), 3)
}

// eventSolicitedError checks that a flushed receive counts as solicited (IBTA 11.4.2.2). Failed
// sends should as well; rdma_rxe does not count them.
func (s *suite) eventSolicitedError(t *testing.T) {
	p, channel := s.eventPair(t, 1)
	p.B.arm(p.B.RecvCQ, true)
	p.B.Modify(verbs.StateErr)
	p.B.wantEvent(channel)
	p.B.wantFlushed(p.B.WaitRecv(1), 0)
	if !s.env.Strict {
		return
	}
	p.B.arm(p.B.SendCQ, true)
	p.B.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpSend})
	p.B.wantEvent(channel)
	p.B.wantFlushed(p.B.WaitSend(1), 1)
}

// armPollSleep receives a thousand messages, sleeping in between. A wake-up that is lost leaves it
// asleep.
func (s *suite) armPollSleep(t *testing.T) {
	const total, window = 1000, 16
	p, channel := s.eventPair(t, 2*window)
	sent := make(chan error, 1)
	acked := make(chan struct{}, window) // one for each message that may be in flight
	for range window {
		acked <- struct{}{}
	}
	go func() {
		sent <- func() error {
			var wcs [window]verbs.WC
			outstanding := 0
			for i := range total {
				<-acked
				n, err := p.A.QP.PostSend(
					[]verbs.SendWR{{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
				if n != 1 {
					return err
				}
				outstanding++
				p.A.Until(func() bool {
					n, err = p.A.SendCQ.Poll(wcs[:])
					outstanding -= n
					return err != nil || outstanding < window
				})
				if err != nil {
					return err
				}
				if i%37 == 0 {
					time.Sleep(time.Millisecond) // let the receiver fall asleep
				}
			}
			return nil
		}()
	}()
	var wcs [8]verbs.WC
	for got := 0; got < total; {
		n, err := p.B.RecvCQ.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			p.B.arm(p.B.RecvCQ, false)
			if n, err = p.B.RecvCQ.Poll(wcs[:]); err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				p.B.wantEvent(channel)
				continue
			}
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				t.Fatalf("message %d: %v", got, wc.Status)
			}
			got++
			p.B.PostRecv(verbs.RecvWR{ID: uint64(got)})
			acked <- struct{}{}
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// eventSharedChannel has queues of both devices on one channel.
func (s *suite) eventSharedChannel(t *testing.T) {
	p, channel := s.eventPair(t, 4)
	for range 3 {
		p.A.PostRecv(verbs.RecvWR{SGL: p.A.Buf.SGL(0, 64)})
	}
	for _, to := range []*Pair{p, {A: p.B, B: p.A}, p, {A: p.B, B: p.A}} {
		p.A.arm(p.A.RecvCQ, false)
		p.B.arm(p.B.RecvCQ, false)
		to.message(0)
		p.A.wantEvent(channel)
		if wcs := to.B.WaitRecv(1); wcs[0].Status != verbs.StatusSuccess {
			t.Errorf("receive: %v", wcs[0].Status)
		}
	}
	// Events of both at once may merge, so both queues are polled after one.
	p.A.arm(p.A.RecvCQ, false)
	p.B.arm(p.B.RecvCQ, false)
	p.message(0)
	(&Pair{A: p.B, B: p.A}).message(0)
	p.A.wantEvent(channel)
	p.A.WaitRecv(1)
	p.B.WaitRecv(1)
}

// eventContext ends a wait by its context.
func (s *suite) eventContext(t *testing.T) {
	p, channel := s.eventPair(t, 1)
	p.B.arm(p.B.RecvCQ, false)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- channel.Wait(ctx) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled wait: %v", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := channel.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait with a deadline: %v", err)
	}
	// The queue is still armed.
	p.message(0)
	p.B.wantEvent(channel)
	p.B.wantOK(p.B.WaitRecv(1), 0)
}
