package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"ibverbx/internal/tcptest"
	"ibverbx/internal/units"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// meddler sits between two ends and changes what one of them says. It gets the frame with the
// number n from end a or b, of which the one with the number 0 is the greeting, and returns what
// the other end receives. With over set nothing follows,
// and with hangUp the connections are closed.
type meddler func(from string, n int, frame []byte) (instead []byte, over, hangUp bool)

// between connects two ends through a meddler.
func between(t *testing.T, meddle meddler) (a, b net.Conn) {
	t.Helper()
	a, innerA := tcptest.Pair(t)
	b, innerB := tcptest.Pair(t)
	var pumps sync.WaitGroup
	pump := func(from string, src, dst net.Conn) {
		defer pumps.Done()
		for n := 0; ; n++ {
			frame, err := rawFrame(src, n == 0)
			if err != nil {
				dst.(*net.TCPConn).CloseWrite()
				return
			}
			instead, over, hangUp := meddle(from, n, frame)
			if _, err := dst.Write(instead); err != nil {
				over = true
			}
			if hangUp {
				src.Close()
				dst.Close()
				return
			}
			if over {
				_, _ = io.Copy(io.Discard, src) // listens, and says nothing
				return
			}
		}
	}
	pumps.Add(2)
	go pump("a", innerA, innerB)
	go pump("b", innerB, innerA)
	t.Cleanup(func() {
		for _, c := range []net.Conn{a, b, innerA, innerB} {
			c.Close()
		}
		pumps.Wait()
	})
	return a, b
}

// rawFrame reads a frame as it is on the wire.
func rawFrame(r io.Reader, greeting bool) ([]byte, error) {
	frame := make([]byte, len(hello))
	if greeting {
		_, err := io.ReadFull(r, frame)
		return frame, err
	}
	if _, err := io.ReadFull(r, frame[:4]); err != nil {
		return nil, err
	}
	frame = append(frame[:4], make([]byte, binary.BigEndian.Uint32(frame))...)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// meddled measures a little through a meddler.
func meddled(t *testing.T, timeout time.Duration, change func(*Params), meddle meddler) (a, b outcome) {
	t.Helper()
	_, nics := fabric(t, 2)
	ncA, ncB := between(t, meddle)
	following := follow(t.Context(), ncB, timeout, nics[1:])
	p := params(func(p *Params) {
		p.NICs, p.Sizes, p.Schemes, p.Iterations, p.Memory = 1, []units.Size{64}, []Scheme{DQPLB}, 4, 4<<10
	}, change)
	conn, err := rendezvous.Start(t.Context(), ncA, rendezvous.Config{Protocol: Protocol,
		Timeout: timeout})
	if err != nil {
		a.err = err
	} else {
		a.report, a.err = Lead(t.Context(), p, &Half{Conn: conn, Provider: "here", Devices: nics[:1]},
			observer{})
	}
	select {
	case b = <-following:
	case <-time.After(20 * time.Second):
		t.Fatal("end b does not end")
	}
	return a, b
}

// asExpected says whether an error is one that a peer can bring about.
func asExpected(err error) bool {
	var said *rendezvous.PeerError
	for _, want := range []error{rendezvous.ErrGone, rendezvous.ErrTimeout, rendezvous.ErrProtocol,
		rendezvous.ErrVersion, ErrStalled, ErrVerify} {
		if errors.Is(err, want) {
			return true
		}
	}
	return errors.As(err, &said)
}

// TestMischief applies every manipulation at every step to both ends. Both must end, with an error
// that says what was wrong; an end that has not received everything must not succeed, but for the
// goodbye.
func TestMischief(t *testing.T) {
	t.Parallel() // most of the time it waits
	const timeout = 60 * time.Millisecond
	for name, trick := range map[string]func(frame []byte) (instead []byte, over, hangUp bool){
		"hangs up":       func([]byte) ([]byte, bool, bool) { return nil, true, true },
		"falls silent":   func([]byte) ([]byte, bool, bool) { return nil, true, false },
		"stops half way": func(f []byte) ([]byte, bool, bool) { return f[:len(f)/2], true, false },
		"breaks off":     func(f []byte) ([]byte, bool, bool) { return f[:len(f)/2], true, true },
		"talks nonsense": func(f []byte) ([]byte, bool, bool) {
			return []byte(strings.Repeat("nonsense", 20)),
				true, false
		},
		"repeats itself": func(f []byte) ([]byte, bool, bool) { return append(f, f...), false, false },
		"another kind": func([]byte) ([]byte, bool, bool) {
			return []byte("\x00\x00\x00\x0f{\"kind\":\"hail\"}"), false, false
		},
	} {
		for _, from := range []string{"a", "b"} {
			t.Run(name+"/"+from, func(t *testing.T) {
				t.Parallel()
				step := 1
				if testing.Short() {
					step = 4
				}
				for at := 0; ; at += step {
					var reached, goodbye atomic.Bool
					a, b := meddled(t, timeout, func(*Params) {},
						func(end string, n int, frame []byte) ([]byte, bool, bool) {
							if end != from || n != at {
								return frame, false, false
							}
							reached.Store(true)
							goodbye.Store(bytes.Equal(frame, make([]byte, 4)))
							return trick(frame)
						})
					if !reached.Load() {
						return // further than the conversation is long
					}
					victim := map[string]outcome{"a": b, "b": a}[from]
					if victim.err == nil && name != "repeats itself" && !goodbye.Load() {
						t.Errorf("frame %d: the other end is content", at)
					}
					for end, o := range map[string]outcome{"a": a, "b": b} {
						if o.err != nil && !asExpected(o.err) {
							t.Errorf("frame %d: end %s: %v", at, end, o.err)
						}
					}
				}
			})
		}
	}
}

// escapes are control sequences of terminals.
const escapes = "\x1b]0;owned\x07\x1b[2J\u009b31m"

// checkWords looks whether an error can be shown: no terminal obeys it, it is of bearable length,
// and no line of it looks like one of this process's own.
func checkWords(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) ||
		len(text) > 4000 || strings.Contains(text, "\nibverbx") {
		t.Errorf("%d bytes: %.300q", len(text), text)
	}
}

// TestLies changes single values of messages. The end that receives one must report it.
func TestLies(t *testing.T) {
	type fields = map[string]any
	params := func(change func(p fields)) func(fields) {
		return func(body fields) { change(body["parameters"].(fields)) }
	}
	set := func(key string, value any) func(fields) {
		return params(func(p fields) { p[key] = value })
	}
	many := make([]int, 300)
	for i := range many {
		many[i] = 64
	}
	for name, tt := range map[string]struct {
		from, kind string
		lie        func(body fields)
		want       string // of the end that is lied to
	}{
		"no parameters": {"a", kindTask, func(b fields) { delete(b, "parameters") },
			"a task without parameters"},
		"a terabyte": {"a", kindTask, set("memory_bytes", uint64(1)<<40),
			"--memory 1024 GiB: must be 1 KiB to 1 GiB"},
		"a large message": {"a", kindTask, set("sizes", []uint64{1 << 62}), "at most 1 GiB"},
		"a negative size": {"a", kindTask, set("sizes", []int{-1}), "cannot unmarshal number -1"},
		"no bytes":        {"a", kindTask, set("sizes", []int{0}), "cannot be measured"},
		"many sizes":      {"a", kindTask, set("sizes", many), "300 sizes"},
		"for ever": {"a", kindTask,
			params(func(p fields) { p["duration_seconds"] = 1e9; delete(p, "iterations") }),
			"at most 1h0m0s"},
		"longer than that":      {"a", kindTask, set("duration_seconds", 1e300), "too long"},
		"backwards":             {"a", kindTask, set("iterations", -5), "must be at least 1"},
		"many messages":         {"a", kindTask, set("iterations", uint64(1)<<50), "takes at most"},
		"many NICs":             {"a", kindTask, set("nics", 1000000), "must be 1 to 32"},
		"more NICs than it has": {"a", kindTask, set("nics", 2), "the listening end has 1"},
		"no NICs":               {"a", kindTask, set("nics", 0), "--nics 0"},
		"many queue pairs":      {"a", kindTask, set("qps", 1<<30), "--qps 1073741824: must be 1 to 128"},
		"queue pairs that overflow": {"a", kindTask,
			params(func(p fields) { p["nics"] = 4; p["qps"] = uint64(1)<<62 + 1 }), "--qps"},
		"too many rails": {"a", kindTask, params(func(p fields) { p["nics"] = 32; p["qps"] = 5 }),
			"at most 128"},
		"an unknown parameter": {"a", kindTask, set("burn", true), "unknown field"},
		"a slow clock": {"a", kindTask,
			func(b fields) { b["self"].(fields)["machine"].(fields)["clock_ns"] = -1 }, "clock takes -1 ns"},
		"deep queues":       {"a", kindTask, set("depth", 1<<30), "--depth"},
		"much outstanding":  {"a", kindTask, set("tx_depth", 1<<30), "--tx-depth"},
		"large fragments":   {"a", kindTask, set("fragment_bytes", uint64(1)<<40), "must be 1 B to 2 GiB"},
		"unknown operation": {"a", kindTask, set("op", "halt"), "has write, write-imm"},
		"unknown mode":      {"a", kindTask, set("mode", "x"), "have bw and lat"},
		"unknown scheme":    {"a", kindTask, set("schemes", []string{"x"}), "have single, spray"},
		"unknown wait":      {"a", kindTask, set("wait", "x"), "no way to wait"},
		"a fault": {"a", kindTask, set("faults", []string{"nic-down"}),
			"are of software NICs"},
		"a speed": {"a", kindTask, set("nic_speed_bytes_per_second", []int{1e9}),
			"are of software NICs"},
		"no self": {"a", kindTask, func(b fields) { delete(b, "self") },
			"the peer has 0 NICs"},
		"no NICs on offer": {"b", kindOffer, func(b fields) { b["nics"] = []string{} },
			"the peer has 0 NICs"},
		"a card of nobody": {"a", kindColumn, func(b fields) { delete(b, "card") }, "business card"},
		"a card of too many": {"b", kindColumn,
			func(b fields) { b["card"].(fields)["qpNums"] = make([]string, 1000) }, "business card"},
		"a card of others": {"b", kindColumn, func(b fields) {
			b["card"].(fields)["qpNums"] = []string{"0000000017"}
			b["card"].(fields)["rails"] = b["card"].(fields)["rails"].([]any)[:2]
		}, "configure both alike"},
		"small memory": {"b", kindColumn,
			func(b fields) { b["dst"].(fields)["length"] = "9" }, "has 9 bytes"},
		"wrapped memory": {"b", kindColumn,
			func(b fields) { b["dst"].(fields)["addr"] = "18446744073709551615" },
			"beyond the address space"},
		"memory without keys": {"b", kindColumn,
			func(b fields) { b["dst"].(fields)["rkeys"] = fields{} }, "no key"},
		"memory of wrong keys": {"b", kindColumn,
			func(b fields) { b["dst"].(fields)["rkeys"] = fields{"0": 1, "1": 1} },
			"REM_ACCESS_ERR"},
		"a long round": {"a", kindRound, func(b fields) { b["messages"] = 1 << 40 },
			"must be 1 to 64"},
		"a round of less than nothing": {"a", kindRound, func(b fields) { b["messages"] = -1 },
			"must be 1 to 64"},
		"compared too much": {"b", kindVerdict, func(b fields) { b["verified"] = 5 },
			"compared 5 messages of 1"},
		"compared too little": {"b", kindVerdict, func(b fields) { b["verified"] = 0 },
			"compared 0 messages of 1"},
		"escapes: operation": {"a", kindTask, set("op", escapes), `--op "\x1b]0;owned`},
		"escapes: mode":      {"a", kindTask, set("mode", escapes), `--mode "\x1b]0;owned`},
		"escapes: scheme":    {"a", kindTask, set("schemes", []string{escapes}), `--scheme "\x1b]0;owned`},
		"escapes: wait":      {"a", kindTask, set("wait", escapes), "no way to wait"},
		"escapes: fault":     {"a", kindTask, set("faults", []string{"nic-down@" + escapes}), "key=value"},
		"escapes: card": {"a", kindColumn, func(b fields) { b["card"].(fields)["scheme"] = escapes },
			`the peer uses "\x1b]0;owned`},
		"escapes: card of b": {"b", kindColumn, func(b fields) { b["card"].(fields)["scheme"] = escapes },
			`the peer uses "\x1b]0;owned`},
		"a long scheme": {"b", kindColumn,
			func(b fields) { b["card"].(fields)["scheme"] = strings.Repeat("x", 60000) },
			`the peer uses "xxx`},
		"escapes: GID": {"b", kindColumn,
			func(b fields) { b["card"].(fields)["rails"].([]any)[0].(fields)["gid"] = escapes }, "parse gid"},
		"escapes: key": {"b", kindColumn,
			func(b fields) { b["dst"].(fields)["rkeys"] = fields{escapes: 1} },
			kindColumn},
		"escapes: state": {"b", kindRow, func(b fields) {
			b["results"].([]any)[0].(fields)["stats"].(fields)["b"].(fields)["state"] = escapes
		}, kindRow},
		"no stats": {"b", kindRow, func(b fields) { b["results"] = []any{} }, "a row of 0 cells"},
		"a long number": {"a", kindRound,
			func(b fields) { b["messages"] = json.Number(strings.Repeat("1", 500000)) }, kindRound},
		"a forged line":   {"a", kindTask, set("op", "x\nibverbx: all is well"), "has write"},
		"a forged key":    {"a", kindTask, set("x\nibverbx: all is well", 1), "unknown field"},
		"rows of nothing": {"a", kindRow, func(b fields) { b["results"] = []any{} }, "a row of 0 cells"},
		"rows of another size": {"a", kindRow,
			func(b fields) { b["results"].([]any)[0].(fields)["size_bytes"] = 7 }, "which nobody measured"},
	} {
		t.Run(name, func(t *testing.T) {
			lied := false
			a, b := meddled(t, apartTimeout, func(*Params) {}, func(from string, n int, frame []byte) ([]byte,
				bool, bool) {
				var m struct {
					Kind string `json:"kind"`
					Body fields `json:"body,omitempty"`
				}
				if from != tt.from || n == 0 || lied || json.Unmarshal(frame[4:], &m) != nil ||
					m.Kind != tt.kind {
					return frame, false, false
				}
				lied = true
				tt.lie(m.Body)
				text, err := json.Marshal(m)
				if err != nil {
					t.Error(err)
				}
				return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), false, false
			})
			liar, victim := a, b
			if tt.from == "b" {
				liar, victim = b, a
			}
			if victim.err == nil || !strings.Contains(victim.err.Error(), tt.want) {
				t.Fatalf("error %.300q, want %q", fmt.Sprint(victim.err), tt.want)
			}
			for _, err := range []error{victim.err, liar.err} {
				checkWords(t, err)
			}
			var said *rendezvous.PeerError
			if !errors.As(liar.err, &said) {
				t.Errorf("who lied hears %v", liar.err)
			}
		})
	}
}

// TestPeerVanishes takes the other end away in the middle of a round: what the queue pairs make of
// that, and that the peer has gone, must both be said.
func TestPeerVanishes(t *testing.T) {
	for _, op := range []Op{Write, Send} {
		t.Run(string(op), func(t *testing.T) {
			_, nics := fabric(t, 4)
			ncA, ncB := tcptest.Pair(t)
			p := params(func(p *Params) {
				p.Op, p.NICs, p.Sizes, p.Schemes, p.Iterations, p.Duration = op, 2, []units.Size{4096},
					[]Scheme{DQPLB}, 0, Seconds(time.Minute)
			})
			leading := make(chan outcome, 1)
			conn := make(chan *rendezvous.Conn, 1)
			go func() {
				c, err := rendezvous.Start(t.Context(), ncA, rendezvous.Config{Protocol: Protocol,
					Timeout: apartTimeout})
				if err != nil {
					leading <- outcome{nil, err}
					return
				}
				report, err := Lead(t.Context(), p, &Half{Conn: c, Provider: "here", Devices: nics[:2],
					Config: impatient}, observer{})
				leading <- outcome{report, err}
			}()
			go func() { conn <- start(t, ncB, apartTimeout) }()
			vanish(t, <-conn, nics[2:], ncB)
			select {
			case a := <-leading:
				if !errors.Is(a.err, rendezvous.ErrGone) ||
					!strings.Contains(a.err.Error(), "RETRY_EXC_ERR") {
					t.Errorf("error %v, want what the queue pair said, and that the peer has gone", a.err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("does not end")
			}
		})
	}
}

// vanish follows until the second round begins, and then dies with its queue pairs.
func vanish(t *testing.T, conn *rendezvous.Conn, devices []verbs.Device, nc net.Conn) {
	t.Helper()
	h := &Half{Conn: conn, Provider: "there", Devices: devices}
	f := &peer{conn: conn, steps: t.Context()}
	task, err := f.receiveTask(h)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(t.Context(), kindAccept, nil); err != nil {
		t.Fatal(err)
	}
	run := newRunner(t.Context(), task.Params, [2]bool{false, true}, observer{})
	run.peer = f
	if err := run.connect(devices); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(conn.Receive(t.Context(), kindCell, nil))
	must(conn.Receive(t.Context(), kindRound, nil))
	must(run.close())
	must(conn.Send(t.Context(), kindReady, nil)) // a lie: nobody is there any more
	must(nc.Close())
}
