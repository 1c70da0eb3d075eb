package ibverbx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	rtrace "runtime/trace"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Each value lies in one bucket, above the bound before its own and not above its own, and the
// bounds are a quarter or less apart.
func TestHistogramBuckets(t *testing.T) {
	values := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 63, 64, 65, 1000, 1 << 20, 1<<20 + 1, 1<<40 - 1,
		1 << 40, 1<<40 + 1, 1<<64 - 1}
	for _, v := range values {
		var h ibverbx.Histogram
		unmarshal(t, fmt.Sprintf(`{"count":1,"sum":%d,"buckets":[[%d,1]]}`, v, v), &h)
		before, found := uint64(0), false
		for bound, n := range h.Buckets() {
			above := bound == 1<<40 && v > bound
			if n == 1 && (found || v > bound && !above || v != 0 && v <= before) {
				t.Errorf("%d is in the bucket above %d up to %d", v, before, bound)
			}
			if bound > before+max(1, before/4) {
				t.Errorf("no bound between %d and %d", before, bound)
			}
			found, before = found || n == 1, bound
		}
		if q := h.Quantile(0.5); !found || q < min(v, 1<<40) || h.Count != 1 || h.Sum != v {
			t.Errorf("%d: found %v, median %d: %+v", v, found, q, h)
		}
		text, err := json.Marshal(h)
		var again ibverbx.Histogram
		if unmarshal(t, string(text), &again); err != nil || again != h {
			t.Errorf("%d: %s came back as %+v: %v", v, text, again, err)
		}
	}
	var h ibverbx.Histogram
	unmarshal(t, `{"count":100,"sum":0,"buckets":[[10,50],[100,49],[1000,1]]}`, &h)
	if a, b, c := h.Quantile(0.5), h.Quantile(0.99), h.Quantile(1); a != 10 || b != 112 || c != 1024 {
		t.Errorf("quantiles %d, %d, %d, want 10, 112, 1024", a, b, c)
	}
}

func unmarshal(tb testing.TB, text string, to any) {
	tb.Helper()
	if err := json.Unmarshal([]byte(text), to); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
}

// traceOf returns the trace of an end, which polls meanwhile.
func traceOf(tb testing.TB, q *ibverbx.VirtualQP) *ibverbx.Trace {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	type answer struct {
		trace *ibverbx.Trace
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		trace, err := q.CQ().Trace(ctx)
		got <- answer{trace, err}
	}()
	for {
		select {
		case a := <-got:
			if a.err != nil {
				tb.Fatal(a.err)
			}
			return a.trace
		default:
			if _, err := q.CQ().Poll(nil); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

// line writes events without times, and without those of no interest.
func line(events []ibverbx.TraceEvent, of ...ibverbx.TraceKind) string {
	var s []string
	for _, e := range events {
		if slices.Contains(of, e.Kind) {
			s = append(s, fmt.Sprintf("%v %d/%d", e.Kind, e.Request, e.Tag))
		}
	}
	return strings.Join(s, ", ")
}

// A request of two fragments, on two rails, leaves the steps of itself and of both; at the receiver
// both arrive, with the same numbers, and release a notification.
func TestTraceOfARequest(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
				FragmentSize: 64, Trace: true}})
			l.B.ExpectRecv(t, 70)
			wr := l.A.Write(verbs.OpRDMAWriteWithImm, 7, 0, 128)
			wr.Imm = 0 // which DQPLB sends in a message of its own
			l.A.Send(t, wr)
			l.A.Wait(t, 1)
			l.B.Wait(t, 1)
			a, b := traceOf(t, l.A.VirtualQP), traceOf(t, l.B.VirtualQP)
			steps := line(a.Events, ibverbx.TraceAccepted, ibverbx.TraceStaged, ibverbx.TracePosted,
				ibverbx.TraceInOrder, ibverbx.TraceReported)
			arrived := line(b.Events, ibverbx.TraceArrived, ibverbx.TraceReleased, ibverbx.TraceReceived)
			wantSteps := "accepted 1/7, staged 1/0, staged 1/1, posted 1/0, posted 1/1, in order 1/0, " +
				"reported 1/7"
			wantArrived := "arrived 0/0, arrived 0/1, released 1/1, received 1/70"
			completions := 2
			if scheme == ibverbx.Spray {
				completions = 3
				wantSteps = "accepted 1/7, staged 1/0, staged 1/1, posted 1/0, posted 1/1, in order 1/0, " +
					"staged 1/1, posted 1/1, reported 1/7"
				wantArrived = "arrived 1/1, released 1/1, received 1/70"
			}
			if scheme == ibverbx.DQPLB && strings.HasPrefix(arrived, "arrived 0/1, arrived 0/0, ") {
				wantArrived = "arrived 0/1, arrived 0/0, released 1/1, received 1/70" // the rails race
			}
			if steps != wantSteps || arrived != wantArrived ||
				strings.Count(line(a.Events, ibverbx.TraceCompleted), "completed 1/") != completions {
				t.Errorf("sender %s\nreceiver %s\n%v", steps, arrived, a.Events)
			}
			if len(a.Rails) != 3 || a.Rails[0].PeerQPNum != b.Rails[0].QPNum ||
				b.Rails[0].PeerQPNum != a.Rails[0].QPNum || a.Rails[1].VirtualQP != l.A.Num() {
				t.Errorf("rails %+v and %+v", a.Rails, b.Rails)
			}
			for i, e := range a.Events {
				if e.VirtualQP != l.A.Num() || i > 0 && e.At < a.Events[i-1].At || e.At < 0 {
					t.Errorf("event %d: %v", i, e)
				}
			}
			if again := vqptest.ThroughJSON(t, *a); !reflect.DeepEqual(again.Events, a.Events) {
				t.Errorf("JSON has changed %v to %v", a.Events, again.Events)
			}
		})
	}
}

// A single queue pair leaves what it knows.
func TestTraceOfASingleQueuePair(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Trace: true, Timing: true}})
	l.B.ExpectRecv(t, 70)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 7, 0, 128))
	l.A.Wait(t, 1)
	l.B.Wait(t, 1)
	all := []ibverbx.TraceKind{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	got := line(traceOf(t, l.A.VirtualQP).Events, all...) + "; " +
		line(traceOf(t, l.B.VirtualQP).Events, all...)
	if want := "accepted 1/7, posted 1/1, completed 1/1, reported 1/7; " +
		"arrived 0/1, released 0/1, received 0/70"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if timing := l.A.Stats().Timing; timing.Request.Count != 1 || timing.Size.Sum != 128 {
		t.Errorf("%+v", timing)
	}
}

// The ring keeps the last 4096 events, and the trace says how many it has lost. A virtual CQ
// without events, and one that nobody polls, say so.
func TestTraceKeepsTheLast(t *testing.T) {
	n := newNullPairOf(t, ibverbx.Config{QPsPerDevice: 4, Trace: true}, verbs.OpRDMAWrite, 8)
	for range 64 {
		n.round(t)
	}
	got := traceOf(t, n.qp)
	if want := 64*benchBatch*6 - 4096; len(got.Events) != 4096 || got.Lost != uint64(want) {
		t.Errorf("%d events, %d lost, want %d", len(got.Events), got.Lost, want)
	}
	last := got.Events[len(got.Events)-1]
	if last.Kind != ibverbx.TraceReported || last.Request != 64*benchBatch {
		t.Errorf("the last is %v", last)
	}
	off := newNullPairOf(t, ibverbx.Config{QPsPerDevice: 4}, verbs.OpRDMAWrite, 8).qp
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := off.CQ().Trace(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody polls: %v", err)
	}
	if err := off.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := off.CQ().Trace(ended); !errors.Is(err, ibverbx.ErrNoTrace) {
		t.Errorf("no events: %v", err)
	}
	if err := n.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := n.qp.CQ().Trace(ended); err != nil || len(got.Events) != 4096 {
		t.Errorf("closed: %v", err)
	} else {
		clear(got.Events) // they are the caller's own
	}
	if got, err := n.qp.CQ().Trace(ended); err != nil || got.Events[4095] != last {
		t.Errorf("closed, the second copy: %v, %v", got.Events[4095], err)
	}
}

// A trace names the queue pairs at both ends, without asking the NIC.
func TestTraceNamesPeers(t *testing.T) {
	l := vqptest.SteppedLink(t, 3, ibverbx.Config{Trace: true})
	a, b := traceOf(t, l.A.VirtualQP).Rails, traceOf(t, l.B.VirtualQP).Rails
	if len(a) != 4 || len(b) != 4 { // one for notifications
		t.Fatalf("%v, %v", a, b)
	}
	for i := range a {
		if a[i].PeerQPNum != b[i].QPNum || b[i].PeerQPNum != a[i].QPNum || a[i].QPNum == 0 {
			t.Errorf("rail %d: %+v, %+v", i, a[i], b[i])
		}
	}
	if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
		t.Fatal(err)
	}
	if got := traceOf(t, l.A.VirtualQP).Rails[0].PeerQPNum; got != 0 {
		t.Errorf("without a connection: %d", got)
	}
}

// A request whose data was never given to queue pairs, because the connection was reset, has not
// waited until then.
func TestWaitEndsWithTheConnection(t *testing.T) {
	now := time.Unix(0, 0)
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Trace: true, Timing: true, FragmentSize: 64,
		MaxMsgCntPerQP: 1, Testing: ibverbx.Testing{Clock: func() time.Time { return now }}})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8*64)) // two of its fragments find room
	if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	vqptest.ConnectBoth(t, l.A.VirtualQP, l.B.VirtualQP)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 2, 0, 64))
	if w := l.A.Stats().Timing.Wait; w.Sum != 0 {
		t.Errorf("%d requests have waited %v", w.Count, time.Duration(w.Sum))
	}
}

// A failure has the last events of its virtual queue pair, of which the failed completion is the
// last, and no events of others.
func TestFailureHasRecentEvents(t *testing.T) {
	for _, rails := range []int{1, 4} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{CQDepth: 8192, QP: ibverbx.Config{QPsPerDevice: rails,
			Trace: true}})
		other, _ := l.Another(t)
		for i := range uint64(80) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, i, 0, 64))
		}
		l.A.Wait(t, 80)
		bad := l.A.Write(verbs.OpRDMAWrite, 99, 0, 64)
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{l.B.NICs[0].ID(): 12345})
		l.A.Send(t, bad)
		l.A.Wait(t, 1)
		var failed *ibverbx.FailedError
		if !errors.As(l.A.Err(), &failed) || len(failed.Recent) != 64 {
			t.Fatalf("%d rails: %+v", rails, failed)
		}
		last := failed.Recent[63]
		if last.Kind == ibverbx.TraceReported {
			last = failed.Recent[62] // a single queue pair is about to report it
		}
		if last.Kind != ibverbx.TraceCompleted || last.Status() != verbs.StatusRemAccessErr {
			t.Errorf("%d rails: the last is %v", rails, last)
		}
		for _, e := range failed.Recent {
			if e.VirtualQP == other.Num() {
				t.Errorf("%d rails: %v is another's", rails, e)
			}
		}
		text, err := json.Marshal(failed)
		if err != nil || !bytes.Contains(text, []byte(`"recent":[{"at_ns":`)) {
			t.Errorf("%d rails: %s, %v", rails, text, err)
		}
	}
}

// A rail of a tenth of the speed shows in the trace as the one whose fragments take long, and in
// the histograms as the time of the request, and as that in which its data waits for room.
func TestSlowRailShows(t *testing.T) {
	now := time.Unix(0, 0)
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Trace: true, Timing: true, FragmentSize: 64,
		MaxMsgCntPerQP: 1, Testing: ibverbx.Testing{Clock: func() time.Time { return now }}})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 4*64))
	for ms := 1; ms <= 10; ms++ {
		now = now.Add(time.Millisecond)
		for rail, every := range []int{1, 10} {
			if ms%every == 0 && l.A.Stats().Rails[rail].Outstanding != 0 {
				l.Arrive(l.A, rail)
				l.Acknowledge(l.A, rail)
				l.Reveal(l.A, rail, 0)
			}
		}
		l.A.Pump(t)
	}
	if len(l.A.Backlog) != 1 {
		t.Fatal("the request is not reported")
	}
	var posted [4]time.Duration
	var took [2][]time.Duration
	for _, e := range traceOf(t, l.A.VirtualQP).Events {
		switch e.Kind {
		case ibverbx.TracePosted:
			posted[e.Tag] = e.At
		case ibverbx.TraceCompleted:
			took[e.Rail] = append(took[e.Rail], e.At-posted[e.Tag])
		}
	}
	const ms = time.Millisecond
	if !slices.Equal(took[0], []time.Duration{ms, ms, ms}) ||
		!slices.Equal(took[1], []time.Duration{10 * ms}) {
		t.Errorf("fragments took %v", took)
	}
	timing := l.A.Stats().Timing
	if timing.Wait.Count != 1 || timing.Wait.Sum != 2e6 || timing.Request.Sum != 10e6 ||
		timing.Size.Sum != 4*64 {
		t.Errorf("%+v", timing)
	}
	if again := vqptest.ThroughJSON(t, l.A.Stats()); !reflect.DeepEqual(again.Timing, timing) {
		t.Errorf("JSON has changed %+v to %+v", timing, again.Timing)
	}
	if total := l.A.CQ().Total(); total.Timing.Request.Sum != 10e6 {
		t.Errorf("the sum has %+v", total.Timing)
	}
}

// A rail that dies shows in the trace: its fragments go out again on the other one.
func TestLostRailShows(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Trace: true, Failover: true,
		Failback: ibverbx.None, FragmentSize: 4096}})
	l.Fabric.Inject(soft.Fault{Kind: soft.KillNIC, Device: l.A.NICs[1], Skip: 3})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 32*4096))
	l.A.Wait(t, 1)
	again := 0
	for _, e := range traceOf(t, l.A.VirtualQP).Events {
		if e.Kind == ibverbx.TraceReposted {
			again++
			if e.Rail != 0 {
				t.Errorf("%v: rail 1 is the one that died", e)
			}
		}
	}
	if want := l.A.Stats().Reposted; again == 0 || uint64(again) != want {
		t.Errorf("%d events of work that goes out again, want %d", again, want)
	}
}

// A completion that fits nothing, because its work request has completed before, leaves no step.
func TestStaleCompletionLeavesNoStep(t *testing.T) {
	n := newNullPairOf(t, ibverbx.Config{QPsPerDevice: 4, Trace: true}, verbs.OpRDMAWrite, 8)
	if _, err := n.qp.PostSend(n.wrs[:2]...); err != nil {
		t.Fatal(err)
	}
	// The second request is outstanding, so the first is not reported, and its number is live.
	second := verbs.WC{ID: 1<<60 | 1<<52 | 2, QPNum: n.qp.QPs()[1].Num(), Opcode: verbs.WCRDMAWrite}
	n.qp.CQ().ProcessCompletions(nil, 0, second, second)
	got := line(traceOf(t, n.qp).Events, ibverbx.TraceCompleted)
	if stale := n.qp.Stats().StaleEvents; strings.Count(got, "completed 2/") != 1 || stale == 0 {
		t.Errorf("%s; %d stale", got, stale)
	}
}

// While runtime/trace is on, posts are regions and timed requests are tasks.
func TestRuntimeTrace(t *testing.T) {
	var out bytes.Buffer
	if err := rtrace.Start(&out); err != nil {
		t.Skip(err) // the tests are traced themselves
	}
	n := newNullPairOf(t, ibverbx.Config{QPsPerDevice: 4, Trace: true}, verbs.OpRDMAWrite, 8)
	n.round(t)
	rtrace.Stop()
	for _, name := range []string{"ibverbx post", "ibverbx completions", "ibverbx request"} {
		if !bytes.Contains(out.Bytes(), []byte(name)) {
			t.Errorf("the trace has no %q", name)
		}
	}
}

// Once the last observed virtual queue pair of a virtual CQ is closed, completions of the others
// take the short way again, and its events are still there.
func TestObserversEnd(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{})
	dom, err := ibverbx.NewDomain(fabric.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dom.NewCQ(64)
	if err != nil {
		t.Fatal(err)
	}
	var qps [3]*ibverbx.VirtualQP
	for i := range qps {
		cfg := ibverbx.Config{QPsPerDevice: 1, MaxMsgCntPerQP: 8, Trace: i == 2}
		if qps[i], err = dom.NewQP(cq, cfg); err != nil {
			t.Fatal(err)
		}
	}
	vqptest.ConnectBoth(t, qps[0], qps[1])
	observed := func() bool {
		var out bytes.Buffer
		if err := rtrace.Start(&out); err != nil {
			t.Skip(err) // the tests are traced themselves
		}
		_, err := qps[0].PostSend(ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		for n := 0; n == 0 && err == nil; {
			n, err = cq.Poll(make([]ibverbx.WC, 1))
		}
		if rtrace.Stop(); err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(out.Bytes(), []byte("ibverbx completions"))
	}
	if !observed() {
		t.Error("completions beside an observed virtual queue pair are not observed")
	}
	if err := qps[2].Close(); err != nil {
		t.Fatal(err)
	}
	if observed() {
		t.Error("it is closed, and completions are still observed")
	}
	traceOf(t, qps[0])
	if err := errors.Join(qps[0].Close(), qps[1].Close(), cq.Close(), dom.Close()); err != nil {
		t.Error(err)
	}
}

// observed are the ways to observe requests.
var observed = []struct {
	name          string
	timing, trace bool
}{{"off", false, false}, {"timing", true, false}, {"trace", false, true}, {"both", true, true}}

// Observed requests allocate nothing either.
func TestObservingAllocatesNothing(t *testing.T) {
	for _, rails := range []int{1, 4} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend} {
			for _, o := range observed {
				n := newNullPairOf(t, ibverbx.Config{QPsPerDevice: rails, FragmentSize: 8,
					Timing: o.timing, Trace: o.trace}, op, 16)
				n.round(t)
				n.round(t)
				if allocs := testing.AllocsPerRun(100, func() { n.round(t) }); allocs != 0 {
					t.Errorf("%d rails, %v, %s: %v allocations", rails, op, o.name, allocs)
				}
			}
		}
	}
}

// BenchmarkNullObserved is BenchmarkNull with Config.Timing and Config.Trace.
func BenchmarkNullObserved(b *testing.B) {
	for _, c := range []struct {
		name  string
		rails int
		op    verbs.Opcode
		frags uint64
	}{
		{"1qp", 1, verbs.OpRDMAWrite, 1},
		{"4qp-1fragment", 4, verbs.OpRDMAWrite, 1},
		{"4qp-16fragments", 4, verbs.OpRDMAWrite, 16},
		{"4qp-dqplb-imm", 4, verbs.OpRDMAWriteWithImm, 1},
	} {
		for _, o := range observed {
			b.Run(c.name+"/"+o.name, func(b *testing.B) {
				n := newNullPairOf(b, ibverbx.Config{QPsPerDevice: c.rails, FragmentSize: 8,
					MaxMsgCntPerQP: benchDepth, Credits: benchDepth, Timing: o.timing, Trace: o.trace}, c.op,
					8*c.frags)
				n.round(b)
				b.ReportAllocs()
				for b.Loop() {
					n.round(b)
				}
				perRequest(b, c.frags)
			})
		}
	}
}
