package soft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// trace runs a mixed workload in a stepped fabric and writes down all that happens.
func trace(t *testing.T, seed uint64, scramble bool) []string {
	f, a, b := pair(t, Config{Stepped: true, Seed: seed, Scramble: scramble}, endConfig{})
	f.Inject(Fault{Kind: FailSend, Skip: 12})
	var out []string
	var wcs [8]verbs.WC
	for i := range 60 {
		id := uint64(i)
		if a.qp.State() == verbs.StateRTS {
			a.qp.PostSend([]verbs.SendWR{a.write(b, id, 8*i, 8)})
			a.qp.PostSend([]verbs.SendWR{a.send(id, 8*i, 8)})
		}
		b.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: b.sge(8*i, 8)}})
		for range 3 {
			if act, ok := f.Step(); ok {
				out = append(out, act.String())
			}
		}
		for _, cq := range []*CQ{a.cq, b.rcq} {
			n, err := cq.Poll(wcs[:])
			must(t, err)
			for _, wc := range wcs[:n] {
				out = append(out, fmt.Sprintf("%+v", wc))
			}
		}
	}
	for {
		act, ok := f.Step()
		if !ok {
			return out
		}
		out = append(out, act.String())
	}
}

func TestSteppedIsDeterministic(t *testing.T) {
	for _, scramble := range []bool{false, true} {
		seen := map[string]bool{}
		for seed := range uint64(20) {
			one, two := trace(t, seed, scramble), trace(t, seed, scramble)
			if !slices.Equal(one, two) {
				t.Fatalf("seed %d: two runs differ", seed)
			}
			seen[strings.Join(one, "\n")] = true
		}
		if len(seen) < 15 {
			t.Errorf("20 seeds made only %d different runs", len(seen))
		}
	}
}

// Step chooses evenly among what can happen, but lets a timer run out in one of 16 steps only,
// wherever the timers stand in the list.
func TestChoiceOfSteps(t *testing.T) {
	f := newFabric(t, Config{Stepped: true, Seed: 1})
	const rounds, weight = 320000, 16
	for _, kinds := range [][]ActionKind{
		{Timer, Timer, Execute, Execute, Execute}, {Execute, Timer, Acknowledge, Timer, Execute},
		{Execute, Acknowledge, Execute, Timer, Timer},
	} {
		var list []Action
		for i, k := range kinds {
			list = append(list, Action{Kind: k, ID: uint64(i)})
		}
		chosen := make([]int, len(list))
		for range rounds {
			chosen[f.choose(list).ID]++
		}
		for i, k := range kinds {
			want := rounds * (weight - 1) / weight / 3
			if k == Timer {
				want = rounds / weight / 2
			}
			if chosen[i] < want*97/100 || chosen[i] > want*103/100 {
				t.Errorf("%v: action %d was chosen %d times, want about %d", kinds, i, chosen[i], want)
			}
		}
	}
}

// do finds the one action that starts like this and does it.
func do(t *testing.T, f *Fabric, prefix string) {
	t.Helper()
	list := f.Actions(nil)
	for _, a := range list {
		if strings.HasPrefix(a.String(), prefix) {
			if !f.Do(a) {
				t.Fatalf("%v: refused", a)
			}
			return
		}
	}
	t.Fatalf("no %q among %v", prefix, list)
}

func TestSteppedStages(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	copy(a.buf, "payload")
	b.recv(verbs.RecvWR{ID: 7, SGL: b.sge(0, 64)})
	a.post(a.send(1, 0, 7))
	if string(b.buf[:7]) == "payload" {
		t.Fatal("a post has executed")
	}
	do(t, f, "execute soft0 qp 17 wr 1")
	if string(b.buf[:7]) != "payload" {
		t.Fatal("no data after execute")
	}
	nothing(t, b.rcq)
	do(t, f, "reveal soft1 qp 17 recv wr 7")
	awaitStatus(t, b.rcq, 7, verbs.StatusSuccess)
	do(t, f, "acknowledge soft0 qp 17 wr 1")
	nothing(t, a.cq)
	do(t, f, "reveal soft0 qp 17 send wr 1")
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	if list := f.Actions(nil); len(list) != 0 {
		t.Errorf("left over: %v", list)
	}
	if f.Do(Action{Kind: Execute, QPNum: 17}) || f.Do(Action{Kind: Reveal, QPNum: 99}) ||
		f.Do(Action{Device: 9}) {
		t.Error("did what cannot happen")
	}
}

// A read's data lands with its acknowledgement, so what follows without a fence may overtake it.
func TestSteppedReadLandsLate(t *testing.T) {
	for _, fence := range []bool{false, true} {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{})
		copy(b.buf, "remote")
		read := a.write(b, 1, 0, 6)
		read.Opcode = verbs.OpRDMARead
		write := a.write(b, 2, 100, 6)
		write.SGL = a.sge(0, 6)
		if fence {
			write.Flags |= verbs.SendFence
		}
		a.post(read, write)
		do(t, f, "execute soft0 qp 17 wr 1")
		if a.buf[0] != 0 {
			t.Error("the read has landed before its acknowledgement")
		}
		if fence {
			if list := f.Actions(nil); len(list) != 1 {
				t.Errorf("the fence does not hold: %v", list)
			}
			do(t, f, "acknowledge soft0 qp 17 wr 1")
		}
		do(t, f, "execute soft0 qp 17 wr 2")
		f.Run(100)
		want := "\x00\x00\x00\x00\x00\x00"
		if fence {
			want = "remote"
		}
		if got := string(b.buf[100:106]); got != want {
			t.Errorf("fence %v: the write carried %q", fence, got)
		}
		if string(a.buf[:6]) != "remote" {
			t.Error("the read did not land")
		}
		await(t, a.cq, 2)
	}
}

func TestSteppedScrambleReordersOneQueue(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true, Scramble: true}, endConfig{})
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 8, 8))
	for range 2 {
		do(t, f, "execute")
		do(t, f, "acknowledge")
	}
	do(t, f, "reveal soft0 qp 17 send +1 wr 2")
	awaitStatus(t, a.cq, 2, verbs.StatusSuccess)
	do(t, f, "reveal soft0 qp 17 send wr 1")
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
}

func TestSteppedTimers(t *testing.T) {
	t.Run("receiver not ready", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RNRRetry = 2 })
		a.post(a.send(1, 0, 8))
		for range 2 {
			do(t, f, "execute")
			do(t, f, "timer")
		}
		do(t, f, "execute")
		do(t, f, "acknowledge") // no timer is left
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusRNRRetryExcErr)
		if b.qp.State() != verbs.StateRTS {
			t.Error("the receiver has failed as well")
		}
	})
	t.Run("a receive comes in time", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RNRRetry = 1 })
		a.post(a.send(1, 0, 8))
		do(t, f, "execute")
		b.recv(verbs.RecvWR{ID: 2, SGL: b.sge(0, 8)})
		do(t, f, "execute")
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	})
	t.Run("each request has its retries, receiver not ready", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RNRRetry = 2 })
		a.post(a.send(1, 0, 8), a.send(2, 0, 8))
		for id := range uint64(2) {
			for range 2 {
				do(t, f, "execute")
				do(t, f, "timer")
			}
			b.recv(verbs.RecvWR{ID: 3, SGL: b.sge(0, 8)})
			do(t, f, "execute")
			do(t, f, "acknowledge")
			do(t, f, "reveal soft0 qp 17 send")
			awaitStatus(t, a.cq, id+1, verbs.StatusSuccess)
		}
	})
	t.Run("each request has its retries, link down", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RetryCount = 1 })
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 8))
		for range 2 {
			f.Device(1).SetLink(false)
			do(t, f, "execute")
			do(t, f, "timer")
			f.Device(1).SetLink(true)
			do(t, f, "execute")
		}
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
		awaitStatus(t, a.cq, 2, verbs.StatusSuccess)
	})
	t.Run("each request has its retries, acknowledgements late", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RetryCount = 1 })
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 8))
		do(t, f, "execute")
		do(t, f, "execute")
		for range 2 {
			f.Device(1).SetLink(false)
			do(t, f, "timer")
			f.Device(1).SetLink(true)
			do(t, f, "acknowledge")
		}
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
		awaitStatus(t, a.cq, 2, verbs.StatusSuccess)
	})
	t.Run("a receive that comes in time costs no retry", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RNRRetry = 1 })
		a.post(a.send(1, 0, 8))
		for range 3 {
			do(t, f, "execute")
			b.recv(verbs.RecvWR{ID: 2, SGL: b.sge(0, 8)})
			setState(t, b, verbs.StateReset) // and is gone again
			raise(t, b, a)
		}
		do(t, f, "execute")
		b.recv(verbs.RecvWR{ID: 3, SGL: b.sge(0, 8)})
		do(t, f, "execute")
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	})
	t.Run("a peer that was not connected", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.RetryCount = 1 })
		setState(t, b, verbs.StateReset)
		a.post(a.write(b, 1, 0, 8))
		do(t, f, "execute")
		raise(t, b, a)
		do(t, f, "execute") // at once: no timer has to run out
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	})
	t.Run("for ever", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.Timeout = 0 })
		a.post(a.send(1, 0, 8))
		if n := f.Run(1000); n != 1 {
			t.Errorf("RNR: %d steps before nothing moved", n)
		}
		f.Device(1).SetLink(false)
		b.recv(verbs.RecvWR{})
		if n := f.Run(1000); n > 2 {
			t.Errorf("link: %d steps before nothing moved", n)
		}
		f.Device(1).SetLink(true)
		f.Run(1000)
		wc := await(t, a.cq, 1)[0]
		if wc.Status != verbs.StatusRemInvReqErr { // eight bytes into a receive of none
			t.Error(wc.Status)
		}
	})
	// The data has landed and the peer knows, but no acknowledgement comes through.
	t.Run("lost acknowledgement", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{})
		b.recv(verbs.RecvWR{ID: 3, SGL: b.sge(0, 8)})
		a.post(a.send(1, 0, 8), a.send(2, 0, 8))
		do(t, f, "execute soft0 qp 17 wr 1")
		f.Device(0).SetLink(false)
		for range 4 {
			do(t, f, "timer")
		}
		f.Run(100)
		awaitStatus(t, b.rcq, 3, verbs.StatusSuccess)
		awaitStatus(t, a.cq, 1, verbs.StatusRetryExcErr)
		awaitStatus(t, a.cq, 2, verbs.StatusWRFlushErr)
	})
}

// What this end has decided needs no acknowledgement: a fault is reported also where the link is
// down by then.
func TestAFaultNeedsNoAcknowledgement(t *testing.T) {
	for _, kind := range []FaultKind{FailSend, FailAfterData} {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{})
		f.Inject(Fault{Kind: kind, Status: verbs.StatusRemOpErr})
		a.post(a.write(b, 1, 0, 8))
		do(t, f, "execute")
		f.Device(1).SetLink(false)
		do(t, f, "acknowledge")
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusRemOpErr)
	}
}

func TestSteppedAtomicsAndErrors(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true, Seed: 3}, endConfig{})
	binary.NativeEndian.PutUint64(b.buf, 40)
	add := a.write(b, 1, 0, 8)
	add.Opcode, add.CompareAdd = verbs.OpAtomicFetchAdd, 2
	a.post(add)
	f.Run(10)
	wc := awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	if wc.ByteLen != 8 || wc.Opcode != verbs.WCFetchAdd || binary.NativeEndian.Uint64(a.buf) != 40 ||
		binary.NativeEndian.Uint64(b.buf) != 42 {
		t.Errorf("%+v: %d became %d", wc, binary.NativeEndian.Uint64(a.buf),
			binary.NativeEndian.Uint64(b.buf))
	}
	bad := a.write(b, 2, 0, 8)
	bad.RKey = b.mr.LKey()
	b.recv(verbs.RecvWR{ID: 9})
	a.post(bad, a.write(b, 3, 0, 8))
	f.Run(100)
	awaitStatus(t, a.cq, 2, verbs.StatusRemAccessErr)
	awaitStatus(t, a.cq, 3, verbs.StatusWRFlushErr)
	awaitStatus(t, b.rcq, 9, verbs.StatusWRFlushErr)
}
