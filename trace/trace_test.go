package trace_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/trace"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// event is an event of a file, as a viewer reads it.
type event struct {
	Name string
	Cat  string
	Ph   string
	Ts   float64
	Dur  float64
	Pid  int
	Tid  int
	ID   int
	Args map[string]any
}

func (e *event) track() [2]int { return [2]int{e.Pid, e.Tid} }

// file is a file, read back.
type file struct {
	TraceEvents []event
	OtherData   map[string]map[string]float64
	tracks      map[[2]int]string
	slices      map[[2]int][]event
}

// read reads a file back, and checks what is true of every one: its numbers are numbers from 0 on,
// slices on a track do not overlap, and each step of an arrow lies in a slice, later than the one
// before.
func read(tb testing.TB, text []byte) *file {
	tb.Helper()
	f := &file{tracks: map[[2]int]string{}, slices: map[[2]int][]event{}}
	if err := json.Unmarshal(text, f); err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	for _, e := range f.TraceEvents {
		if e.Ts < 0 || e.Dur < 0 {
			tb.Errorf("%+v begins before the file", e)
		}
		switch {
		case e.Ph == "X":
			f.slices[e.track()] = append(f.slices[e.track()], e)
		case e.Name == "thread_name":
			f.tracks[e.track()] = e.Args["name"].(string)
		}
	}
	const exact = 2e-3 // two nanoseconds: microseconds are no binary fractions
	for at, list := range f.slices {
		for i := 1; i < len(list); i++ {
			if before := list[i-1]; list[i].Ts < before.Ts+before.Dur-exact {
				tb.Errorf("on %q %+v begins before %+v ends", f.tracks[at], list[i], before)
			}
		}
	}
	for id, steps := range f.arrows() {
		if len(steps) < 2 || steps[0].Ph != "s" || steps[len(steps)-1].Ph != "f" {
			tb.Errorf("arrow %d is %+v", id, steps)
		}
		for i, s := range steps {
			if f.at(&s) == nil || i > 0 && s.Ts < steps[i-1].Ts {
				tb.Errorf("arrow %d, step %d: %+v is in no slice, or runs back", id, i, s)
			}
		}
	}
	return f
}

// arrows returns the steps of each arrow.
func (f *file) arrows() map[int][]event {
	arrows := map[int][]event{}
	for _, e := range f.TraceEvents {
		if e.Cat == "flow" {
			arrows[e.ID] = append(arrows[e.ID], e)
		}
	}
	return arrows
}

// at returns the slice that a step of an arrow points at.
func (f *file) at(step *event) *event {
	for i, s := range f.slices[step.track()] {
		if s.Ts == step.Ts {
			return &f.slices[step.track()][i]
		}
	}
	return nil
}

// paths returns the arrows as text, "RDMA_WRITE 7 > fragment of RDMA_WRITE 7 > receive 3", and how
// often each is there.
func (f *file) paths() map[string]int {
	paths := map[string]int{}
	for _, steps := range f.arrows() {
		var names []string
		for _, s := range steps {
			if at := f.at(&s); at != nil {
				names = append(names, at.Name)
			}
		}
		paths[strings.Join(names, " > ")]++
	}
	return paths
}

// ends returns the traces of both ends of a link, which have one clock.
func ends(tb testing.TB, l *vqptest.Link) []trace.End {
	tb.Helper()
	var list []trace.End
	for i, e := range []*vqptest.End{l.A, l.B} {
		t, err := trace.Take(e.CQ())
		if err != nil {
			tb.Fatal(err)
		}
		end := trace.End{Name: []string{"sender", "receiver"}[i], Trace: t}
		if i == 1 {
			end.Begins = t.Begin.Sub(list[0].Trace.Begin)
		}
		list = append(list, end)
	}
	return list
}

func write(tb testing.TB, ends ...trace.End) *file {
	tb.Helper()
	var out bytes.Buffer
	if err := trace.Write(&out, ends...); err != nil {
		tb.Fatal(err)
	}
	return read(tb, out.Bytes())
}

// From each request an arrow leads to each of its fragments, and on to the receive that it
// notifies, in both schemes and over a single queue pair.
func TestArrowsLeadFromRequestToNotification(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			l := m.Link(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 64, Trace: true}})
			const requests = 6
			for i := range uint64(requests) {
				l.B.ExpectRecv(t, 100+i)
			}
			for i := range uint64(requests) {
				l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, i, 0, 2*64))
			}
			l.A.Wait(t, requests)
			l.B.Wait(t, requests)
			f := write(t, ends(t, l)...)
			got := f.paths()
			for i := range requests {
				request := fmt.Sprintf("RDMA_WRITE_WITH_IMM %d", i)
				receive := fmt.Sprintf("receive %d", 100+i)
				to, arrows := 0, 0
				for path, n := range got {
					if strings.HasPrefix(path, request+" > ") {
						arrows += n
						if strings.HasSuffix(path, " > "+receive) {
							to += n
						} else if strings.Contains(path, "receive") {
							t.Errorf("an arrow leads %s", path)
						}
					}
				}
				if least := min(2, m.QPs*m.NICs); to == 0 || arrows < least {
					t.Errorf("%s: %d arrows, %d to its notification: %v", request, arrows, to, got)
				}
			}
			if f.OtherData["receiver"]["clock_error_us"] != 0 {
				t.Errorf("%v", f.OtherData)
			}
		})
	}
}

// A single queue pair completes in order: a completion ends its request, and the unsignaled ones
// before it, whatever their IDs are. What was there before a reset never completes, and ends there.
func TestUnsignaledEndWithTheNext(t *testing.T) {
	for _, ids := range [][3]uint64{{0, 0, 0}, {1, 2, 3}} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Trace: true}})
		post := func(n int, last verbs.SendFlags) {
			for i, id := range ids[:n] {
				wr := l.A.Write(verbs.OpRDMAWrite, id, 0, 64)
				if wr.Flags = 0; i == n-1 {
					wr.Flags = last
				}
				if _, err := l.A.PostSend(wr); err != nil {
					t.Fatal(err)
				}
			}
		}
		post(3, verbs.SendSignaled)
		l.A.Wait(t, 1)
		post(2, 0)
		if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
			t.Fatal(err)
		}
		vqptest.ConnectBoth(t, l.A.VirtualQP, l.B.VirtualQP)
		post(3, verbs.SendSignaled)
		l.A.Wait(t, 1)
		f := write(t, ends(t, l)[0])
		var ended []float64
		completed := map[float64]int{}
		for _, e := range f.TraceEvents {
			switch {
			case e.Cat == "work" && e.Args["status"] == "SUCCESS":
				completed[e.Args["completed_us"].(float64)]++
			case e.Cat == "work":
				ended = append(ended, e.Ts+e.Dur) // or the NIC has flushed it
			}
		}
		times := slices.Sorted(maps.Keys(completed))
		if len(times) != 2 || completed[times[0]] != 3 || completed[times[1]] != 3 || len(ended) != 2 ||
			slices.Min(ended) < times[0] || slices.Max(ended) >= times[1] {
			t.Errorf("IDs %v: work requests that complete at %v, and that do not, until %v", ids, completed,
				ended)
		}
	}
}

// A rail of a tenth of the speed has the longest slices; its track is named after its NIC.
func TestSlowRail(t *testing.T) {
	now := time.Unix(0, 0)
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Trace: true, FragmentSize: 64, MaxMsgCntPerQP: 1,
		Testing: ibverbx.Testing{Clock: func() time.Time { return now }}})
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
	f := write(t, ends(t, l)[0])
	longest := map[string]float64{}
	for track, list := range f.slices {
		for _, s := range list {
			name, _, _ := strings.Cut(f.tracks[track], ":")
			longest[name] = max(longest[name], s.Dur)
		}
	}
	if longest["rail 0"] != 1000 || longest["rail 1"] != 10000 {
		t.Errorf("%v", longest)
	}
	if want := fmt.Sprintf("rail 1: soft0 qp %d", l.A.RailQPs[1]); !slices.Contains(tracks(f), want) {
		t.Errorf("no track %q in %v", want, f.tracks)
	}
}

func tracks(f *file) (names []string) {
	for _, name := range f.tracks {
		names = append(names, name)
	}
	return names
}

// What goes out again after the loss of a rail is marked on the other one, and its arrow is there.
func TestLostRail(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Trace: true, Failover: true,
		Failback: ibverbx.None, FragmentSize: 4096}})
	l.Fabric.Inject(soft.Fault{Kind: soft.KillNIC, Device: l.A.NICs[1], Skip: 3})
	l.B.ExpectRecv(t, 9)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 1, 0, 32*4096))
	l.A.Wait(t, 1)
	l.B.Wait(t, 1)
	f := write(t, ends(t, l)...)
	again := uint64(0)
	for _, e := range f.TraceEvents {
		if e.Cat == "reposted" {
			again++
			if !strings.HasPrefix(f.tracks[e.track()], "rail 0:") {
				t.Errorf("%+v on %q", e, f.tracks[e.track()])
			}
		}
	}
	if again == 0 || again != l.A.Stats().Reposted {
		t.Errorf("%d marks, %d posted again", again, l.A.Stats().Reposted)
	}
}

// Align takes the quickest answer, and says how far it may be wrong.
func TestAlign(t *testing.T) {
	begin := time.Now()
	peer := begin.Add(3 * time.Second) // when its trace began
	asked := 0
	begins, off, err := trace.Align(begin, func() (time.Duration, error) {
		asked++
		return time.Since(peer), nil
	})
	if err != nil || asked < 2 || (begins-3*time.Second).Abs() > off || off > time.Second {
		t.Errorf("%v, off by %v at most, after %d questions: %v", begins, off, asked, err)
	}
	gone := errors.New("gone")
	_, _, err = trace.Align(begin, func() (time.Duration, error) { return 0, gone })
	if !errors.Is(err, gone) {
		t.Errorf("the peer is gone: %v", err)
	}
}

// Two processes exchange traces: the leading one has the other's, on its own time line.
func TestExchange(t *testing.T) {
	begin := time.Now()
	traces := [2]*ibverbx.Trace{{Begin: begin}, {Begin: begin.Add(-5 * time.Second),
		Events: []ibverbx.TraceEvent{{Kind: ibverbx.TraceAccepted, Tag: 7}}}}
	lines := [2]chan []byte{make(chan []byte, 1), make(chan []byte, 1)}
	var got [2]trace.End
	done := make(chan error, 2)
	for i := range got {
		go func() {
			var err error
			got[i], err = trace.Exchange(traces[i], i == 0, func(v any) error {
				text, err := json.Marshal(v)
				lines[i] <- text
				return err
			}, func(v any) error {
				if text := <-lines[1-i]; v != nil {
					return json.Unmarshal(text, v)
				}
				return nil
			})
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	if off := (got[0].Begins + 5*time.Second).Abs(); got[1].Trace != nil || off > got[0].Error ||
		!slices.Equal(got[0].Trace.Events, traces[1].Events) {
		t.Errorf("%+v", got)
	}
}

// A time that the trace has lost is not there, and two ends of one name both say what they have
// lost.
func TestLostEvents(t *testing.T) {
	events := []ibverbx.TraceEvent{{At: 1000, Kind: ibverbx.TracePosted, Request: 1},
		{At: 2000, Kind: ibverbx.TraceStaged, Request: 2}, {At: 3000, Kind: ibverbx.TracePosted, Request: 2}}
	f := write(t, trace.End{Name: "a", Trace: &ibverbx.Trace{Events: events, Lost: 5}},
		trace.End{Name: "a", Trace: &ibverbx.Trace{Lost: 7}})
	staged := map[any]any{}
	for _, e := range f.TraceEvents {
		if at, ok := e.Args["staged_us"]; ok {
			staged[e.Args["request"]] = at
		}
	}
	if len(staged) != 1 || staged[2.0] != 1.0 {
		t.Errorf("staged at %v", staged)
	}
	if f.OtherData["a"]["events_lost"] != 5 || f.OtherData["a (2)"]["events_lost"] != 7 {
		t.Errorf("%v", f.OtherData)
	}
}

// What cannot be shown is refused.
func TestRefused(t *testing.T) {
	late := &ibverbx.Trace{Events: []ibverbx.TraceEvent{{At: 1 << 62}}}
	soon := &ibverbx.Trace{Events: []ibverbx.TraceEvent{{At: 1}}}
	for _, e := range []trace.End{{}, {Trace: late}, {Trace: soon, Begins: -1 << 63}} {
		if err := trace.Write(&bytes.Buffer{}, e); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

// A trace of a peer may have any events: the file is valid.
func FuzzWrite(f *testing.F) {
	f.Add([]byte("\x01\x00\x07\x01\x02\x00\x07\x01\x03\x00\x07\x01" + // accepted, staged, posted
		"\x04\x00\x07\x01\x09\x00\x07\x01\x0a\x00\x07\x01")) // completed, released, received
	f.Fuzz(func(t *testing.T, data []byte) {
		tr := &ibverbx.Trace{Rails: []ibverbx.TraceRail{{VirtualQP: 1, QPNum: 2, PeerQPNum: 2}}}
		for i := 0; i+4 <= len(data) && i < 400; i += 4 {
			v := binary.LittleEndian.Uint32(data[i:])
			tr.Events = append(tr.Events, ibverbx.TraceEvent{At: time.Duration(int32(v)),
				VirtualQP: 1 + v>>31, Kind: ibverbx.TraceKind(data[i] % 12), Rail: data[i+1],
				Part: ibverbx.FailedPart(data[i+2] % 9), Request: uint32(data[i+3] % 8),
				Tag: uint64(data[i+2] % 4), Bytes: v, Code: data[i+3]})
		}
		begins := time.Duration(len(data))
		write(t, trace.End{Name: "a", Trace: tr}, trace.End{Name: "b", Trace: tr, Begins: begins})
	})
}
