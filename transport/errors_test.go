package transport_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// once fails the test if one of the words does not stand in the text exactly once.
func once(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if n := strings.Count(text, word); n != 1 {
			t.Errorf("%q stands %d times in %q", word, n, text)
		}
	}
}

// The error of the end whose own NIC died says that first, and does not advise to search for it.
// The other end's error does not say that its NIC died.
func TestTheEndWhoseNICDiedReportsIt(t *testing.T) {
	for name, strike := range map[string]struct {
		event verbs.EventType
		words string
		do    func(d *soft.Device)
	}{
		"device": {verbs.EventDeviceFatal, "soft0: device failed", func(d *soft.Device) { d.Kill() }},
		"port":   {verbs.EventPortErr, "soft0 port 1: port error", func(d *soft.Device) { d.SetLink(false) }},
	} {
		t.Run(name, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				s.cfg.QP.Linger = -1
				s.cfg.QP.Conn.Timeout, s.cfg.QP.Conn.RetryCount = 8, 1
				s.cfg.KeepAlive = -1
				l := newLink(t, s)
				l.flushed(l.a)
				strike.do(l.a.nics[0])
				l.until("both ends fail", func() bool {
					for _, e := range []*end{l.a, l.b} {
						_, _ = e.PutZcopy(nil, e.peer.At(0), e.mr.Slice(0, overlapping(60000)))
					}
					return l.a.Err() != nil && l.b.Err() != nil
				})
				var why *transport.EndpointError
				var failed *ibverbx.FailedError
				err := l.a.Err()
				if !errors.As(err, &why) || why.Event == nil || why.Event.Type != strike.event ||
					why.Event.Device != verbs.Device(l.a.nics[0]) ||
					!errors.Is(err, transport.ErrPeerFailed) ||
					!errors.As(err, &failed) {
					t.Fatalf("%v", err)
				}
				if text := "transport: peer b: this end's NIC: " + strike.words; !strings.HasPrefix(
					err.Error(), text) {
					t.Errorf("%v", err)
				}
				once(t, err.Error(), "soft0", "transport", "peer b")
				if strings.Contains(err.Error(), "look for") || strings.Contains(err.Error(), " id ") {
					t.Errorf("%v", err)
				}
				if !errors.As(l.b.Err(), &why) || why.Event != nil {
					t.Errorf("the peer: %v", l.b.Err())
				}
			})
		})
	}
}

// What failed is named in words, whether the program or the transport itself asked for it, and not
// by a number that only the transport knows.
func TestWhatFailedIsNamed(t *testing.T) {
	for words, do := range map[string]func(l *link){
		"active message": func(l *link) { must(l.tb, l.a.AMShort(1, nil, []byte{1})) },
		"put":            func(l *link) { must(l.tb, l.a.PutShort([]byte{1}, l.a.peer.At(0))) },
		"get": func(l *link) {
			_, err := l.a.GetBcopy(nil, make([]byte, 8), l.a.peer.At(0))
			must(l.tb, err)
		},
		"fetch add":    func(l *link) { must(l.tb, l.a.FetchAdd(nil, nil, l.a.peer.At(0), 1)) },
		"compare swap": func(l *link) { must(l.tb, l.a.CompareSwap(nil, nil, l.a.peer.At(0), 1, 2)) },
		"keep-alive":   func(l *link) { time.Sleep(3 * time.Millisecond) },
		"credits": func(l *link) {
			for range l.b.w.Config().AMBuffers {
				l.send(l.b, nil)
			}
		},
		"goodbye": func(l *link) { go func() { _ = l.a.Close(within(l.tb)) }() },
		"remote flush": func(l *link) {
			_, err := l.a.StartFlush(transport.FlushRemote, nil)
			must(l.tb, err)
		},
	} {
		t.Run(words, func(t *testing.T) {
			eachShape(t, func(t *testing.T, s setup) {
				s.cfg.QP.Linger, s.cfg.KeepAlive = -1, -1
				if words == "keep-alive" {
					s.cfg.KeepAlive = time.Millisecond
				}
				peer := s.cfg
				peer.KeepAlive = -1
				s.peer = &peer
				l := newLink(t, s)
				if words == "remote flush" { // of what has ended already
					must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
					l.until("the put", func() bool { return l.a.Stats().Outstanding == 0 })
				}
				fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailSend})
				defer fault.Remove()
				do(l)
				l.until("the failure", func() bool { return l.a.Err() != nil })
				var why *transport.EndpointError
				err := l.a.Err()
				if !errors.As(err, &why) || why.Op != words {
					t.Fatalf("it was a %s, it says: %v", words, err)
				}
				once(t, err.Error(), words, "transport:", "peer b:", "soft0", "virtual qp")
				if strings.Contains(err.Error(), " id ") {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// While no goroutine makes progress a NIC may report any number of events. Its death is noticed
// nevertheless, before or behind them.
func TestADeathIsNotLostAmongEvents(t *testing.T) {
	for _, last := range []bool{false, true} {
		s := shapes()[1]
		s.cfg.QP.Linger, s.cfg.KeepAlive = -1, -1
		l := newLink(t, s)
		nic := l.a.nics[0]
		if !last {
			nic.Kill()
			nic.Restore()
		}
		for range 200 {
			nic.SetLink(false)
			nic.SetLink(true)
		}
		if last {
			nic.Kill()
		} else { // queue pairs do not come back with their NIC
			defer l.fabric.Inject(soft.Fault{Device: nic, Kind: soft.FailSend}).Remove()
		}
		l.until("the failure", func() bool {
			_ = l.a.PutShort([]byte{1}, l.a.peer.At(0))
			return l.a.Err() != nil
		})
		var why *transport.EndpointError
		if !errors.As(l.a.Err(), &why) || why.Event == nil || why.Event.Type != verbs.EventDeviceFatal {
			t.Errorf("death last %v: %v", last, l.a.Err())
		}
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

// Outcomes, flushes and errors have texts.
func TestWords(t *testing.T) {
	for want, got := range map[string]string{
		"done": transport.PendingDone.String(), "progress": transport.PendingProgress.String(),
		"no resource": transport.PendingNoResource.String(), "outcome 9": transport.Outcome(9).String(),
		"local": transport.FlushLocal.String(), "remote": transport.FlushRemote.String(),
		"flush kind 9": transport.FlushKind(9).String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	l := newLink(t, shapes()[0])
	if _, err := l.a.StartFlush(transport.FlushRemote+1, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an unknown flush: %v", err)
	}
	_, put := l.a.PutBcopy(nil, l.a.peer.At(0))
	_, am := l.a.AMBcopy(1, nil, nil)
	for _, err := range []error{put, am} {
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "pack function") {
			t.Errorf("no function: %v", err)
		}
	}
}
