// Package trace writes the steps that virtual queue pairs have recorded ([ibverbx.Config].Trace) as
// a file in Chrome's trace format, which ui.perfetto.dev opens: drop the file there.
//
//	t, err := trace.Take(qp.CQ())
//	err = trace.Write(file, trace.End{Name: "sender", Trace: t})
//
// # What it shows
//
// Each virtual queue pair is a process of the viewer, with these tracks:
//
//   - posts: a slice for each request, from when PostSend took it until a NIC got the first of it.
//     Long slices wait for a rail that has room.
//   - a track for each rail, with a slice for each work request: a fragment, a marker, a
//     notification. Its end is when the program saw the completion. It begins when it was posted,
//     or when the one before it on the rail ended, so that slices do not overlap: the NIC carries
//     them out one after the other. Completions that one poll has found share the time before it
//     by their bytes. The exact times are the arguments of the slice.
//   - at the receiver, a mark on the rail where a message has arrived, and notifications: a slice
//     for each receive, from when its message arrived until its completion was reported. Long
//     slices wait for earlier messages, or for a receive.
//   - request: each request from PostSend until its completion was reported.
//
// Arrows lead from a request to each of its work requests, and from there to the notification at
// the other end, if its trace is given too. If the sender has seen completions so late that a work
// request seems to begin after its message has arrived, the arrow comes from the request.
//
// # Two ends
//
// Times are in microseconds since the first event. Traces of one process have one clock: set
// [End].Begins to the difference of their Begin. Two processes call [Exchange].
package trace

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// End is the trace of one virtual CQ.
type End struct {
	Name  string // shown by the viewer, such as "sender"
	Trace *ibverbx.Trace
	// Begins is the moment of Trace.Begin on the time line of the first end, whose own is 0.
	Begins time.Duration
	// Error is how far Begins may be wrong; the file says so. 0 within a process.
	Error time.Duration
}

// Take returns the trace of a virtual CQ that the calling goroutine owns: it polls the virtual CQ,
// and leaves all completions there for the next Poll. Other goroutines call
// [ibverbx.VirtualCQ.Trace].
func Take(cq *ibverbx.VirtualCQ) (t *ibverbx.Trace, err error) {
	taken := make(chan struct{})
	go func() {
		t, err = cq.Trace(context.Background())
		close(taken)
	}()
	for {
		select {
		case <-taken:
			return t, err
		default:
			_, _ = cq.Poll(nil) // that a physical CQ has died shows in its completions
		}
	}
}

// Exchange brings the traces of two processes together. One of them, which leads, gets the other's,
// aligned with its own by [Align]; the other gets none. Both call it at the same time, with
// functions that send a value to the other process and receive one, both as JSON.
func Exchange(mine *ibverbx.Trace, leads bool, send, receive func(v any) error) (theirs End, err error) {
	age := func() (age time.Duration, err error) {
		if err = send(nil); err == nil {
			err = receive(&age)
		}
		return age, err
	}
	if leads {
		theirs.Trace = &ibverbx.Trace{}
		if theirs.Begins, theirs.Error, err = Align(mine.Begin, age); err == nil {
			err = receive(theirs.Trace)
		}
		return theirs, err
	}
	for i := 0; i < alignRounds && err == nil; i++ {
		if err = receive(nil); err == nil {
			err = send(time.Since(mine.Begin))
		}
	}
	if err == nil {
		err = send(mine)
	}
	return End{}, err
}

// alignRounds is how often Align asks.
const alignRounds = 16

// Align finds out when the peer's trace began, on the time line of a trace of this process that
// began at begin. ask asks the peer, over whatever connects the two, for the time since its trace
// began. The quickest of 16 answers counts: the peer's clock was read somewhere between question
// and answer, so half of that time is how far the result may be wrong.
func Align(begin time.Time, ask func() (time.Duration, error)) (begins, off time.Duration, err error) {
	for i := range alignRounds {
		asked := time.Since(begin)
		theirs, err := ask()
		if err != nil {
			return 0, 0, fmt.Errorf("trace: align: %w", err)
		}
		took := time.Since(begin) - asked
		if i == 0 || took/2 < off {
			begins, off = asked+took/2-theirs, took/2
		}
	}
	return begins, off, nil
}

// most is the longest time that a trace may cover, so that sums of times do not overflow.
const most = 1 << 60

// Write writes the traces of one or several ends as one file. It refuses times of more than 36
// years with verbs.ErrInvalid: they come from a broken peer.
func Write(w io.Writer, ends ...End) error {
	f := &file{info: map[string]any{}}
	if err := f.begin(ends); err != nil {
		return err
	}
	var all []*flow
	for i := range ends {
		all = append(all, f.flows(&ends[i])...)
	}
	for _, q := range all {
		q.lay(f)
	}
	for _, q := range all {
		q.arrows(f, q.peer(all))
	}
	return f.write(w)
}

// file is the file that is being written.
type file struct {
	first  time.Duration // the moment that is 0 in the file
	last   time.Duration // the last event
	any    bool          // there is one
	events []event
	info   map[string]any
	flow   int // the last number of an arrow
	pid    int // the last number of a process of the viewer
}

// event is an event of the format. Times are in microseconds.
type event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	Ts    float64        `json:"ts"`
	Dur   float64        `json:"dur,omitempty"`
	Pid   int            `json:"pid"`
	Tid   int            `json:"tid"`
	ID    int            `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// begin checks the ends, and finds the first and the last event.
func (f *file) begin(ends []End) error {
	for i := range ends {
		e := &ends[i]
		if e.Trace == nil {
			return fmt.Errorf("trace: write: %w: end %d, %.100q, has no trace", verbs.ErrInvalid, i, e.Name)
		}
		for _, ev := range e.Trace.Events {
			if max(ev.At, -ev.At, e.Begins, -e.Begins) > most || min(ev.At, e.Begins) < -most {
				return fmt.Errorf("trace: write: %w: end %d, %.100q: an event at %v, of a trace that begins "+
					"at %v", verbs.ErrInvalid, i, e.Name, ev.At, e.Begins)
			}
			at := e.Begins + ev.At
			if !f.any {
				f.first, f.last, f.any = at, at, true
			}
			f.first, f.last = min(f.first, at), max(f.last, at)
		}
		about := map[string]any{"events_lost": e.Trace.Lost}
		if i > 0 {
			about["clock_error_us"] = micros(e.Error)
		}
		name := e.Name
		for n := 2; f.info[name] != nil; n++ {
			name = fmt.Sprintf("%s (%d)", e.Name, n)
		}
		f.info[name] = about
	}
	return nil
}

// micros converts to the unit of the format.
func micros(d time.Duration) float64 { return float64(d) / 1000 }

// at returns a moment in the file.
func (f *file) at(t time.Duration) float64 { return micros(t - f.first) }

// write writes the file: names first, then the events by time.
func (f *file) write(w io.Writer) error {
	slices.SortStableFunc(f.events, func(a, b event) int { return cmp.Compare(a.Ts, b.Ts) })
	out := bufio.NewWriter(w)
	info, err := json.Marshal(f.info)
	_, _ = fmt.Fprintf(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[", info)
	for i := range f.events {
		text, broken := json.Marshal(&f.events[i])
		err = cmp.Or(err, broken)
		sep := ",\n"
		if i == 0 {
			sep = "\n"
		}
		_, _ = out.WriteString(sep)
		_, _ = out.Write(text)
	}
	_, _ = out.WriteString("\n]}\n")
	if err = cmp.Or(err, out.Flush()); err != nil {
		return fmt.Errorf("trace: write: %w", err)
	}
	return nil
}

// The tracks of a virtual queue pair; that of rail i is railTrack+i.
const (
	requestTrack = 1 + iota
	postTrack
	notifyTrack
	railTrack
)

// name names a process or a track of the viewer, and gives it its place.
func (f *file) name(pid, tid int, name string) {
	what, place := "thread", tid
	if tid == 0 {
		what, place = "process", pid
	}
	f.events = append(f.events,
		event{Name: what + "_name", Phase: "M", Pid: pid, Tid: tid, Args: map[string]any{"name": name}},
		event{Name: what + "_sort_index", Phase: "M", Pid: pid, Tid: tid,
			Args: map[string]any{"sort_index": place}})
}

// slice is something that lasts.
type slice struct {
	name     string
	from, to time.Duration // when it was possible, and when it was over
	weight   uint64        // its part of a time that it shares
	args     map[string]any
	begin    time.Duration // as it is shown
	shown    bool
}

// show shows slices on a track, one after the other. A slice ends where it was over, and begins
// where the one before it ended. Those that were over at the same moment share the time before it.
// No slice is shorter than a nanosecond, so that arrows find it.
func (f *file) show(pid, tid int, cat string, list []*slice) {
	slices.SortStableFunc(list, func(a, b *slice) int { return cmp.Compare(a.to, b.to) })
	var end time.Duration
	for i := 0; i < len(list); {
		group, sum := i, 0.0
		for ; group < len(list) && list[group].to == list[i].to; group++ {
			sum += float64(list[group].weight) + 1
		}
		for ; i < group; i++ {
			s := list[i]
			s.shown, s.begin = true, s.from
			if i > 0 {
				s.begin = max(s.from, end)
			}
			share := float64(s.weight) + 1
			end = s.begin + max(1, time.Duration(float64(s.to-s.begin)*share/sum))
			sum -= share
			f.events = append(f.events, event{Name: s.name, Cat: cat, Phase: "X", Ts: f.at(s.begin),
				Dur: micros(end - s.begin), Pid: pid, Tid: tid, Args: s.args})
		}
	}
}

// arrow draws an arrow through moments at which slices begin; these must not run back.
func (f *file) arrow(points ...point) {
	f.flow++
	for i, p := range points {
		e := event{Name: "request", Cat: "flow", Phase: "t", Ts: f.at(p.slice.begin), Pid: p.pid, Tid: p.tid,
			ID: f.flow, Bind: "e"}
		switch i {
		case 0:
			e.Phase, e.Bind = "s", ""
		case len(points) - 1:
			e.Phase = "f"
		}
		f.events = append(f.events, e)
	}
}

// point is a slice on its track.
type point struct {
	pid, tid int
	slice    *slice
}
