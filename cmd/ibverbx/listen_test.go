package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/rendezvous"
)

// dial opens a connection to a listening end.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

// greeted opens a connection to a listening end and greets it as ibverbx does.
func greeted(t *testing.T, address string) *rendezvous.Conn {
	t.Helper()
	conn, err := rendezvous.Start(t.Context(), dial(t, address),
		rendezvous.Config{Protocol: bench.Protocol, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// offered is a client that may say what it wants to have measured.
func offered(t *testing.T, address string) *rendezvous.Conn {
	t.Helper()
	conn := greeted(t, address)
	if _, err := conn.AllGather(t.Context(), []byte(`{"why":"other NICs"}`)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Receive(t.Context(), "offer", nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

// asked is a client that has said what it wants to have measured.
func asked(t *testing.T, address string) *rendezvous.Conn {
	t.Helper()
	conn := offered(t, address)
	body := `{"self":{"version":"v","nics":["x"]},"parameters":{"provider":"x","layer":"qp",` +
		`"op":"write","mode":"bw","sizes":[64],"schemes":["single"],"iterations":5,"tx_depth":4,` +
		`"nics":1,"qps":1,"fragment_bytes":4096,"depth":4,"verify":true,"wait":"adaptive",` +
		`"memory_bytes":4096,"seed":1}}`
	if err := conn.Send(t.Context(), "task", json.RawMessage(body)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// called is a client that is served.
func called(t *testing.T, address string) *rendezvous.Conn {
	t.Helper()
	conn := asked(t, address)
	if err := conn.Receive(t.Context(), "accept", nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

// says waits until a command has said something on stderr, so many times.
func (p *process) says(t *testing.T, times int, words string) {
	t.Helper()
	for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		said := strings.Count(p.said.String(), words) == times
		p.mu.Unlock()
		if said {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Fatalf("does not say %q %d times: %s", words, times, p.said.String())
}

// connects measures with a listening end, which must go well.
func connects(t *testing.T, address, args string) {
	t.Helper()
	code, out, errs := command(t, "perf --provider left --connect "+address+" "+args)
	if code != exitOK || !strings.Contains(out, "messages verified byte for byte") {
		t.Errorf("%s: exit %d: %s\n%s", args, code, errs, out)
	}
}

// TestListenClosedConnections shows that no number of connections that are closed at once ends a
// listening end, nor do they fill the terminal.
func TestListenClosedConnections(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	for range 1100 {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
	connects(t, address, quick)
	code, _, errs := server.wait(t)
	if lines := strings.Count(errs, "\n"); code != exitOK || lines > 50 ||
		!strings.Contains(errs, "1024 connections so far brought no client") {
		t.Errorf("the listening end: exit %d, %d lines: %s", code, lines, errs)
	}
}

// TestListenServesNext breaks off in every way in which a client can, and then measures.
func TestListenServesNext(t *testing.T) {
	for name, breakOff := range map[string]func(t *testing.T, address string){
		"leaves after the greeting": func(t *testing.T, address string) { greeted(t, address).Close() },
		"says why it goes": func(t *testing.T, address string) {
			greeted(t, address).Fail(errors.New("changed my mind"))
		},
		"does not keep to the protocol": func(t *testing.T, address string) {
			conn := greeted(t, address)
			_ = conn.Send(t.Context(), "noise", nil)
			<-conn.Done()
			conn.Close() // the listening end waits for it
		},
		"asks for the impossible": func(t *testing.T, address string) {
			conn := greeted(t, address)
			_ = conn.Send(t.Context(), "task", json.RawMessage(`{"self":{"nics":["x"]},`+
				`"parameters":{"op":"swim","wait":"poll","nics":1,"qps":1,"depth":1,"tx_depth":1}}`))
			<-conn.Done()
			conn.Close()
		},
		"is interrupted": func(t *testing.T, address string) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run(&console{ctx: ctx, out: &watcher{word: "64 B", found: cancel}, err: io.Discard},
				strings.Fields("perf --provider left --memory 256K --sizes 64,128,256 -D 20ms --connect "+
					address))
		},
		"is of another version": func(t *testing.T, address string) {
			_, err := rendezvous.Start(t.Context(), dial(t, address),
				rendezvous.Config{Protocol: bench.Protocol + "0"})
			if !errors.Is(err, rendezvous.ErrVersion) {
				t.Errorf("error %v, want ErrVersion", err)
			}
		},
		"vanishes in the middle": func(t *testing.T, address string) {
			conn := called(t, address)
			if err := conn.Receive(t.Context(), "column", nil); err != nil {
				t.Error(err)
			}
			conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
			breakOff(t, address)
			server.says(t, 1, "still listening")
			connects(t, address, quick)
			if code, out, errs := server.wait(t); code != exitOK || !strings.Contains(out,
				"messages verified byte for byte") {
				t.Errorf("the listening end: exit %d: %s\n%s", code, errs, out)
			}
		})
	}
}

// TestListenBusy lets a second client come while one is served: it is told so, and measured when it
// comes again later.
func TestListenBusy(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	first := called(t, address)
	code, _, errs := command(t, "perf --provider left --connect "+address+quick)
	if code != exitFailed || !strings.Contains(errs, "busy with another client: try again later") {
		t.Errorf("exit %d: %s", code, errs)
	}
	first.Close()
	server.says(t, 1, "still listening")
	connects(t, address, quick)
	if code, _, errs := server.wait(t); code != exitOK {
		t.Errorf("the listening end: exit %d: %s", code, errs)
	}
}

// TestListenJSON writes a document for each client, whatever became of it.
func TestListenJSON(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --json")
	offered(t, address).Fail(errors.New("changed my mind"))
	server.says(t, 1, "still listening")
	connects(t, address, quick)
	_, out, errs := server.wait(t)
	var got []string
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var doc failed
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%v %d %s", doc.OK, len(doc.Results), doc.Error))
	}
	if want := []string{"false 0 peer: changed my mind", "true 6 "}; !slices.Equal(got, want) {
		t.Errorf("documents %q, want %q; stderr %s", got, want, errs)
	}
}
