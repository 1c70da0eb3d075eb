package lab

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// newTestbed is two hosts with one and two NICs, taps that watch nothing, and one queue pair on
// each NIC.
func newTestbed(t *testing.T) (*Testbed, []*QP) {
	t.Helper()
	b := &Testbed{Plan: &Plan{Seed: 1, Hosts: []int{1, 2}}, Layout: testLayout}
	var qps []*QP
	b.Hooks = Hooks{
		CQ: func(cq CQ) verbs.CQ { return &cq },
		QP: func(qp QP) verbs.QP { qps = append(qps, &qp); return &qp },
	}
	v := b.Play(func() {
		b.SeedEvent(1)
		b.Build()
		for _, d := range b.NICs {
			cq, err := d.CreateCQ(verbs.CQConfig{Depth: 16})
			b.Must("create cq", err)
			qp, err := d.PD.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			b.Must("create qp", err)
			if cq.Device() != d || qp.Device() != d {
				t.Errorf("%v: a tap is passed by", qp)
			}
		}
	})
	if v != nil {
		t.Fatal(v)
	}
	return b, qps
}

func TestFaultsAreCountedAndTakenBack(t *testing.T) {
	for _, f := range slices.Concat(Faults, RailFaults) {
		t.Run(f.Name, func(t *testing.T) {
			b, qps := newTestbed(t)
			q := qps[1]
			conn := &Conn{}
			b.Strike(q, conn, &f)
			lasts := f.Name != QPDies && f.Name != LinkFlaps
			if got := q.NIC.Down != 0; got != (f.Scope == OneLink && lasts) {
				t.Errorf("link down %v", got)
			}
			if q.NIC.Died != (f.Scope == OneNIC) || q.NIC.Dead != 0 != q.NIC.Died {
				t.Errorf("NIC dead %d, ever %v", q.NIC.Dead, q.NIC.Died)
			}
			if got := b.Strikes[0].Conn == conn; got == f.Wide() {
				t.Errorf("it concerns one connection: %v", got)
			}
			if b.Hosts[0].Struck || b.Hosts[1].Struck != (f.Scope != OneQP) {
				t.Errorf("hosts struck: %v, %v", b.Hosts[0].Struck, b.Hosts[1].Struck)
			}
			if f.Gentle && f.Wide() {
				t.Error("gentle, and yet it may fail others")
			}
			b.EndFaults(&Conn{})
			if len(b.Strikes) != 1 {
				t.Error("it ends with another connection's")
			}
			b.Heal()
			if len(b.Strikes) != 0 || q.NIC.Down != 0 || q.NIC.Dead != 0 {
				t.Errorf("healed: %d faults, down %d, dead %d", len(b.Strikes), q.NIC.Down, q.NIC.Dead)
			}
		})
	}
}

func TestCloseFindsWhatIsLeftOpen(t *testing.T) {
	b, qps := newTestbed(t)
	qp := qps[0]
	check := func(close func(), want string) {
		t.Helper()
		got := ""
		if v := b.Play(close); v != nil {
			got = v.Rule + ": " + v.Detail
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check(b.Close, "close domain of host 0")
	check(func() { b.Must("close", qp.Close()) }, "")
	check(b.Close, string(Leak))
}

func TestPlayReportsViolationsAndPanics(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		name, rule, detail string
		run                func(b *Testbed)
	}{
		{"rule", string(Content), "3 bytes", func(b *Testbed) { b.Broken(Content, "%d bytes", 3) }},
		{"error", string(Leak), "step: cause", func(b *Testbed) { b.Must("step", cause) }},
		{"panic", string(Panic), "cause\n", func(*Testbed) { panic(cause) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &Testbed{Plan: &Plan{Seed: 9}, At: 4}
			var last string
			b.Log = func(line string) { last = line }
			v := b.Play(func() { c.run(b) })
			if v == nil || v.Seed != 9 || v.Event != 4 || v.Rule != c.rule ||
				!strings.HasPrefix(v.Detail, c.detail) || !strings.HasPrefix(last, "broken: "+c.rule) {
				t.Errorf("%+v, logged %q", v, last)
			}
		})
	}
}

// planOfDraws is a plan whose events draw numbers.
type planOfDraws struct {
	Plan
	Schedule[Event]
}

func TestEventsMeanTheSameWithoutOthers(t *testing.T) {
	draws := []Kind[*Testbed]{{Name: "draw", Do: func(b *Testbed) {
		for range b.Pick(1, 2, 3) {
			b.Rng.Uint64()
		}
		b.Logf("draws %d", b.Rng.Uint64())
	}}}
	var all []string
	game := Game("TestDraws", "./test/internal/lab", func(seed uint64) *planOfDraws {
		p := &planOfDraws{Plan: Plan{Seed: seed}}
		for i := range 6 {
			p.Events = append(p.Events, Event{End: i, R: uint64(i) << 7})
		}
		return p
	}, func(p *planOfDraws, log func(string)) *hunt.Violation {
		b := &Testbed{Plan: &p.Plan, Log: log}
		return b.Play(func() {
			PlayEvents(b, p.Events, draws, &[]*Testbed{b, b}, func() {})
		})
	})
	draw := func(list *[]string) func(string) {
		return func(line string) {
			if number, ok := strings.CutPrefix(line, "draws "); ok {
				*list = append(*list, number)
			}
		}
	}
	game.Play(3, nil, draw(&all))
	keep := []int{0, 2, 5}
	var some, want []string
	game.Play(3, keep, draw(&some))
	for _, i := range keep {
		want = append(want, all[i])
	}
	if len(all) != 6 || game.Events(3) != 6 || !slices.Equal(some, want) {
		t.Errorf("all: %q\nsome: %q", all, some)
	}
}

func TestWeightsAreFrequencies(t *testing.T) {
	b := &Testbed{Plan: &Plan{Seed: 5}}
	b.Play(func() {
		b.SeedEvent(0)
		var counts [4]int
		for range 6000 {
			counts[DrawWeighted(b.Rng, []int{2, 0, 3, 1})]++
		}
		if counts[1] != 0 || counts[0] < 1800 || counts[0] > 2200 || counts[2] < 2800 || counts[2] > 3200 {
			t.Error(counts)
		}
	})
}

func TestActionsFollowFromTheSeed(t *testing.T) {
	run := func() (list []string) {
		b, _ := newTestbed(t)
		b.Log = func(line string) { list = append(list, line) }
		b.Hooks.Moved = func(a soft.Action) { list = append(list, a.Kind.String()) }
		v := b.Play(func() {
			b.SeedEvent(1)
			writeBetween(b, b.Hosts[0], b.Hosts[0])
			for b.Movable() != 0 {
				b.Steps(3)
			}
		})
		if v != nil || b.Moves == 0 {
			t.Fatalf("%d actions, %v", b.Moves, v)
		}
		return list
	}
	if a, b := run(), run(); !slices.Equal(a, b) {
		t.Errorf("%d and %d lines:\n%q\n%q", len(a), len(b), a, b)
	}
}

// writeBetween has a virtual queue pair of each host write to the other.
func writeBetween(b *Testbed, hosts ...*Host) {
	var vqs []*ibverbx.VirtualQP
	var cards []ibverbx.BusinessCard
	for _, h := range hosts {
		cq, err := h.Dom.NewCQ(4096)
		b.Must("new cq", err)
		vq, err := h.Dom.NewQP(cq, ibverbx.Config{QPsPerDevice: 2, FragmentSize: 16})
		b.Must("new vqp", err)
		card, err := vq.Card()
		b.Must("card", err)
		vqs, cards = append(vqs, vq), append(cards, card)
	}
	for i, vq := range vqs {
		b.Must("connect", vq.Connect(cards[1-i]))
	}
	for i, vq := range vqs {
		src, _ := hosts[i].Memory.Alloc(100, nil)
		dst, _ := hosts[1-i].Memory.Alloc(100, nil)
		_, err := vq.PostSend(ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			Local: hosts[i].Segment(src), Remote: hosts[1-i].RemoteSegment(dst)})
		b.Must("post", err)
	}
}

// The numbers that queue pairs get follow from the seed and from nothing that the library draws:
// where two queue pairs draw the same number, each gets the one that it would get otherwise.
func TestPSNsFollowFromTheSeed(t *testing.T) {
	apart, same := newPSNs(1), newPSNs(1)
	for i := range uint32(4) {
		want := apart.translate(100+i, 7000*i)
		if got := same.translate(100+i, 7000); got != want {
			t.Errorf("queue pair %d gets %d, and %d where all draw the same", 100+i, want, got)
		}
		if again := apart.translate(100+i, 7000*i); again != want {
			t.Errorf("queue pair %d gets %d, and %d when it asks again", 100+i, want, again)
		}
	}
}
