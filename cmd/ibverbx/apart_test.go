package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// half is some NICs of a fabric that lives on.
type half struct {
	verbs.Provider
	name string
	nics []verbs.Device
}

func (h half) Name() string                     { return h.name }
func (h half) Devices() ([]verbs.Device, error) { return h.nics, nil }
func (h half) Close() error                     { return nil }

// partial is a provider of which one NIC could not be opened.
type partial struct{ half }

func (partial) Unopened() error { return errors.New("open device: mlx5_7: permission denied") }

// addTestProviders adds providers to the table: left and right have two NICs each, which reach each
// other as those of two hosts do, and none has none.
func addTestProviders() *soft.Fabric {
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		panic(err)
	}
	all, err := fabric.Devices()
	if err != nil {
		panic(err)
	}
	for _, h := range []half{{fabric, "left", all[:2]}, {fabric, "right", all[2:]}} {
		providers = append(providers, nics.Source{Name: h.name, Open: func(cfg nics.Config) (verbs.Provider,
			error) {
			chosen, err := nics.Choose(h.nics, cfg.Devices)
			return half{h.Provider, h.name, chosen}, err
		}})
	}
	for name, open := range map[string]func() (verbs.Provider, error){
		"ailing": func() (verbs.Provider, error) {
			return half{fabric, "ailing", []verbs.Device{ailing{all[0]}}}, nil
		},
		"partial": func() (verbs.Provider, error) {
			return partial{half{fabric, "partial", all[:1]}}, nil
		},
		"infiniband": func() (verbs.Provider, error) {
			return half{fabric, "infiniband", []verbs.Device{infiniBand{all[0]}}}, nil
		},
		"none": func() (verbs.Provider, error) { return nil, errors.New("no NIC today") },
	} {
		providers = append(providers, nics.Source{Name: name,
			Open: func(nics.Config) (verbs.Provider, error) { return open() }})
	}
	return fabric
}

// process is a command under way.
type process struct {
	out    bytes.Buffer
	errs   *io.PipeReader
	cancel context.CancelFunc
	code   chan int
	read   chan struct{} // closed when the last of stderr is in said

	mu   sync.Mutex
	said bytes.Buffer // to stderr
}

var listensOn = regexp.MustCompile(`listening on (\S+) with (.*)\n`)

// listening starts a command that listens, and says where.
func listening(t *testing.T, args string) (p *process, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	p = &process{errs: r, cancel: cancel, code: make(chan int, 1), read: make(chan struct{})}
	t.Cleanup(cancel)
	go func() {
		p.code <- run(&console{ctx: ctx, out: &p.out, err: w}, strings.Fields(args))
		_ = w.Close()
	}()
	found := make(chan string)
	go func() {
		defer close(p.read)
		defer close(found)
		seen := false
		for buf := make([]byte, 1024); ; {
			n, err := r.Read(buf)
			p.mu.Lock()
			p.said.Write(buf[:n])
			m := listensOn.FindStringSubmatch(p.said.String())
			p.mu.Unlock()
			if m != nil && !seen {
				seen = true
				found <- m[1]
			}
			if err != nil {
				return
			}
		}
	}()
	address, ok := <-found
	if !ok {
		t.Fatalf("does not listen: exit %d: %s", <-p.code, p.said.String())
	}
	return p, address
}

// wait waits until the command has ended, and returns its output.
func (p *process) wait(t *testing.T) (code int, out, errs string) {
	t.Helper()
	select {
	case code = <-p.code:
	case <-time.After(20 * time.Second):
		t.Fatal("does not end")
	}
	<-p.read
	return code, p.out.String(), p.said.String()
}

func TestTwoProcesses(t *testing.T) {
	for args, want := range map[string][]string{
		quick: {"RDMA write bandwidth",
			"each with 2 NICs of 4 queue pairs", " dqplb, 8 QPs ", "every byte verified",
			"messages verified byte for byte"},
		"--op send --mode lat" + quick:           {"half of a ping-pong", "median µs"},
		"--op read -b -v" + quick:                {"both directions at once, from", "end a", "end b"},
		"--op fetch-add -n 20":                   {"Mmsg/s", "8 B"},
		"--nics 1 -q 2" + quick:                  {"1 NIC of 2 queue pairs", " spray, 2 QPs "},
		"--op write-imm -x 1 -m 1024 -e" + quick: {"sleeping until events"},
		"--layer transport --op put" + quick:     {"transport: put bandwidth, "},
		"--layer transport --op fetch-add -n 20": {"Mmsg/s", "8 B"},
		"--layer tagged --mode lat" + quick:      {"tagged: tagged message latency, ", "p99.9 µs"},
	} {
		server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
		code, out, errs := command(t, "perf --provider left --connect "+address+" "+args)
		if code != exitOK || errs != "" {
			t.Errorf("%s: exit %d: %s", args, code, errs)
		}
		codeB, outB, errsB := server.wait(t)
		if codeB != exitOK {
			t.Errorf("%s: the listening end: exit %d: %s", args, codeB, errsB)
		}
		for _, s := range want {
			if s = folded(s); !strings.Contains(folded(out), s) || !strings.Contains(folded(outB), s) {
				t.Errorf("%s: no %q in\n%s\nor in\n%s", args, s, out, outB)
			}
		}
		if !strings.Contains(folded(out), "from here to "+address) || !strings.Contains(outB, " to here") {
			t.Errorf("%s: header\n%s\n%s", args, out, outB)
		}
	}
}

func TestTwoProcessesJSON(t *testing.T) {
	server, address := listening(t, "perf --json --listen=127.0.0.1:0 --provider right -d soft3,soft2")
	code, out, errs := command(t, "perf --json --provider left -d soft1 --connect "+address+quick)
	codeB, outB, errsB := server.wait(t)
	if code != exitOK || codeB != exitOK {
		t.Fatalf("exit %d: %s; the listening end %d: %s", code, errs, codeB, errsB)
	}
	for end, text := range map[string]string{"a": out, "b": outB} {
		var doc struct {
			Parameters map[string]any
			Peer       struct {
				Address, End, Version string
				NICs                  []string
				Own                   []string `json:"own_nics"`
			}
			Results []map[string]any
			OK      bool
		}
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatalf("end %s: %v", end, err)
		}
		if !doc.OK || len(doc.Results) != 6 || doc.Parameters["nics"] != 1.0 || len(doc.Peer.NICs) != 1 ||
			doc.Peer.Version == "" {
			t.Errorf("end %s: %+v", end, doc)
		}
		if want := map[string]string{"a": "soft3", "b": "soft1"}[end]; doc.Peer.NICs[0] != want ||
			doc.Peer.End == end || len(doc.Peer.Own) != 1 || doc.Peer.Own[0] == want {
			t.Errorf("end %s: peer %+v, want NIC %s", end, doc.Peer, want)
		}
	}
}

// TestListenInterrupted interrupts a listening end without clients.
func TestListenInterrupted(t *testing.T) {
	server, _ := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	server.cancel()
	if code, out, errs := server.wait(t); code != exitInterrupted || out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	server, _ = listening(t, "perf --json --listen 127.0.0.1:0 --provider right")
	server.cancel()
	code, out, _ := server.wait(t)
	if doc := failedDocument(t, out); code != exitInterrupted || !doc.Interrupted ||
		!strings.Contains(doc.Error, "interrupted") {
		t.Errorf("exit %d, document %+v", code, doc)
	}
}

// TestInterruptedApart interrupts one of two ends in the middle.
func TestInterruptedApart(t *testing.T) {
	for _, what := range []string{"qp", "transport", "transport --mode lat", "tagged -b"} {
		interruptApart(t, what)
	}
}

func interruptApart(t *testing.T, layer string) {
	t.Helper()
	for _, who := range []string{"listening", "connecting"} {
		server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		interrupt := map[string]func(){"listening": server.cancel, "connecting": cancel}[who]
		var errs bytes.Buffer
		out := &watcher{word: "64 B", found: interrupt} // the first row has come
		code := run(&console{ctx: ctx, out: out, err: &errs},
			strings.Fields("perf --provider left --memory 256K --sizes 64,128,256 -D 20ms --connect "+
				address+" --layer "+layer))
		want, inErr, inErrB := exitFailed, `peer: (.*: )?interrupted`, "interrupted"
		if who == "connecting" {
			want, inErr, inErrB = exitInterrupted, "interrupted", "the other end was interrupted"
			server.says(t, 1, "still listening")
			server.cancel()
		}
		codeB, _, errsB := server.wait(t)
		if code != want || codeB != exitInterrupted ||
			!regexp.MustCompile(inErr).MatchString(errs.String()) ||
			!strings.Contains(errsB, inErrB) {
			t.Errorf("%s: %s end interrupted: exit %d, %s; the listening end %d, %s", layer, who, code,
				errs.String(), codeB, errsB)
		}
	}
}

// watcher calls found when a word is written.
type watcher struct {
	bytes.Buffer
	word  string
	found func()
}

func (w *watcher) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.word) {
		w.found()
	}
	return w.Buffer.Write(p)
}

// TestConnectToNoHost shows that what fails before anybody can refuse it asks for no listening end.
func TestConnectToNoHost(t *testing.T) {
	for _, args := range []string{"perf --provider left --connect", "perftest ib_write_bw --provider roce"} {
		code, _, errs := command(t, args+" no.such.host.invalid")
		if code != exitFailed || !strings.Contains(errs, "lookup no.such.host.invalid") ||
			strings.Contains(errs, "running there") {
			t.Errorf("%s: exit %d, stderr %q", args, code, errs)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"":             ":18515",
		"host":         "host:18515",
		"host:1":       "host:1",
		":0":           ":0",
		"10.0.0.1":     "10.0.0.1:18515",
		"::1":          "[::1]:18515",
		"[::1]":        "[::1]:18515",
		"[::1]:7":      "[::1]:7",
		"fe80::1%eth0": "[fe80::1%eth0]:18515",
	} {
		if got, err := parseAddress(text); err != nil || got != want {
			t.Errorf("parseAddress(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"a:b:c", "host:port", "host:70000", "[::1"} {
		if got, err := parseAddress(text); err == nil {
			t.Errorf("parseAddress(%q) = %q", text, got)
		}
	}
}
