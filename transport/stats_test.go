package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Both ends count the bytes of active messages, and the one that calls those of puts and gets, per
// endpoint and for the worker; and the queue pairs below count what they carried.
func TestBytesAreCounted(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		must(t, l.a.AMShort(1, []byte("hd"), []byte("payload")))
		_, err := l.a.AMBcopy(1, nil, pack(make([]byte, 1000)))
		must(t, err)
		must(t, l.a.AMZcopy(nil, 1, []byte("h"), l.a.mr.Slice(0, 100), l.a.mr.Slice(200, 11)))
		sent, received := 2+7+1000+1+111, 0
		l.until("the messages", func() bool { return l.got == 3 })
		if g := l.b.Stats(); g.ReceivedBytes != uint64(sent) || g.SentBytes != 0 {
			t.Errorf("the receiver of %d bytes: %+v", sent, g)
		}
		must(t, l.a.PutShort(make([]byte, 5), l.a.peer.At(0)))
		_, err = l.a.PutBcopy(pack(make([]byte, 50)), l.a.peer.At(0))
		must(t, err)
		_, err = l.a.PutZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, 20000), l.a.mr.Slice(30000, 1))
		must(t, err)
		sent += 5 + 50 + 20001
		_, err = l.a.GetBcopy(nil, make([]byte, 300), l.a.peer.At(0))
		must(t, err)
		_, err = l.a.GetZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(40000, 2000))
		must(t, err)
		received += 300 + 2000
		must(t, l.a.FetchAdd(nil, nil, l.a.peer.At(0), 1))
		sent, received = sent+8, received+8
		l.flushed(l.a)
		g := l.a.Stats()
		if g.SentBytes != uint64(sent) || g.ReceivedBytes != uint64(received) {
			t.Errorf("%d and %d bytes: %+v", sent, received, g)
		}
		must(t, other.PutShort(make([]byte, 3), other.peer.At(0)))
		l.flushed(other)
		if w := l.a.w.Stats(); w.SentBytes != uint64(sent)+3 || w.ReceivedBytes != uint64(received) {
			t.Errorf("the worker: %d and %d bytes: %+v", sent+3, received, w)
		}
		if g := other.Stats(); g.SentBytes != 3 {
			t.Errorf("another endpoint: %+v", g)
		}
		// A refused call counts nothing.
		_ = l.a.PutShort(make([]byte, 5), ibverbx.RemoteSegment{})
		if g := l.a.Stats(); g.SentBytes != uint64(sent) {
			t.Errorf("a refused put was counted: %+v", g)
		}
		below := l.a.QPStats()
		rails := uint64(0)
		for _, r := range below.Rails {
			rails += r.Bytes
		}
		if want := max(s.nics, 1); !s.single() &&
			(len(below.Rails) <= want || rails < uint64(sent+received)) {
			t.Errorf("%d rails carried %d bytes: %+v", len(below.Rails), rails, below)
		}
	})
}

// A nil argument is an error, or a panic that says so where there is no error to return, and
// changes nothing.
func TestNilArguments(t *testing.T) {
	l := newLink(t, setup{})
	var none context.Context
	for call, err := range map[string]error{
		"pending":          l.a.Pending(nil),
		"pending, no func": l.a.Pending(&transport.Pending{}),
		"connect a":        transport.Connect(nil, l.a.Endpoint),
		"connect b":        transport.Connect(l.a.Endpoint, nil),
		"wait":             l.a.w.Wait(t.Context(), nil),
		"wait, no ctx": l.a.w.Wait(none,
			transport.NewCompletion(1, nil)),
		"wait for": l.a.w.WaitFor(t.Context(), 0, nil),
		"wait for, no ctx": l.a.w.WaitFor(
			none, 0, func() bool { return true }),
		"flush": l.a.Flush(none,
			transport.FlushLocal),
		"worker flush": l.a.w.Flush(none,
			transport.FlushLocal),
		"close": l.a.Close(
			none),
		"handle": l.a.w.Handle(7, nil),
	} {
		op := strings.Fields(strings.TrimPrefix(strings.TrimSuffix(call, ","), "worker "))[0]
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), strings.TrimSuffix(op, ",")) {
			t.Errorf("%s: %v", call, err)
		}
	}
	func() {
		defer func() {
			if why := fmt.Sprint(recover()); !strings.Contains(why, "purge") {
				t.Errorf("purge: %s", why)
			}
		}()
		l.a.Purge(nil)
	}()
	l.send(l.a, nil)
	l.until("a message", func() bool { return l.got == 1 })
}

// An endpoint's error is written to JSON and slog in words and numbers, with what it wraps.
func TestEndpointErrorForMachines(t *testing.T) {
	s := shapes()[1]
	s.cfg.QP.Linger = -1
	l := newLink(t, s)
	fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailSend})
	defer fault.Remove()
	must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
	l.until("the failure", func() bool { return l.a.Err() != nil })
	text, err := json.Marshal(l.a.Err())
	must(t, err)
	var got struct {
		Peer, Kind, Op, Error string
		Cause                 any
	}
	must(t, json.Unmarshal(text, &got))
	if got.Peer != "peer b" || got.Kind != "peer failed" || got.Op != "put" || got.Cause == nil ||
		got.Error != l.a.Err().Error() {
		t.Errorf("%s", text)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Error("it failed", "err", l.a.Err())
	for _, word := range []string{`"peer":"peer b"`, `"op":"put"`, `"kind":"peer failed"`, `RETRY_EXC_ERR`} {
		if !strings.Contains(log.String(), word) {
			t.Errorf("%s lacks %s", log.String(), word)
		}
	}
	// Where the NIC has said why, and where there is no cause.
	l.b.nics[0].Kill()
	l.until("the other end fails", func() bool {
		_ = l.b.PutShort([]byte{1}, l.b.peer.At(0))
		return l.b.Err() != nil
	})
	text, err = json.Marshal(l.b.Err())
	must(t, err)
	if !strings.Contains(string(text), `"event":"soft1: device failed"`) {
		t.Errorf("%s", text)
	}
	text, err = json.Marshal(&transport.EndpointError{Peer: "x", Err: transport.ErrPeerClosed})
	must(t, err)
	if want := `{"peer":"x","kind":"peer closed","error":"transport: x: peer closed"}`; string(text) != want {
		t.Errorf("%s, not %s", text, want)
	}
}

// The figures of the queue pairs stay when these are gone: what the endpoint's last snapshot shows
// is what its rails have carried.
func TestQPStatsOfAnEndpointThatIsGone(t *testing.T) {
	for how, end := range map[string]func(l *link) error{
		"abort":        func(l *link) error { return l.a.Abort(nil) },
		"close":        func(l *link) error { return l.a.Close(within(l.tb)) },
		"worker close": func(l *link) error { return l.a.w.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				l := newLink(t, s)
				must(t, l.b.w.Start())
				must(t, l.a.PutShort(make([]byte, 5), l.a.peer.At(0)))
				l.flushed(l.a)
				before := l.a.QPStats()
				must(t, end(l))
				l.until("the release", func() bool { return l.a.w.Stats().Endpoints == 0 })
				for range 2 {
					after := l.a.QPStats()
					if after.Sends < before.Sends || len(after.Rails) != len(before.Rails) ||
						after.Rails[0].QPNum != before.Rails[0].QPNum {
						t.Errorf("%+v, not as before: %+v", after, before)
					}
					clear(after.Rails) // the caller's own
				}
			})
		})
	}
}

// The text of an endpoint's error has what is known, each once, and no colon beside nothing.
func TestTheTextOfAnEndpointError(t *testing.T) {
	died := &verbs.Event{Type: verbs.EventDeviceFatal}
	cause := fmt.Errorf("virtual qp 1: %w", verbs.StatusWRFlushErr)
	for _, c := range []struct {
		err  transport.EndpointError
		want string
	}{
		{transport.EndpointError{}, "transport: 3: peer failed"},
		{transport.EndpointError{Op: "put"}, "transport: 3: peer failed"},
		{transport.EndpointError{Cause: cause, Op: "put"}, "transport: 3: peer failed: " + cause.Error()},
		{transport.EndpointError{Event: died}, "transport: 3: this end's NIC: " + died.String()},
		{transport.EndpointError{Event: died, Op: "put"},
			"transport: 3: this end's NIC: " + died.String() + ": put"},
		{transport.EndpointError{Event: died, Cause: cause},
			"transport: 3: this end's NIC: " + died.String() + ": WR_FLUSH_ERR"},
		{transport.EndpointError{Event: died, Cause: cause, Op: "put"},
			"transport: 3: this end's NIC: " + died.String() + ": put: WR_FLUSH_ERR"},
	} {
		e := c.err
		e.Peer, e.Err = "3", transport.ErrPeerFailed
		if got := e.Error(); got != c.want {
			t.Errorf("%q, not %q", got, c.want)
		}
		if !errors.Is(&e, transport.ErrPeerFailed) ||
			errors.Is(&e, verbs.StatusWRFlushErr) != (e.Cause != nil) {
			t.Errorf("%v wraps %v", &e, e.Unwrap())
		}
		var words []string
		for _, a := range e.LogValue().Group() {
			words = append(words, a.Key)
		}
		has := func(key string) bool { return slices.Contains(words, key) }
		if !has("peer") || !has("kind") || has("op") != (e.Op != "") || has("event") != (e.Event != nil) ||
			has("cause") != (e.Cause != nil) {
			t.Errorf("%+v logs %v", e, words)
		}
	}
	for want, e := range map[string]transport.OpError{
		"transport: put: too long":              {},
		"transport: put: b: too long":           {Peer: "b"},
		"transport: put: too long: 9 bytes":     {Detail: "9 bytes"},
		"transport: put: b: too long: 300 of 2": {Peer: "b", Detail: "300 of 2"},
	} {
		e.Op, e.Err = "put", transport.ErrTooLong
		if got := e.Error(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
