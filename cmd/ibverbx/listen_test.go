package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/internal/tcptest"
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
	if err := conn.Receive(t.Context(), "offer", nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

// asked is a client that waits for its turn.
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

// called is a client whose turn has come.
func called(t *testing.T, address string) *rendezvous.Conn {
	t.Helper()
	for conn := asked(t, address); ; {
		m, err := conn.ReceiveAny(t.Context(), "accept", "wait")
		if err != nil {
			t.Fatal(err)
		}
		if m.Kind == "accept" {
			return conn
		}
	}
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

// TestListenSilentStrangers connects silent strangers before a client,
// which must not wait for them.
func TestListenSilentStrangers(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	for range 6 {
		dial(t, address)
	}
	connects(t, address, "--timeout 20s"+quick)
	if code, out, errs := server.wait(t); code != exitOK || !strings.Contains(out, "verified byte for byte") {
		t.Errorf("the listening end: exit %d: %s\n%s", code, errs, out)
	}
}

// TestListenMoreStrangersThanGreeted shows that strangers who stay do not use up the places in
// which clients are greeted: the one that has been silent longest makes room.
func TestListenMoreStrangersThanGreeted(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --timeout 1m")
	for range maxGreeted + 10 {
		dial(t, address)
	}
	connects(t, address, "--timeout 20s"+quick)
	if code, _, errs := server.wait(t); code != exitOK {
		t.Errorf("the listening end: exit %d: %s", code, errs)
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
		},
		"asks for the impossible": func(t *testing.T, address string) {
			conn := greeted(t, address)
			_ = conn.Send(t.Context(), "task", json.RawMessage(`{"self":{"nics":["x"]},`+
				`"parameters":{"op":"swim","wait":"poll","nics":1,"qps":1,"depth":1,"tx_depth":1}}`))
			<-conn.Done()
		},
		"is interrupted": func(t *testing.T, address string) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run(&console{ctx: ctx, out: &watcher{word: "64 B", found: cancel}, err: io.Discard},
				strings.Fields("perf --provider left --sizes 64,128,256 -D 100ms --connect "+address))
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

// TestListenKeep serves one client after another, those that break off among them,
// until it is interrupted.
func TestListenKeep(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --keep")
	connects(t, address, quick)
	greeted(t, address).Close()
	connects(t, address, "--op send"+quick)
	connects(t, address, "--op read --mode lat"+quick)
	server.says(t, 4, "still listening")
	server.cancel()
	code, out, errs := server.wait(t)
	if n := strings.Count(out, "messages verified byte for byte"); code != exitInterrupted || n != 3 {
		t.Errorf("exit %d, %d tables: %s\n%s", code, n, errs, out)
	}
	for _, want := range []string{"RDMA write bandwidth", "send bandwidth", "RDMA read latency"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestListenKeepJSON writes a document for each client, whatever became of it.
func TestListenKeepJSON(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --keep --json")
	connects(t, address, quick)
	offered(t, address).Fail(errors.New("changed my mind"))
	server.says(t, 2, "still listening")
	connects(t, address, quick)
	server.says(t, 3, "still listening")
	server.cancel()
	_, out, errs := server.wait(t)
	var got []string
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var doc failed
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%v %d %s", doc.OK, len(doc.Results), doc.Error))
	}
	want := []string{"true 6 ", "false 0 peer: changed my mind", "true 6 ",
		"false 0 interrupted while no client was there"}
	if !slices.Equal(got, want) {
		t.Errorf("documents %q, want %q; stderr %s", got, want, errs)
	}
}

// TestListenManyClients lets many clients come at a time: each is greeted, told that it waits, and
// measured when it is its turn.
func TestListenManyClients(t *testing.T) {
	const clients = 5
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --keep")
	var all sync.WaitGroup
	var mu sync.Mutex
	waited := 0
	for range clients {
		all.Go(func() {
			var out, errs bytes.Buffer
			args := "perf --provider left --timeout 20s -s 64 --scheme single -D 200ms --connect " + address
			code := run(&console{ctx: t.Context(), out: &out, err: &errs}, strings.Fields(args))
			if code != exitOK || !strings.Contains(out.String(), "messages verified byte for byte") {
				t.Errorf("exit %d: %s\n%s", code, errs.String(), out.String())
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(errs.String(), "waiting") {
				waited++
			}
		})
	}
	all.Wait()
	server.says(t, clients, "measured; still listening")
	server.cancel()
	if _, out, errs := server.wait(t); strings.Count(out, "verified byte for byte") != clients {
		t.Errorf("the listening end: %s\n%s", errs, out)
	}
	if waited == 0 {
		t.Error("no client was told that it waits")
	}
}

// TestListenDismisses lets a client wait behind one that is served: without --keep it is told that
// it is not served.
func TestListenDismisses(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	first := called(t, address)
	second := asked(t, address)
	if err := second.Receive(t.Context(), "wait", nil); err != nil {
		t.Fatal(err)
	}
	server.cancel()
	<-second.Done()
	first.Close()
	var said *rendezvous.PeerError
	if err := second.Err(); !errors.As(err, &said) || !strings.Contains(said.Text, "has stopped listening") {
		t.Errorf("error %v", err)
	}
	if code, _, errs := server.wait(t); code != exitInterrupted {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// TestListenQueueIsBounded shows that a client for which there is no place is told so. Which one it
// is of those that come at the same time is open.
func TestListenQueueIsBounded(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --keep")
	first := called(t, address)
	ended := make(chan *rendezvous.Conn, maxWaiting+1)
	for range maxWaiting + 1 {
		conn := asked(t, address)
		go func() {
			<-conn.Done()
			ended <- conn
		}()
	}
	refused := <-ended
	first.Close()
	var said *rendezvous.PeerError
	if err := refused.Err(); !errors.As(err, &said) || !strings.Contains(said.Text, "try again later") {
		t.Errorf("error %v", err)
	}
	server.cancel()
	server.wait(t)
}

// TestListenSilentClients lets clients greet, and say nothing then: one that says what it wants is
// measured meanwhile, and each of the others is told why it is not.
func TestListenSilentClients(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right --keep --timeout 8s")
	var silent []*rendezvous.Conn
	for range 4 {
		silent = append(silent, offered(t, address))
	}
	start := time.Now()
	connects(t, address, quick)
	if took := time.Since(start); took > greeting-time.Second {
		t.Errorf("it was measured after %v", took)
	}
	for _, conn := range silent {
		<-conn.Done()
		var said *rendezvous.PeerError
		if err := conn.Err(); !errors.As(err, &said) || !strings.Contains(said.Text, `message "task"`) {
			t.Errorf("error %v", err)
		}
		conn.Close()
	}
	if took := time.Since(start); took > 2*greeting {
		t.Errorf("they were told after %v", took)
	}
	server.says(t, 5, "still listening")
	server.cancel()
	server.wait(t)
}

// TestListenDeparturesAreBounded shows that clients that go before they are measured do not add up.
func TestListenDeparturesAreBounded(t *testing.T) {
	var said strings.Builder
	l := &listener{c: &console{err: &said}, news: make(chan struct{}, 1)}
	ncA, ncB := tcptest.Pair(t)
	go func() { _, _ = rendezvous.Start(t.Context(), ncB, rendezvous.Config{}) }()
	conn, err := rendezvous.Start(t.Context(), ncA, rendezvous.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range maxWaiting + 3 {
		l.depart(departure{conn, rendezvous.ErrGone})
	}
	if len(l.gone) != maxWaiting || l.strange != 3 || strings.Count(said.String(), "still listening") != 3 {
		t.Errorf("%d are kept, %d strangers: %s", len(l.gone), l.strange, said.String())
	}
	conn.Close()
}
