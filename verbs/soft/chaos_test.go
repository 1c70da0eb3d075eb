package soft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// ledger holds what one queue pair has to complete: the requests accepted and not yet completed, in
// order.
type ledger struct {
	end    *end
	peer   *ledger
	sends  []owed
	recvs  []owed
	failed [2]bool // an unsuccessful completion came
	dead   [2]bool // the completion queue has overrun, and the completions are lost
}

// places reports whether a write is acknowledged and not in memory yet.
func (l *late) places(id uint64) bool {
	return slices.ContainsFunc(l.placements, func(p placement) bool { return p.id == id })
}

type owed struct {
	id       uint64
	signaled bool
	slot     int // writes: which word of the peer's buffer becomes the id; -1 otherwise
}

// completed checks a completion against the ledger and removes its request.
func (l *ledger) completed(dir nic.Direction, wc *verbs.WC) error {
	list := &l.sends
	if dir == nic.Recv {
		list = &l.recvs
	}
	for len(*list) > 0 {
		o := (*list)[0]
		*list = (*list)[1:]
		if o.id == wc.ID {
			if l.failed[dir] && wc.Status != verbs.StatusWRFlushErr {
				return fmt.Errorf("%v after an error", wc.Status.Name())
			}
			l.failed[dir] = wc.Status != verbs.StatusSuccess
			if wc.Status == verbs.StatusSuccess && o.slot >= 0 {
				got := binary.NativeEndian.Uint64(l.peer.end.buf[8*o.slot:])
				if got != wc.ID && !l.peer.end.qp.late.places(wc.ID) {
					return fmt.Errorf("success, but the word is %d", got)
				}
			}
			return nil
		}
		if o.signaled || wc.Status != verbs.StatusSuccess && l.failed[dir] {
			return fmt.Errorf("request %d was passed over", o.id)
		}
	}
	return errors.New("no request is outstanding")
}

// invariants checks what holds for a queue pair at any time.
func invariants(q *QP) error {
	if err := q.core.CheckInvariants(); err != nil {
		return err
	}
	switch {
	case q.run.reads < 0:
		return fmt.Errorf("%d reads outstanding", q.run.reads)
	case q.core.State == verbs.StateErr && !q.run.busy && q.core.SQ.Acked != q.core.SQ.Posted:
		return errors.New("in ERR and not flushed")
	}
	return nil
}

// Random work, faults and failures in a stepped fabric: every accepted request completes once and
// in order, whatever happens, and a write that succeeded is in the peer's memory.
func TestChaosStepped(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 30
	}
	for seed := range uint64(seeds) {
		if err := chaos(t, seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func chaos(t *testing.T, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	f, err := New(Config{Devices: 3, Stepped: true, Seed: seed})
	must(t, err)
	const words = 4096
	patience := uint8(rng.IntN(8))
	change := func(c *connection) { c.RNRRetry = patience }
	var ledgers []*ledger
	for i := range 3 {
		a := newEnd(t, f.Device(i), endConfig{buf: 8 * words, qp: verbs.QPCap{MaxSendWR: 12, MaxRecvWR: 12}})
		b := newEnd(t, f.Device((i+1)%3),
			endConfig{buf: 8 * words, qp: verbs.QPCap{MaxSendWR: 12, MaxRecvWR: 12}})
		connect(t, a, b, change)
		la, lb := &ledger{end: a}, &ledger{end: b}
		la.peer, lb.peer = lb, la
		ledgers = append(ledgers, la, lb)
	}
	defer func() {
		for _, l := range ledgers {
			l.end.close()
		}
		must(t, f.Close())
	}()
	id := uint64(0)
	poll := func(l *ledger) error {
		var wcs [4]verbs.WC
		for dir, cq := range []*CQ{l.end.cq, l.end.rcq} {
			n, err := cq.Poll(wcs[:1+rng.IntN(4)])
			if errors.Is(err, verbs.ErrOverrun) {
				l.dead[dir] = true
			} else if err != nil {
				return err
			}
			for i := range wcs[:n] {
				if err := l.completed(nic.Direction(dir), &wcs[i]); err != nil {
					return fmt.Errorf("soft%d qp %d dir %d: %+v: %w", l.end.dev.id, wcs[i].QPNum, dir, wcs[i],
						err)
				}
			}
		}
		return nil
	}
	reconnect := func(l *ledger) error {
		for _, x := range []*ledger{l, l.peer} {
			if !x.end.dev.up() {
				return nil
			}
			if x.dead[nic.Send] {
				x.end.replaceCQ()
			} else {
				setState(t, x.end, verbs.StateReset)
			}
			x.sends, x.recvs, x.failed, x.dead = nil, nil, [2]bool{}, [2]bool{}
		}
		connect(t, l.end, l.peer.end, change)
		return nil
	}
	var faults []*Injection
	for range 1500 {
		l := ledgers[rng.IntN(len(ledgers))]
		switch k := rng.IntN(100); {
		case k < 20:
			id++
			e, p := l.end, l.peer.end
			slot := int(id % words)
			binary.NativeEndian.PutUint64(e.buf[8*slot:], id)
			wr := e.write(p, id, 8*slot, 8)
			o := owed{id: id, signaled: rng.IntN(3) != 0, slot: slot}
			switch rng.IntN(8) {
			case 0:
				wr.Opcode, o.slot = verbs.OpSend, -1
			case 1:
				wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, 9
			case 2:
				// Not from the slots that writes use.
				wr.Opcode, o.slot = verbs.OpRDMARead, -1
			case 3:
				wr.Opcode, o.slot = verbs.OpAtomicFetchAdd, -1
			}
			if wr.Opcode == verbs.OpSend || o.slot < 0 && rng.IntN(10) == 0 {
				wr.SGL = e.sge(0, 8)
			}
			if wr.Opcode == verbs.OpRDMARead || wr.Opcode == verbs.OpAtomicFetchAdd {
				wr.SGL, wr.RemoteAddr = e.sge(0, 8), p.mr.Addr()
			}
			if rng.IntN(60) == 0 {
				wr.RKey++
			}
			if rng.IntN(4) == 0 {
				wr.Flags |= verbs.SendFence
			}
			if !o.signaled {
				wr.Flags &^= verbs.SendSignaled
			}
			if slot == 0 {
				break
			}
			if n, _ := e.qp.PostSend([]verbs.SendWR{wr}); n == 1 {
				l.sends = append(l.sends, o)
			}
		case k < 30:
			id++
			if n, _ := l.end.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: l.end.sge(0, 8)}}); n == 1 {
				l.recvs = append(l.recvs, owed{id: id, signaled: true, slot: -1})
			}
		case k < 50:
			if err := poll(l); err != nil {
				return err
			}
		case k < 51:
			l.end.dev.SetLink(rng.IntN(3) != 0)
		case k == 51 && rng.IntN(4) == 0:
			l.end.dev.Kill()
		case k == 52:
			l.end.dev.Restore()
		case k == 53:
			faults = append(faults, f.Inject(randomFault(rng, l.end.dev)))
		case k == 54 && len(faults) > 0:
			faults[rng.IntN(len(faults))].Remove()
		case k == 55:
			if l.end.qp.State() == verbs.StateErr || rng.IntN(20) == 0 {
				if err := reconnect(l); err != nil {
					return err
				}
			}
		case k == 56 && l.end.dev.up() && rng.IntN(5) == 0 && l.end.qp.State() == verbs.StateRTS:
			setState(t, l.end, verbs.StateErr)
		default:
			f.Step()
		}
		for _, l := range ledgers {
			if err := invariants(l.end.qp); err != nil {
				return err
			}
		}
	}
	for _, i := range faults {
		i.Remove()
	}
	for _, l := range ledgers {
		l.end.dev.SetLink(true)
		l.end.dev.Restore()
	}
	for _, l := range ledgers {
		if l.end.qp.State() == verbs.StateRTS {
			setState(t, l.end, verbs.StateErr)
		}
	}
	f.Run(1 << 20)
	for range 100 {
		for _, l := range ledgers {
			if err := poll(l); err != nil {
				return err
			}
		}
	}
	for _, l := range ledgers {
		for dir, list := range [][]owed{l.sends, l.recvs} {
			for _, o := range list {
				if o.signaled && !l.dead[dir] {
					return fmt.Errorf("request %d never completed", o.id)
				}
			}
		}
	}
	return nil
}

// randomFault returns a fault that does not move writes elsewhere.
func randomFault(rng *rand.Rand, d *Device) Fault {
	kinds := FaultKinds()
	alterations := []func(*verbs.SendWR){
		nil,
		func(wr *verbs.SendWR) { wr.Imm++ },
		func(wr *verbs.SendWR) { wr.RKey += 2 },
		func(wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWriteWithImm },
		func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSendWithImm },
		func(wr *verbs.SendWR) { wr.Opcode = withoutImm(wr.Opcode) },
	}
	return Fault{Kind: kinds[rng.IntN(len(kinds))], Device: d, Skip: rng.IntN(3),
		Rewrite: alterations[rng.IntN(len(alterations))]}
}

// Many goroutines on few queue pairs, with queue pairs failing and coming back under them. It is
// meant for the race detector.
func TestChaosBackground(t *testing.T) {
	for _, speed := range []DeviceConfig{{}, {Bandwidth: 1 << 30, Latency: 50 * time.Microsecond}} {
		const size = 1 << 20
		f, a, b := pair(t, Config{Devices: 3, Device: speed}, endConfig{buf: size})
		c, d := newEnd(t, f.Device(1), endConfig{buf: size}), newEnd(t, f.Device(2), endConfig{buf: size})
		connect(t, c, d)
		stop := make(chan struct{})
		var all sync.WaitGroup
		loop := func(body func(rng *rand.Rand)) {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(rand.Uint64(), 2))
				for {
					select {
					case <-stop:
						return
					default:
						body(rng)
					}
				}
			})
		}
		// Each pair sends in one direction, so that no two write to the same byte.
		for _, p := range [][2]*end{{a, b}, {c, d}} {
			x, y := p[0], p[1]
			for range 2 {
				loop(func(rng *rand.Rand) {
					n := 1 << rng.IntN(19)
					half := size / 2
					wr := x.write(y, 1, 0, n)
					switch rng.IntN(4) {
					case 0:
						wr.Opcode = verbs.OpRDMARead
						wr.SGL = x.sge(half, n)
						wr.RemoteAddr += uint64(half)
					case 1:
						wr = x.send(2, 0, min(n, 4096))
					}
					x.qp.PostSend([]verbs.SendWR{wr})
					y.qp.PostRecv([]verbs.RecvWR{{ID: 3, SGL: y.sge(0, 4096)}})
				})
			}
			loop(func(*rand.Rand) {
				var wcs [16]verbs.WC
				for _, cq := range []*CQ{x.cq, x.rcq, y.cq, y.rcq} {
					cq.Poll(wcs[:])
				}
			})
		}
		loop(func(rng *rand.Rand) {
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
			switch rng.IntN(5) {
			case 0:
				setState(t, a, verbs.StateReset)
				setState(t, b, verbs.StateReset)
				connect(t, a, b)
			case 1:
				f.Device(2).SetLink(false)
				time.Sleep(time.Millisecond)
				f.Device(2).SetLink(true)
			case 2:
				mr, err := a.pd.RegisterMR(a.buf, verbs.AccessAll)
				must(t, err)
				must(t, mr.Close())
			case 3:
				setState(t, c, verbs.StateReset)
				setState(t, d, verbs.StateReset)
				connect(t, c, d)
			case 4:
				fault := randomFault(rng, f.Device(rng.IntN(3)))
				for fault.Kind == OverrunCQ { // the others poll the queues that there are
					fault = randomFault(rng, fault.Device)
				}
				i := f.Inject(fault)
				time.Sleep(time.Millisecond)
				i.Remove()
				for _, p := range [][2]*end{{a, b}, {c, d}} {
					setState(t, p[0], verbs.StateReset)
					setState(t, p[1], verbs.StateReset)
					connect(t, p[0], p[1])
				}
			}
		})
		time.Sleep(300 * time.Millisecond)
		close(stop)
		all.Wait()
		for _, e := range []*end{a, b, c, d} {
			e.close()
		}
	}
}
