package bench

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/units"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A script is what a peer says: a message a line, its kind and what it holds other than a peer
// would that keeps to the rules. So
//
//	offer
//	accept
//	column {"card":{"credits":1}}
//	connected
//	! 00000002
//
// lies once, and then sends these bytes. A peer that has said everything goes.

// scriptLimits keep a script short: nothing new comes after that.
const (
	scriptLines = 64
	scriptBytes = 16 << 10
)

// talkParams are small parameters, chosen by a byte: operation, scheme, one direction or both,
// bandwidth or latency, compared or not.
func talkParams(t *testing.T, how byte) *Params {
	t.Helper()
	p := params(func(p *Params) {
		p.Provider = "elsewhere"
		p.Op = []Op{Write, WriteImm, Read, Send, FetchAdd, CmpSwap, Write, Read}[how&7]
		p.Schemes = []Scheme{[]Scheme{DQPLB, Spray, Single, DQPLB}[how>>3&3]}
		p.NICs, p.QPs, p.Depth, p.TxDepth, p.Memory, p.Iterations, p.Verify = 1, 2, 4, 4, 4<<10, 3,
			how&32 == 0
		p.Sizes = []units.Size{64}
		if p.Op.Atomic() {
			p.Sizes = []units.Size{8}
		}
		p.Bidirectional = how&64 != 0
		if how&128 != 0 {
			p.Mode, p.Bidirectional = Latency, false
		}
	})
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	return p
}

// talk lets a process have a conversation with an actor, and looks how that ends: soon, for a
// reason that can be shown, with all closed and without much memory.
func talk(t *testing.T, name string, how byte, script string,
	drive func(p *Params, h *Half) (*Report, error)) {
	t.Helper()
	if strings.Count(script, "\n") >= scriptLines || len(script) > scriptBytes || expensive(script) {
		return
	}
	// A machine that stands still takes long once, an end that is held up takes long each time.
	for try := 1; ; try++ {
		took := talkOnce(t, name, how, script, drive)
		if took <= 3*time.Second {
			return
		}
		if try == 3 {
			t.Fatalf("took %v", took)
		}
	}
}

// talkOnce is one conversation, and returns how long it takes.
func talkOnce(t *testing.T, name string, how byte, script string,
	drive func(p *Params, h *Half) (*Report, error)) (took time.Duration) {
	t.Helper()
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := talkParams(t, how)
	a := newActor(t, name, p, fabric.Device(0), script)
	peer := &greeted{actor: a, hello: strings.NewReader(hello)}
	conn, err := rendezvous.Start(t.Context(), peer, rendezvous.Config{Protocol: Protocol,
		Timeout: 4 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Requests to a peer that is none fail at once.
	fast := ibverbx.ConnConfig{Timeout: 1, RetryCount: ibverbx.None, RNRRetry: 1, MinRNRTimer: 1}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	report, err := drive(p, &Half{Conn: conn, Provider: p.Provider, Devices: []verbs.Device{fabric.Device(1)},
		Config: fast, Version: "v"})
	took = time.Since(start)
	runtime.ReadMemStats(&after)
	if more := after.TotalAlloc - before.TotalAlloc; more > 64<<20 {
		t.Fatalf("%d bytes: %v", more, err)
	}
	switch {
	case err == nil && (report == nil || !report.OK || !toTheEnd(script, p)):
		t.Fatalf("content with %+v", report)
	case err != nil && !talkEnds(err):
		t.Fatalf("ends with %v", err)
	case err != nil:
		checkWords(t, err)
	}
	if report != nil {
		if len(report.Results) > len(p.Sizes)*len(p.Schemes)*maxServedSizes {
			t.Fatalf("%d results", len(report.Results))
		}
		for _, r := range report.Results {
			if err == nil && name == "b" && (r.Messages < 1 || p.Verify && r.Verified < r.Messages) {
				t.Fatalf("content with %+v", r)
			}
		}
		if _, err := json.Marshal(report); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(a.column.close(), fabric.Close()); err != nil {
		t.Fatalf("something was left open: %v", err)
	}
	return took
}

// toTheEnd says whether a process can be content with what a script says: it goes to the end, and
// counts nothing that cannot be.
func toTheEnd(script string, p *Params) bool {
	task := *p
	for line := range strings.SplitSeq(script, "\n") {
		kind, lie, _ := strings.Cut(line, " ")
		number := func(key string, honest float64) float64 {
			n := map[string]any{}
			_ = json.Unmarshal([]byte(lie), &n)
			for k, v := range n {
				if f, ok := v.(float64); ok && strings.EqualFold(k, key) {
					return f
				}
			}
			return honest
		}
		switch kind {
		case kindBye:
			return true
		case kindTask:
			if json.Unmarshal(lastOf("parameters", lie), &task) == nil && task.Complete() != nil {
				return false
			}
		case kindRound:
			if n := number("messages", 1); n < 0 || n > maxSlots {
				return false
			}
		}
	}
	return strings.Contains(script, "!") // bytes of its own may be a message
}

// lastOf is the value that an object says of a key, in whatever case, beside an honest one. The
// last one in the order of keys counts, which is that of the message; it is nil where that is
// honest.
func lastOf(key, object string) (value json.RawMessage) {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal([]byte(object), &fields)
	last := key
	for k, v := range fields {
		if strings.EqualFold(k, key) && k >= last {
			last, value = k, v
		}
	}
	return value
}

// talkEnds says whether an error is one that a peer can bring about.
func talkEnds(err error) bool {
	var failed *ibverbx.FailedError
	for _, want := range []error{verbs.ErrInvalid, ibverbx.ErrNoKey, ibverbx.ErrBounds, ibverbx.ErrFailed,
		errPeerInterrupted} {
		if errors.Is(err, want) {
			return true
		}
	}
	return asExpected(err) || errors.As(err, &failed) ||
		strings.HasPrefix(err.Error(), "the connecting end asks for")
}

// expensive says whether a script asks for something that is within the limits, but takes more than
// a test should.
func expensive(script string) bool {
	for line := range strings.SplitSeq(script, "\n") {
		kind, lie, _ := strings.Cut(line, " ")
		if kind != kindTask && kind != "!" {
			continue
		}
		var task struct {
			Params map[string]json.RawMessage `json:"parameters"`
		}
		if json.Unmarshal([]byte(lie), &task) != nil {
			if len(lie) > 200 {
				return true
			}
			continue
		}
		for key, value := range task.Params {
			var n float64
			var list []float64
			_ = json.Unmarshal(value, &n)
			_ = json.Unmarshal(value, &list)
			most := 1 << 20
			if strings.EqualFold(key, "depth") || strings.EqualFold(key, "qps") ||
				strings.EqualFold(key, "tx_depth") {
				most = 64
			}
			for _, n := range append(list, n) {
				if n > float64(most) && n <= maxSize {
					return true
				}
			}
		}
	}
	return false
}

// over is a round of no messages, which says that the sample is taken.
const over = `round {"messages":0}`

// FuzzFollow is a listening end to which any process may connect.
func FuzzFollow(f *testing.F) {
	opening := "task\ncolumn\nconnected\ncell\n"
	add := func(how byte, script string) { f.Add(how, script) }
	for _, how := range []byte{0, 1, 2, 3, 8, 16, 17, 32, 33, 64, 65, 66, 67, 128, 129, 131, 4, 4 | 32,
		4 | 64} {
		add(how, opening+"round\ndone\nverdict\nround\ndone\nverdict\n"+over+"\nrow\nbye")
		add(how, opening+"round\ndone {\"posted\":1}\nverdict {\"verified\":1}\n"+over+"\nrow\nbye "+
			"{\"interrupted\":true}")
		add(how, opening+"round {\"messages\":64,\"warm_up\":true}\ndone {\"posted\":-1}")
		add(how, opening+"round {\"messages\":65}")
		add(how, opening+over+"\ncell\nrow\nrow\nbye")
	}
	for _, lie := range []string{
		`{"parameters":{"nics":2}}`, `{"parameters":{"memory_bytes":1099511627776}}`,
		`{"parameters":{"qps":4611686018427387905}}`,
		`{"parameters":null}`, `{"self":null}`, `7`,
		`{"parameters":{"sizes":[64,64,64]}}`, `{"parameters":{"op":"halt"}}`,
		`{"parameters":{"faults":["nic-down"]}}`,
		`{"parameters":{"duration_seconds":1e300}}`, `{"x":1}`,
	} {
		add(0, "task "+lie+"\ncolumn\nconnected\ncell\nround\ndone\nverdict\n"+over+"\nrow\nbye")
	}
	for _, lie := range []string{
		`{"card":{"qpNums":["1"]}}`, `{"card":{"credits":1}}`, `{"card":{"rails":null}}`, `{"card":null}`,
		`{"dst":null}`,
		`{"dst":{"rkeys":{"63":1}}}`,
		`{"dst":{"addr":"18446744073709547000"}}`, `{"scheme":"spray"}`,
		`{"card":{"rdAtomic":255,"mtu":256}}`,
		`{"dst":{"rkeys":{"0":1}}}`,
	} {
		add(64, "task\ncolumn "+lie+"\nconnected\ncell\nround\ndone\nverdict\n"+over+"\nrow\nbye")
	}
	// An honest key of the same name follows.
	add(0, "task {\"Parameters\":{\"qps\":4611686018427387905}}\ncolumn\nconnected\ncell\nround\ndone\n"+
		"verdict\n"+over+"\nrow\nbye")
	add(0, "error")
	add(0, "task\nerror {\"text\":\"\\u001b[2J\\nibverbx: all is well\"}")
	add(0, "! 7fffffff")
	add(0, "bye")
	add(0, "task\ncolumn\nconnected\nrow {\"results\":[]}")
	add(0, "task\ncolumn\nconnected\ncell {\"stop\":true}")
	f.Fuzz(func(t *testing.T, how byte, script string) {
		talk(t, "a", how, script, func(_ *Params, h *Half) (*Report, error) {
			return Follow(t.Context(), h, observer{})
		})
	})
}

// FuzzLead is a connecting end whose peer is not a listening end.
func FuzzLead(f *testing.F) {
	opening := "offer\naccept\ncolumn\nconnected\n"
	rounds := strings.Repeat("ready\nverdict\n", 6)
	add := func(how byte, script string) { f.Add(how, script) }
	for _, how := range []byte{0, 1, 2, 3, 8, 16, 17, 32, 33, 35, 64, 65, 66, 67, 128, 129, 131, 130, 4 | 32,
		5 | 32, 4, 5} {
		add(how, opening+rounds+"row\nbye")
		add(how, opening+"ready\nverdict\nready\nverdict\nready\nverdict\nrow\nbye")
		add(how, opening+"ready\ndone {\"posted\":1}\nverdict "+
			"{\"verified\":1,\"took_ns\":-9223372036854775808}\nready\ndone\nverdict")
		add(how, opening+"ready\ndone {\"posted\":1152921504606846976}")
		add(how, opening+"verdict")
	}
	for _, lie := range []string{`{"nics":[]}`, `null`, `{"machine":{"clock_ns":-1}}`,
		`{"version":"\u001b[2J"}`} {
		add(0, "offer "+lie+"\naccept\ncolumn\nconnected")
	}
	for _, lie := range []string{
		`{"card":{"qpNums":["1"]}}`, `{"card":{"credits":1}}`, `{"card":{"rails":null}}`, `{"card":null}`,
		`{"dst":null}`,
		`{"dst":{"rkeys":{"63":1}}}`,
		`{"dst":{"addr":"18446744073709547000"}}`, `{"dst":{"addr":"1"}}`,
		`{"scheme":"spray"}`,
		`{"card":{"rdAtomic":255,"mtu":256}}`, `{"dst":{"rkeys":{"0":1}}}`,
	} {
		add(32, "offer\naccept\ncolumn "+lie+"\nconnected\n"+rounds+"row\nbye")
	}
	add(0, opening+"error")
	add(0, opening+"ready\n! 00000001")
	for _, lie := range []string{`{"state":"\u001b[2J"}`, `{"rails":[{"device":"\u001b[2J"}]}`} {
		add(32, opening+rounds+`row {"results":[{"size_bytes":64,"scheme":"dqplb","stats":{"b":`+lie+
			"}}]}\nbye")
	}
	f.Fuzz(func(t *testing.T, how byte, script string) {
		talk(t, "b", how, script, func(p *Params, h *Half) (*Report, error) {
			return Lead(t.Context(), p, h, observer{})
		})
	})
}
