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

	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A nil argument is an error, or a panic that says so where there is no error to return, and
// changes nothing.
func TestNilArguments(t *testing.T) {
	l := newLink(t, setup{})
	var none context.Context
	_, noDomain := transport.NewWorker(nil, transport.Config{})
	for call, err := range map[string]error{
		"worker":           noDomain,
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
