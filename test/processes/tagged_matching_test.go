package processes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"ibverbx/tagged"
)

// Two members send to a third. That receives by the sender in the tag, in any order, with too
// little memory, and cancels receives.
func TestTaggedMatching(t *testing.T) {
	eachShape(t, team{program: "matching", members: 3, rounds: 150})
}

// Tags of this program: the sender's number in bits 32 to 39, what the message is for in bits 24 to
// 31, and a number below.
const (
	forOrder    = 1 << 24
	forAnybody  = 2 << 24
	forTrunc    = 3 << 24
	forCancel   = 4 << 24
	forSync     = 5 << 24
	maskSender  = 0xff << 32
	maskPurpose = 0xff << 24
)

func tagOf(sender int, purpose uint64, n int) uint64 {
	return uint64(sender)<<32 | purpose | uint64(n)
}

func matching(ctx context.Context, m *member) (err error) {
	o, err := newTagMesh(ctx, m, tagged.Config{MaxUnexpected: 32})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.w.Close()) }()
	for _, step := range []struct {
		name          string
		send, receive func(context.Context) error
	}{
		{"in the order of sending", o.sendInOrder(forOrder), o.receiveBySender},
		{"from anybody", o.sendInOrder(forAnybody), o.receiveAnything},
		{"truncation", o.sendTooMuch, o.receiveTooLittle},
		{"cancel", o.sendLate, o.cancelReceive},
		{"synchronous", o.sendSync, o.receiveLate},
	} {
		do := step.send
		if m.Rank == 0 {
			do = step.receive
		}
		if err := errors.Join(do(ctx), m.meet(ctx)); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return o.closeAll(ctx)
}

// lengthOf mixes short and long messages.
func lengthOf(n int) int {
	return []int{10, 0, 20_000, 300, 70_000}[n%5]
}

// sendInOrder sends more messages than the receiver keeps.
func (o *tagMesh) sendInOrder(purpose uint64) func(context.Context) error {
	return func(ctx context.Context) error {
		var reqs []*tagged.Request
		for n := range o.m.Rounds {
			tag := tagOf(o.m.Rank, purpose, n)
			req, err := o.eps[0].Send(tag, filled(lengthOf(n), tag))
			if err != nil {
				return err
			}
			reqs = append(reqs, req)
		}
		return o.wait(ctx, reqs...)
	}
}

// receiveBySender receives all of one sender and then all of the other, each in its order.
func (o *tagMesh) receiveBySender(ctx context.Context) error {
	buf := make([]byte, 100_000)
	for sender := o.m.Of - 1; sender > 0; sender-- {
		for n := range o.m.Rounds {
			info, err := o.w.RecvWait(ctx, tagOf(sender, forOrder, 0), maskSender|maskPurpose, buf)
			if err != nil {
				return err
			}
			if want := tagOf(sender, forOrder, n); info.Tag != want || info.Source != o.eps[sender] {
				return fmt.Errorf("receive %d from member %d got tag %#x of %s", n, sender, info.Tag,
					info.Source.Name())
			}
			if err := verify(buf[:info.Length], info.Tag); err != nil || info.Length != lengthOf(n) {
				return fmt.Errorf("message %d from member %d, %d bytes: %w", n, sender, info.Length, err)
			}
		}
	}
	return nil
}

// receiveAnything receives from both: the messages of each sender come in their order.
func (o *tagMesh) receiveAnything(ctx context.Context) error {
	buf := make([]byte, 100_000)
	next := make([]int, o.m.Of)
	for range (o.m.Of - 1) * o.m.Rounds {
		info, err := o.w.RecvWait(ctx, 0, tagged.Any, buf)
		if err != nil {
			return err
		}
		sender := info.Source.Value().(int)
		if want := tagOf(sender, forAnybody, next[sender]); info.Tag != want {
			return fmt.Errorf("from member %d came tag %#x, want %#x", sender, info.Tag, want)
		}
		if err := verify(buf[:info.Length], info.Tag); err != nil || info.Length != lengthOf(next[sender]) {
			return fmt.Errorf("message %#x, %d bytes: %w", info.Tag, info.Length, err)
		}
		next[sender]++
	}
	return nil
}

// tooMuch are lengths of messages for which there is too little memory: one that is copied, one in
// several fragments, one that is read.
func tooMuch() []int { return []int{100, 12_000, 50_000} }

func (o *tagMesh) sendTooMuch(ctx context.Context) error {
	for i, n := range tooMuch() {
		if err := o.eps[0].SendSyncWait(ctx, tagOf(o.m.Rank, forTrunc, i), make([]byte, n)); err != nil {
			return fmt.Errorf("%d bytes, which the receiver truncates: %w", n, err)
		}
	}
	return nil
}

func (o *tagMesh) receiveTooLittle(ctx context.Context) error {
	for sender := 1; sender < o.m.Of; sender++ {
		for i, n := range tooMuch() {
			buf := make([]byte, n-1)
			for i := range buf {
				buf[i] = blank
			}
			info, err := o.w.RecvWait(ctx, tagOf(sender, forTrunc, i), tagged.Exact, buf)
			if !errors.Is(err, tagged.ErrTruncated) || info.Length != n {
				return fmt.Errorf("%d bytes into %d: %w and a length of %d, want ErrTruncated and the "+
					"sender's", n, len(buf), err, info.Length)
			}
			if err := untouched(buf, blank); err != nil {
				return err
			}
		}
	}
	return nil
}

// cancelReceive cancels receives. Later receives get their messages.
func (o *tagMesh) cancelReceive(ctx context.Context) error {
	first := []byte{blank, blank}
	for sender := 1; sender < o.m.Of; sender++ {
		req, err := o.w.Recv(tagOf(sender, forCancel, 0), tagged.Exact, first)
		if err != nil {
			return err
		}
		if !req.Cancel() || !errors.Is(req.Err(), tagged.ErrCanceled) {
			return fmt.Errorf("a receive that nothing has matched: cancelled with %w, want ErrCanceled",
				req.Err())
		}
		req.Free()
	}
	if err := o.m.meet(ctx); err != nil {
		return err
	}
	for sender := 1; sender < o.m.Of; sender++ {
		tag, second := tagOf(sender, forCancel, 0), make([]byte, 2)
		if _, err := o.w.RecvWait(ctx, tag, tagged.Exact, second); err != nil {
			return err
		}
		if err := errors.Join(untouched(first, blank), verify(second, tag)); err != nil {
			return err
		}
	}
	return nil
}

func (o *tagMesh) sendLate(ctx context.Context) error {
	if err := o.m.meet(ctx); err != nil {
		return err
	}
	tag := tagOf(o.m.Rank, forCancel, 0)
	return o.eps[0].SendWait(ctx, tag, filled(2, tag))
}

// sendSync sends messages that are done only when a receive matches. They cannot be cancelled after
// they were sent.
func (o *tagMesh) sendSync(ctx context.Context) error {
	var reqs []*tagged.Request
	for i, n := range []int{10, 50_000} {
		tag := tagOf(o.m.Rank, forSync, i)
		req, err := o.eps[0].SendSync(tag, filled(n, tag))
		if err != nil {
			return err
		}
		reqs = append(reqs, req)
	}
	if err := o.m.meet(ctx); err != nil { // the receiver has got them
		return err
	}
	for _, req := range reqs {
		if req == nil || req.Done() {
			return errors.New("a synchronous send is done, and nobody has asked for it")
		}
		if req.Cancel() {
			return errors.New("a send was cancelled that has gone out")
		}
	}
	if err := o.m.meet(ctx); err != nil { // from here on they may be done
		return err
	}
	return o.wait(ctx, reqs...)
}

func (o *tagMesh) receiveLate(ctx context.Context) error {
	for sender := 1; sender < o.m.Of; sender++ {
		if err := o.expect(ctx, parcel{tag: tagOf(sender, forSync, 1), length: 50_000}); err != nil {
			return err
		}
	}
	if err := errors.Join(o.m.meet(ctx), o.m.meet(ctx)); err != nil {
		return err
	}
	buf := make([]byte, 50_000)
	for sender := 1; sender < o.m.Of; sender++ {
		for i := range 2 {
			tag := tagOf(sender, forSync, i)
			info, err := o.w.RecvWait(ctx, tag, tagged.Exact, buf)
			if err != nil {
				return err
			}
			if err := verify(buf[:info.Length], tag); err != nil {
				return err
			}
		}
	}
	return nil
}
