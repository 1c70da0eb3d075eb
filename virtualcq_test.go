package ibverbx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// Each virtual queue pair is touched when its time has come, whatever came before it. A poll reads
// one clock, however many wait.
func TestTouchedWhenDue(t *testing.T) {
	var c VirtualCQ
	start := time.Unix(0, 0)
	now, reads := start, 0
	clock := func() time.Time {
		reads++
		return now
	}
	qps := make([]*VirtualQP, 4)
	for i, in := range []time.Duration{30, 10, 20, 40} {
		qps[i] = &VirtualQP{cq: &c, line: line{clock: clock}}
		c.touchAt(qps[i], start.Add(in), start)
	}
	c.touchAt(qps[1], start.Add(25), start) // later than it was
	c.touchAt(qps[3], start.Add(15), start) // and earlier
	c.later.forget(qps[2])
	var at []time.Duration
	for ; len(c.later.list) != 0 && len(at) < 100; now = now.Add(1) {
		reads = 0
		if c.touchDue(); reads != 1 {
			t.Errorf("%d reads of clocks", reads)
		}
		for len(at) < len(c.touched) {
			at = append(at, now.Sub(start))
		}
	}
	if want := []*VirtualQP{qps[3], qps[1], qps[0]}; !slices.Equal(c.touched, want) ||
		!slices.Equal(at, []time.Duration{15, 25, 30}) {
		t.Errorf("touched in another order, at %v", at)
	}
}

// The alarm goes off for the earliest, and again for the next.
func TestAlarmForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := VirtualCQ{channel: verbs.NewCompChannel()}
		defer c.later.end()
		qps := [2]*VirtualQP{}
		for i := range qps {
			qps[i] = &VirtualQP{cq: &c, line: line{clock: time.Now}}
		}
		start := time.Now()
		c.touchAt(qps[0], start.Add(40*time.Millisecond), start)
		c.touchAt(qps[1], start.Add(20*time.Millisecond), start)
		for i, want := range []*VirtualQP{qps[1], qps[0]} {
			if err := c.channel.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.touchDue()
			at := time.Duration(i+1) * 20 * time.Millisecond
			if len(c.touched) != i+1 || c.touched[i] != want || time.Since(start) != at {
				t.Fatalf("alarm %d: %d are due after %v, want %d after %v, in the order of their times", i,
					len(c.touched), time.Since(start), i+1, at)
			}
		}
	})
}

// askedDevice counts how often its port is asked.
type askedDevice struct {
	verbs.Device // nothing else of it is used
	asked        int
	state        verbs.PortState
	err          error
}

func (*askedDevice) ID() verbs.DeviceID { return 1 }
func (*askedDevice) Name() string       { return "nic" }

func (d *askedDevice) QueryPort(int) (verbs.PortAttr, error) {
	d.asked++
	return verbs.PortAttr{State: d.state}, d.err
}

// The answer of a port counts for a moment, unless it reports something: each of a thousand virtual
// queue pairs asks.
func TestPortsAreAskedOnce(t *testing.T) {
	var w portWatch
	d, now := &askedDevice{state: verbs.PortDown}, time.Unix(0, 0)
	expect := func(asked int, says string) {
		t.Helper()
		said := ""
		if err := w.down(d, 1, now); err != nil {
			said = err.Error()
		}
		if d.asked != asked || said != says {
			t.Errorf("asked %d times, says %q, want %d and %q", d.asked, said, asked, says)
		}
	}
	expect(1, "nic port 1 is down")
	expect(1, "nic port 1 is down")
	now, d.state = now.Add(portStateFor), verbs.PortActive
	expect(2, "")
	now = now.Add(portStateFor - 1)
	expect(2, "")
	w.forget()
	d.err = errors.New("no answer")
	expect(3, "nic port 1 does not say whether it is up: no answer")
	if err := w.down(d, 2, now); err == nil || d.asked != 4 {
		t.Error("another port has not been asked")
	}
	now, d.err = now.Add(portStateFor), fmt.Errorf("query port: %w", verbs.ErrDeviceGone)
	expect(5, "nic: device gone")
}

// A completion that can be of no request, because that request has none of this kind, has it on
// another rail, or does not have it on a NIC yet, is dropped and counted, whatever its status:
// nothing is reported, no slot is freed, nothing fails.
func TestCompletionsThatFitNothingAreDropped(t *testing.T) {
	for _, scheme := range []Scheme{DQPLB, Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			r := newRecorded(t, 1, 3, Config{Scheme: scheme, FragmentSize: 100, MaxMsgCntPerQP: 16})
			rails := &r.send.rails
			request := func(id uint64, op verbs.Opcode) SendWR {
				wr := rawWrite(id, 250)
				if wr.Opcode = op; op.IsSend() {
					wr.Remote = RemoteSegment{}
				} else if op.IsAtomic() {
					wr.Local.Length, wr.Remote.Length = 8, 8
				}
				return wr
			}
			relaxed := request(2, verbs.OpSend)
			relaxed.Relaxed = true
			requests := []SendWR{request(0, verbs.OpRDMAWrite), request(1, verbs.OpAtomicFetchAdd), relaxed,
				request(3, verbs.OpSend), request(4, verbs.OpRDMAWriteWithImm), request(5, verbs.OpRDMARead)}
			if n, err := r.PostSend(requests...); n != len(requests) || err != nil {
				t.Fatal(n, err)
			}
			keys := NewKeys(map[verbs.DeviceID]uint32{0: 1})
			if _, err := r.PostRecv(RecvWR{ID: 6}, RecvWR{ID: 7, Local: Segment{Addr: 1 << 40, Length: 8,
				Keys: keys}}); err != nil {
				t.Fatal(err)
			}
			// fits says whether a send request may have a completion of a kind on a rail now. The
			// final messages of the SEND and of Spray's notification wait for earlier data.
			fits := func(request int, kind uint64, rl *rail) bool {
				switch kind {
				case wrid.Data, wrid.Numbered, wrid.Imm:
					return request < len(requests) && request != 3 && rl != rails.notify
				case wrid.Message:
					return request == 2 && rl == rails.sendRail
				}
				return false
			}
			before, want := r.Stats(), uint64(0)
			dropped := func(what string, n int, rl *rail, wc verbs.WC) {
				t.Helper()
				got := r.CQ().ProcessCompletions(nil, 0, wc)
				if len(got) != 0 {
					t.Fatalf("%s %d, rail %d: reported %+v", what, n, rl.index(), got)
				}
				if want++; r.Stats().StaleEvents != before.StaleEvents+want {
					t.Fatalf("%s %d, rail %d, %#x: not dropped", what, n, rl.index(), wc.ID)
				}
			}
			kinds := []uint64{0, wrid.Data, wrid.Numbered, wrid.Final, wrid.Imm, wrid.Message, 8, 15}
			for n := range len(requests) + 2 { // and two that do not exist
				for _, kind := range kinds {
					for _, rl := range rails.all {
						if fits(n, kind, rl) {
							continue
						}
						wc := verbs.WC{ID: wrid.New(kind, rl.idBits, 0, uint64(n+1)), QPNum: rl.num}
						dropped("request", n, rl, wc)
						wc.Status = verbs.StatusRetryExcErr
						dropped("request", n, rl, wc)
					}
				}
			}
			for n := range 4 { // receives 0 and 1, and two that do not exist
				for _, rl := range rails.all {
					carrier := []*rail{rails.finalRail, rails.sendRail, nil, nil}[n]
					if rl == carrier {
						continue
					}
					id := wrid.New(wrid.Recv, rl.idBits, 0, r.recv.win.Head+uint64(n))
					wc := verbs.WC{ID: id, Status: verbs.StatusLocProtErr, QPNum: rl.num}
					dropped("receive", n, rl, wc)
				}
			}
			after := r.Stats()
			for i := range after.Rails {
				if after.Rails[i].Outstanding != before.Rails[i].Outstanding {
					t.Errorf("rail %d: %d outstanding, there were %d", i, after.Rails[i].Outstanding,
						before.Rails[i].Outstanding)
				}
			}
			if err := r.Err(); err != nil {
				t.Errorf("it has failed: %v", err)
			}
			got := r.finish(t)
			for i, wc := range got {
				if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess {
					t.Errorf("completion %d: %+v", i, wc)
				}
			}
			if len(got) != len(requests) {
				t.Errorf("%d completions", len(got))
			}
		})
	}
}

// A poll that has what it was asked for leaves the rest with the NIC, but for the batch in which it
// came.
func TestPollLeavesTheRestWithTheNIC(t *testing.T) {
	const posts = 1000
	q := newLone(t, Config{MaxMsgCntPerQP: posts})
	for id := range uint64(posts) {
		if _, err := q.PostSend(rawWrite(id, 8)); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(posts) {
		var wcs [1]WC
		n, err := q.CQ().Poll(wcs[:])
		if n != 1 || err != nil || wcs[0].ID != id || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("poll %d: %d, %+v, %v", id, n, wcs[0], err)
		}
		if ready := q.CQ().Stats().Ready; ready >= 64 {
			t.Fatalf("poll %d: %d completions were taken from the NIC beforehand", id, ready)
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// A second goroutine that enters while the first is inside panics. The test itself plays the
// first.
func TestConcurrentUsePanics(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{})
	c := r.CQ()
	ended, end := context.WithCancel(t.Context())
	end()
	calls := map[string]func(){
		"Poll":               func() { _, _ = c.Poll(nil) },
		"PollDevice":         func() { _, _ = c.PollDevice(0, nil) },
		"PollOne":            func() { _, _, _ = c.PollOne() },
		"Wait":               func() { _ = c.Wait(ended) },
		"Arm":                func() { _ = c.Arm() },
		"ArmSolicited":       func() { _ = c.ArmSolicited() },
		"FailDevice":         func() { c.FailDevice(0, nil) },
		"Card":               func() { _, _ = r.Card() },
		"Connect":            func() { _ = r.Connect(BusinessCard{}) },
		"ProcessCompletions": func() { c.ProcessCompletions(nil, 0) },
		"PostSend":           func() { _, _ = r.PostSend() },
		"PostRecv":           func() { _, _ = r.PostRecv() },
		"Modify":             func() { _ = r.Modify(verbs.QPAttr{}, 0, nil) },
		"Reset":              func() { _ = r.Reset() },
		"Drain":              func() { _ = r.Drain(ended) },
		"Shutdown":           func() { _ = r.Shutdown(ended) },
		"Stats":              func() { _ = r.Stats() },
		"Stats of the CQ":    func() { _ = c.Stats() },
		"Close":              func() { _ = r.Close() },
		"Close of the CQ":    func() { _ = c.Close() },
	}
	for name, use := range calls {
		t.Run(name, func(t *testing.T) {
			c.enter()
			defer c.exit()
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, "one goroutine at a time") {
					t.Errorf("panic %q: want one that says the rule", p)
				}
			}()
			use()
		})
	}
	for name, use := range calls { // some of them after others have closed both
		if use(); c.guard.Inside() {
			t.Fatalf("%s does not give the guard back", name)
		}
	}
}
