package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/tcptest"
	"ibverbx/internal/units"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// lead runs the leading end over nc until it is over.
func lead(ctx context.Context, p *Params, nc net.Conn, timeout time.Duration, devices []verbs.Device,
	o Observer) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		conn, err := rendezvous.Start(ctx, nc, rendezvous.Config{Protocol: Protocol, Timeout: timeout})
		if err != nil {
			done <- outcome{nil, err}
			return
		}
		report, err := Lead(ctx, p, &Half{Conn: conn, Provider: "here", Devices: devices, Version: "v"}, o)
		done <- outcome{report, err}
	}()
	return done
}

// within waits for the end of a run, much longer than it may take.
func within(t *testing.T, who string, d time.Duration, run <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-run:
		return o
	case <-time.After(d):
		t.Fatalf("%s does not end", who)
		return outcome{}
	}
}

// TestStalledAfterFailure lets one rail fail while another one stands still, so that not all is
// ever reported: the patience that the ends have must end the round nevertheless.
func TestStalledAfterFailure(t *testing.T) {
	t.Parallel() // most of the time it waits
	const timeout = 200 * time.Millisecond
	for _, wait := range []Wait{Adaptive, Poll, Events} {
		for _, bidirectional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", wait, bidirectional), func(t *testing.T) {
				f, nics := fabric(t, 4)
				p := params(func(p *Params) {
					p.Op, p.NICs, p.QPs, p.Schemes, p.Bidirectional, p.Wait = Write, 2, 1, []Scheme{Spray},
						bidirectional, wait
					p.Sizes, p.Iterations = []units.Size{4096}, 4000
				})
				stall := f.Inject(soft.Fault{Kind: soft.StallQP, Device: f.Device(0), Count: 1, Skip: 20})
				t.Cleanup(stall.Remove)
				f.Inject(soft.Fault{Kind: soft.FailSend, Device: f.Device(1), Count: 1, Skip: 23})
				ncA, ncB := tcptest.Pair(t)
				following := follow(t.Context(), ncB, timeout, nics[2:])
				leading := lead(t.Context(), p, ncA, timeout, nics[:2], observer{})
				a, b := within(t, "end a", 10*time.Second, leading),
					within(t, "end b", 10*time.Second, following)
				if a.err == nil || b.err == nil {
					t.Errorf("end a: %v; end b: %v", a.err, b.err)
				}
			})
		}
	}
}

// TestIdleEndReportsFailure shows that an end whose queue pair has failed ends its part, also where
// no request of its own is there to fail.
func TestIdleEndReportsFailure(t *testing.T) {
	p := params(func(p *Params) { p.Schemes = []Scheme{Spray} })
	run := newRunner(t.Context(), p, bothHere(), observer{})
	if err := run.open(openSoft); err != nil {
		t.Fatal(err)
	}
	defer run.close()
	column := run.columns[0]
	if _, err := killQP(column, &Fault{End: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := newCell(run, column, 64).runRound(4, true); !errors.Is(err, errFailed) {
		t.Fatalf("error %v, want errFailed", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		if err := column.ends[0].Begin(layers.Task{}); err != nil {
			t.Fatal(err)
		}
		if err := layers.Run(ctx, layers.Pace{Stall: time.Minute}, func() bool { return false },
			column.ends[0]); !errors.Is(err, errFailed) {
			t.Errorf("an end that sends nothing: error %v, want errFailed", err)
		}
	}
}

// TestRefusedForNow lets a NIC refuse posts for now: a round goes on when it takes them after all,
// and ends when it never does.
func TestRefusedForNow(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		for _, op := range []Op{Write, FetchAdd, Send} {
			for _, wait := range []Wait{Adaptive, Events} {
				t.Run(fmt.Sprintf("%s/%s/%s", mode, op, wait), func(t *testing.T) {
					t.Parallel() // most of the time is patience
					p := params(func(p *Params) {
						p.Op, p.Mode, p.Wait, p.NICs, p.QPs = op, mode, wait, 1, 1
						p.Schemes, p.Sizes, p.Iterations = []Scheme{Single}, []units.Size{8}, 100
					})
					if a, b := refused(t, p, 5, 20*time.Second); a != nil || b != nil {
						t.Errorf("refused for a while: end a: %v; end b: %v", a, b)
					}
					// A busy machine may take longer for another step than for this one.
					for patience := time.Second / 4; ; patience *= 2 {
						a, b := refused(t, p, -1, patience)
						if errors.Is(a, ErrStalled) || errors.Is(b, ErrStalled) {
							return
						}
						if a == nil || b == nil || patience > 10*time.Second {
							t.Fatalf("refused for ever: end a: %v; end b: %v", a, b)
						}
					}
				})
			}
		}
	}
}

// refused runs two ends of which the NIC of one refuses so many posts, and returns how they end.
func refused(t *testing.T, p *Params, count int, patience time.Duration) (a, b error) {
	t.Helper()
	f, nics := fabric(t, 2)
	refusal := f.Inject(soft.Fault{Kind: soft.RefuseSend, Device: f.Device(0), Count: count, Skip: 5})
	defer refusal.Remove()
	ncA, ncB := tcptest.Pair(t)
	following := follow(t.Context(), ncB, patience, nics[1:])
	leading := lead(t.Context(), p, ncA, patience, nics[:1], observer{})
	return within(t, "end a", time.Minute, leading).err, within(t, "end b", time.Minute, following).err
}

// TestPatience shows how long nothing may move: not long between fast NICs, however much a round
// has to carry; and as long as a round takes where an end sees nothing of what the other one sends.
func TestPatience(t *testing.T) {
	hard := params(func(p *Params) { p.Provider = "rdmacore" })
	slow := params(func(p *Params) { p.Speeds = []units.Rate{1e9, 1e6} })
	const idle = 30 * time.Second
	ncA, ncB := tcptest.Pair(t)
	other := make(chan *rendezvous.Conn, 1)
	go func() { other <- start(t, ncB, idle) }()
	apart := &cell{runner: &runner{p: params(), peer: &peer{conn: start(t, ncA, idle)}},
		pair: &pair{ends: [2]*layers.End{{}, nil}}, directions: 2, size: 1 << 20}
	<-other
	steady := *apart
	steady.pace = 1
	for name, tt := range map[string]struct {
		got, least, most time.Duration
	}{
		"software":       {patience(params(), idle, 1<<30), idle, idle},
		"software, slow": {patience(slow, idle, 1<<20), idle + 4*time.Second, 10 * time.Minute},
		"real":           {patience(hard, idle, 1<<20), idle, idle + time.Second},
		"real, large":    {patience(hard, idle, 1<<30), idle + 200*time.Second, 10 * time.Minute},
		"unseen":         {apart.patience(500, false), idle + 100*time.Second, 10 * time.Minute},
		"unseen, slow":   {steady.patience(500, false), 500 * time.Second, time.Hour},
		"warm-up":        {apart.patience(5, true), idle + 40*time.Second, 10 * time.Minute},
	} {
		if tt.got < tt.least || tt.got > tt.most {
			t.Errorf("%s: %v, want %v to %v", name, tt.got, tt.least, tt.most)
		}
	}
}

// TestInterruptedBothWays interrupts an end in the middle of a long round in both directions. The
// other one must not go on alone, and the round is no measure of both directions.
func TestInterruptedBothWays(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, op := range []Op{Send, Write} {
		t.Run(string(op), func(t *testing.T) {
			// An end that goes on alone takes two seconds each time; a busy machine does not.
			for try := 1; ; try++ {
				took := interruptedBothWays(t, op)
				if took < 900*time.Millisecond {
					return
				}
				if try == 5 {
					t.Fatalf("ended %v after it was asked to", took)
				}
			}
		})
	}
}

// interruptedBothWays interrupts an end in the middle of a round, and returns how long it takes to
// end.
func interruptedBothWays(t *testing.T, op Op) (took time.Duration) {
	const speed = 1.25e6
	_, nics := fabric(t, 2)
	for _, d := range nics {
		d.(*soft.Device).SetSpeed(speed, 0)
	}
	p := params(func(p *Params) {
		p.Op, p.NICs, p.QPs, p.Schemes, p.Bidirectional, p.Memory = op, 1, 1, []Scheme{Single}, true, 4<<20
		p.Sizes, p.Iterations, p.Duration, p.TxDepth = []units.Size{4096}, 0, Seconds(20*time.Second), 2
	})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var asked time.Time
	var once sync.Once
	ncA, ncB := between(t, func(from string, n int, frame []byte) ([]byte, bool, bool) {
		if from == "a" && n > 0 && strings.Contains(string(frame), `"round"`) &&
			!strings.Contains(string(frame), "warm_up") {
			// of two seconds
			once.Do(func() {
				time.AfterFunc(300*time.Millisecond, func() { asked = time.Now(); interrupt() })
			})
		}
		return frame, false, false
	})
	following := follow(t.Context(), ncB, apartTimeout, nics[1:])
	a := within(t, "end a", 15*time.Second, lead(ctx, p, ncA, apartTimeout, nics[:1], observer{}))
	took = time.Since(asked)
	b := within(t, "end b", 15*time.Second, following)
	if !errors.Is(a.err, ErrInterrupted) || !errors.Is(b.err, errPeerInterrupted) {
		t.Errorf("end a: %v; end b: %v", a.err, b.err)
	}
	return took
}

// TestInterruptedWhileConnecting interrupts an end before anything is measured: the other one must
// hear that in words.
func TestInterruptedWhileConnecting(t *testing.T) {
	_, nics := fabric(t, 1)
	ncA, ncB := tcptest.Pair(t)
	ctx, interrupt := context.WithCancel(t.Context())
	following := follow(ctx, ncB, apartTimeout, nics)
	conn := start(t, ncA, apartTimeout)
	if err := conn.Receive(t.Context(), kindOffer, nil); err != nil {
		t.Fatal(err)
	}
	interrupt()
	var said *rendezvous.PeerError
	if err := conn.Receive(t.Context(), kindAccept, nil); !errors.As(err, &said) ||
		said.Text != ErrInterrupted.Error() {
		t.Errorf("the leading end hears %v", err)
	}
	conn.Close()
	if b := <-following; !errors.Is(b.err, ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", b.err)
	}

	ncA, ncB = tcptest.Pair(t)
	ctx, interrupt = context.WithCancel(t.Context())
	leading := lead(ctx, params(func(p *Params) { p.NICs = 1 }), ncA, apartTimeout, nics, observer{})
	conn = start(t, ncB, apartTimeout)
	for _, step := range []func() error{
		func() error {
			return conn.Send(t.Context(), kindOffer, selfBody{Offer: offer("x")})
		},
		func() error { return conn.Receive(t.Context(), kindTask, nil) },
		func() error { return conn.Send(t.Context(), kindAccept, nil) },
		func() error { return conn.Receive(t.Context(), kindColumn, nil) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	interrupt()
	if err := conn.Receive(t.Context(), kindColumn, nil); !errors.As(err, &said) ||
		!strings.Contains(said.Text, "interrupted") || strings.Contains(said.Text, "canceled") {
		t.Errorf("the following end hears %v", err)
	}
	conn.Close()
	if a := <-leading; !errors.Is(a.err, ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", a.err)
	}
}

// TestClockOfBothWays shows that of two ends that send at the same time the one that takes longer
// is counted, that the conversation afterwards is not,
// and that no end can claim more time than has passed.
func TestClockOfBothWays(t *testing.T) {
	for _, lies := range []bool{false, true} {
		t.Run(fmt.Sprintf("lies %v", lies), func(t *testing.T) {
			t.Parallel() // most of the time it waits
			start := time.Now()
			var talk delays
			sent := make(chan struct{}, 100) // by end a, in each round
			a, b := meddled(t, apartTimeout, func(p *Params) { p.Bidirectional = true },
				func(from string, n int, frame []byte) ([]byte, bool, bool) {
					var m struct {
						Kind string      `json:"kind"`
						Body verdictBody `json:"body"`
					}
					if n == 0 || json.Unmarshal(frame[4:], &m) != nil ||
						m.Kind != kindVerdict && m.Kind != kindDone {
						return frame, false, false
					}
					switch {
					case m.Kind == kindDone && from == "a":
						sent <- struct{}{}
					case m.Kind == kindDone: // from here on no end's clock runs in this round
						select {
						case <-sent:
						case <-t.Context().Done():
						}
						talk.sleep()
					case from == "b":
						talk.sleep()
						if lies {
							m.Body.Took = int64(1000 * time.Hour)
						}
						text, err := json.Marshal(m)
						if err != nil {
							t.Error(err)
						}
						length := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
						return append(length, text...), false, false
					}
					return frame, false, false
				})
			talk.check(t, a, b, lies, start)
		})
	}
}

// TestClockOfOneWay shows that where one end sends alone its clock counts alone: the duration of
// the conversation does not count.
func TestClockOfOneWay(t *testing.T) {
	start := time.Now()
	var talk delays
	a, b := meddled(t, apartTimeout, func(p *Params) { p.Op = Write },
		func(_ string, n int, frame []byte) ([]byte, bool, bool) {
			if n > 0 {
				talk.sleep()
			}
			return frame, false, false
		})
	talk.check(t, a, b, false, start)
}

// delays slow down a conversation while no clock of a measurement runs.
type delays struct {
	mu    sync.Mutex // one delay after another, so that all of slept passes
	slept time.Duration
}

// delay is the length of one.
const delay = 20 * time.Millisecond

func (d *delays) sleep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	start := time.Now()
	time.Sleep(delay)
	d.slept += time.Since(start)
}

// check compares the measured time with that of the whole run, which has begun at start.
func (d *delays) check(t *testing.T, a, b outcome, lies bool, start time.Time) {
	t.Helper()
	if a.err != nil || b.err != nil {
		t.Fatalf("end a: %v; end b: %v", a.err, b.err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	took := time.Since(start)
	least, most := 0., took-d.slept
	if lies { // what an end claims counts as far as it can be true
		least, most = (2 * delay).Seconds(), took
	}
	if seconds := a.report.Results[0].Seconds; seconds < least || seconds > most.Seconds() {
		t.Errorf("%.4f s, of %v; %v of these are delays of the conversation", seconds, took, d.slept)
	}
}

// TestAnswersOverlap shows that an answer of a process of its own need not wait until the one
// before it is acknowledged.
func TestAnswersOverlap(t *testing.T) {
	_, nics := fabric(t, 1)
	p := params(func(p *Params) { p.Op, p.Mode, p.NICs, p.Schemes = Send, Latency, 1, []Scheme{Single} })
	run := newRunner(t.Context(), p, [2]bool{false, true}, observer{})
	run.peer = &peer{}
	column, err := newHalf(p, Single, run.mem, 1, nics)
	if err != nil {
		t.Fatal(err)
	}
	defer column.close()
	if task := newCell(run, column, 64).task(t.Context(), 1, 4, false); task.Window != 2 || !task.Answers {
		t.Errorf("%d answers at a time, answers %v", task.Window, task.Answers)
	}
}

// TestFollowerDecidesNothing shows that an end that follows takes part in the next sample as the
// other one says, although it was interrupted itself: its own steps end then, and say why.
func TestFollowerDecidesNothing(t *testing.T) {
	ncA, ncB := tcptest.Pair(t)
	started := make(chan *rendezvous.Conn, 1)
	go func() { started <- start(t, ncA, apartTimeout) }()
	follows := &peer{conn: start(t, ncB, apartTimeout), steps: t.Context()}
	leads := &peer{conn: <-started, leads: true, steps: t.Context()}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	c := &cell{runner: &runner{ctx: ctx, peer: follows}}
	for _, stop := range []bool{false, true} {
		if _, err := decide(leads, kindCell, cellBody{Stop: stop}); err != nil {
			t.Fatal(err)
		}
		if goesOn, err := c.open(); err != nil || goesOn == stop {
			t.Errorf("the other end stops: %v; goes on: %v, %v", stop, goesOn, err)
		}
	}
}
