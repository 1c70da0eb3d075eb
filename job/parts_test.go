package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/rendezvous"
)

// Rows of any length come out as they went in, and no message is long. They are encoded once for
// all processes.
func TestRowsInParts(t *testing.T) {
	var all [][]byte
	for i, n := range []int{0, 1, partLen - 9, partLen - 1, partLen, partLen + 1, 0, 5, 3 * partLen, 1e5, 0} {
		all = append(all, bytes.Repeat([]byte{byte(i)}, n))
	}
	size := len(all)
	s := &server{place: &Place{Size: size}, calls: 6}
	for rank := range size {
		s.guests = append(s.guests, &guest{Process: Process{Rank: rank}, wake: make(chan struct{}, 1)})
	}
	for rank, row := range all {
		s.contribute(s.guests[rank], &contribution{Seq: 7, Op: "all-gather", Data: row})
	}
	g := &gathering{seq: 7, rows: make([]assembly, size)}
	frames := s.guests[0].out[0].frames
	for i, m := range received(t, frames) {
		var part rows
		if err := m.Decode(&part); err != nil || len(m.Body) > 2*partLen {
			t.Fatalf("%d bytes: %v", len(m.Body), err)
		}
		if complete, ok := g.take(&part); !ok || complete != (i == len(frames)-1) {
			t.Errorf("message %d of %d: complete %v, ok %v", i, len(frames), complete, ok)
		}
	}
	for rank, row := range g.all() {
		if !bytes.Equal(row, all[rank]) {
			t.Errorf("row %d has %d bytes, want %d", rank, len(row), len(all[rank]))
		}
	}
	for _, guest := range s.guests {
		if len(guest.out) != 1 || &guest.out[0].frames[0] != &frames[0] {
			t.Errorf("rank %d is told something of its own", guest.Rank)
		}
	}
}

// However many answers with a value are queued, there is one copy of it until they are written, a
// part at a time.
func TestAnswersShareTheirValue(t *testing.T) {
	a, b := conversing(t, time.Minute, nil)
	s := &server{ctx: t.Context(), place: &Place{Size: 2}, values: newValues(defaultMaxStore)}
	g := &guest{s: s, conn: a, wake: make(chan struct{}, 1), told: make(chan struct{})}
	value := bytes.Repeat([]byte("value"), 1<<20/5)
	const early, all = 100, 200
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for id := range uint64(early) {
		s.values.get(g, &request{ID: id, Key: "k"})
	}
	s.values.put(g, &request{ID: all, Key: "k", Data: value}, len(value), len(value))
	for id := range uint64(all - early) {
		s.values.get(g, &request{ID: early + id, Key: "k"})
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n >= uint64(len(value)) {
		t.Errorf("%d queued answers with a value of %d bytes took %d bytes", all, len(value), n)
	}
	g.out = g.out[:2] // the answer to put comes first
	go g.write()
	var found assembly
	for n := 0; n < 2; {
		var answer answer
		if err := b.Receive(t.Context(), kindAnswer, &answer); err != nil || len(answer.Data) > partLen {
			t.Fatalf("%d bytes: %v", len(answer.Data), err)
		}
		if found.add(answer.Data, len(value)); !answer.More {
			n++
		}
	}
	if !bytes.Equal(found.data, value) {
		t.Errorf("%d other bytes arrive", found.size)
	}
}

// A value that is replaced takes room until the answers with it are written: a process that does
// not read keeps no more of them alive than MaxStore.
func TestReplacedValuesTakeRoom(t *testing.T) {
	a, b := conversing(t, time.Minute, nil)
	const room = entryCost + 1 + 200
	s := &server{ctx: t.Context(), place: &Place{Size: 2}, values: newValues(room)}
	reads := &guest{s: s, conn: a, wake: make(chan struct{}, 1), told: make(chan struct{})}
	puts := &guest{s: s, wake: make(chan struct{}, 1)}
	put := func(says string) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		puts.out = nil
		s.values.put(puts, &request{Key: "k", Data: make([]byte, 100)}, 100, 100)
		m := received(t, puts.out[0].frames)[0]
		if text := string(m.Body); strings.Contains(text, "MaxStore") != (says != "") {
			t.Errorf("%s, want %q", text, says)
		}
	}
	put("")
	put("") // nobody has read the first
	s.values.get(reads, &request{Key: "k"})
	put("")
	put("") // nobody has read the third
	s.values.get(reads, &request{Key: "k"})
	put("no room")
	go reads.write()
	for range 2 {
		if err := b.Receive(t.Context(), kindAnswer, nil); err != nil {
			t.Fatal(err)
		}
	}
	for left := 0; left != room-entryCost-1-100; {
		s.mu.Lock()
		left = s.values.room
		s.mu.Unlock()
		runtime.Gosched()
	}
	put("")
}

// A process that enters a collective call, or gives one up, before all have joined is refused: no
// process of this package does.
func TestCallsBeforeAllHaveJoined(t *testing.T) {
	s := &server{ctx: t.Context(), place: &Place{Size: 2}, guests: make([]*guest, 2), joined: 1}
	g := &guest{Process: Process{Rank: 1}, s: s, wake: make(chan struct{}, 1)}
	s.guests[1] = g
	for _, m := range []rendezvous.Message{
		{Kind: kindGather, Body: []byte(`{"seq":1,"op":"barrier"}`)},
		{Kind: kindQuit, Body: []byte(`{"seq":1,"op":"barrier","late":true}`)},
	} {
		if err := g.handle(m); !errors.Is(err, rendezvous.ErrProtocol) {
			t.Errorf("%s: %v", m.Kind, err)
		}
	}
}

// A process that does not read learns the end of the job, behind which nothing is queued.
func TestNothingBehindTheEnd(t *testing.T) {
	s := &server{ctx: t.Context(), place: &Place{Size: 2}, guests: make([]*guest, 2)}
	g := &guest{Process: Process{Rank: 1}, s: s, wake: make(chan struct{}, 1)}
	s.guests[1] = g
	for n := range 3 * maxQueue {
		if n == maxQueue/2 {
			s.failLocked(ErrFailed)
		}
		g.send(kindAlive, nil)
	}
	if n := len(g.out); n != maxQueue/2+1 || g.out[n-1].kind != kindEnd {
		t.Errorf("the last of %d messages is %q", n, g.out[n-1].kind)
	}

	*s = server{ctx: t.Context(), place: s.place, guests: s.guests}
	*g = guest{Process: g.Process, s: s, wake: g.wake}
	for range 3 * maxQueue { // which fails the job
		g.send(kindAlive, nil)
	}
	if n := len(g.out); n != 1 || g.out[0].kind != kindEnd {
		t.Errorf("the first of %d messages is %q", n, g.out[0].kind)
	}
}

// received is what a peer receives of some frames.
func received(t *testing.T, frames []rendezvous.Frame) (all []rendezvous.Message) {
	t.Helper()
	a, b := conversing(t, time.Minute, nil)
	go func() {
		for _, f := range frames {
			if err := a.SendFrame(t.Context(), f); err != nil {
				t.Error(err)
			}
		}
	}()
	for range frames {
		m, err := b.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// conversing is the two ends of a conversation. What the first one sends passes through slow.
func conversing(t *testing.T, timeout time.Duration, slow func(net.Conn) net.Conn) (a, b *rendezvous.Conn) {
	t.Helper()
	ncA, ncB := net.Pipe()
	if slow != nil {
		ncA = slow(ncA)
	}
	began := make(chan error, 1)
	go func() {
		var err error
		a, err = rendezvous.Start(t.Context(), ncA, rendezvous.Config{Timeout: time.Hour})
		began <- err
	}()
	b, err := rendezvous.Start(t.Context(), ncB, rendezvous.Config{Timeout: timeout, Greeting: time.Hour})
	if err = errors.Join(err, <-began); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

// Rows that nobody has asked for, or that do not fit, are refused.
func TestRowsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"another call":      `{"seq":6,"first":0,"data":["AA=="]}`,
		"a row left out":    `{"seq":7,"first":1,"data":["AA=="]}`,
		"a negative row":    `{"seq":7,"first":-1,"data":["AA=="]}`,
		"too many":          `{"seq":7,"first":0,"data":["","","",""]}`,
		"none":              `{"seq":7,"first":0,"data":[],"more":true}`,
		"more, and nothing": `{"seq":7,"first":0,"more":true}`,
	} {
		var part rows
		if err := json.Unmarshal([]byte(text), &part); err != nil {
			t.Fatal(err)
		}
		m := &member{gathers: &gathering{seq: 7, rows: make([]assembly, 3)}}
		if err := m.take(&part); !errors.Is(err, rendezvous.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		m.gathers = nil
		if err := m.take(&part); !errors.Is(err, rendezvous.ErrProtocol) {
			t.Errorf("%s, after the call: %v", name, err)
		}
	}
}

// dripping is a connection that takes its time for each byte.
type dripping struct {
	net.Conn
	pause time.Duration
}

func (d *dripping) Write(p []byte) (n int, err error) {
	for n = 0; n < len(p) && err == nil; n++ {
		_, err = d.Conn.Write(p[n : n+1])
		time.Sleep(d.pause)
	}
	return n, err
}

// A process of which any byte comes is alive, however long its message takes. Once nothing comes it
// is dead.
func TestAnyByteIsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Second
		a, b := conversing(t, patience, func(nc net.Conn) net.Conn { return &dripping{nc, patience * 3 / 4} })
		go func() {
			for range 2 {
				if err := a.Send(context.Background(), kindAlive, nil); err != nil {
					t.Error(err)
				}
			}
		}()
		began, messages := time.Now(), 0
		err := heed(b, patience, func(rendezvous.Message) error {
			messages++
			return nil
		})
		if took := time.Since(began); messages != 2 || !errors.Is(err, ErrDied) || took < 20*patience {
			t.Errorf("%d messages, and after %v: %v", messages, took, err)
		}
	})
}

// An answer that has come counts, also where the context and the job end at the same time.
func TestAnswerThatHasCome(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := &member{gone: make(chan struct{})}
	close(m.gone)
	complete := make(chan struct{})
	close(complete)
	for range 100 {
		if _, err := awaited(ctx, m, complete); err != nil {
			t.Fatal(err)
		}
	}
}

// The list of as many processes as a job may have arrives whole, however long the names of their
// hosts are, and no message of it is long.
func TestListInParts(t *testing.T) {
	t.Parallel() // others wait meanwhile
	all := make([]Process, maxSize)
	for rank := range all {
		all[rank] = Process{rank, strings.Repeat("&", maxHost), 4194304} // which JSON makes six times as long
	}
	m := &member{place: &Place{Size: maxSize}, list: make(chan []Process, 1)}
	for _, msg := range received(t, encodeList(all)) {
		if most := conversation(m.place, &m.cfg).MaxMessage; len(msg.Body) > most-100 {
			t.Fatalf("%d bytes, want %d at most", len(msg.Body), most)
		}
		if err := m.handle(msg); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-m.list; !slices.Equal(got, all) {
		t.Errorf("%d processes arrive", len(got))
	}
	more := received(t, encodeList(all[:1]))[0]
	if err := m.handle(more); !errors.Is(err, rendezvous.ErrProtocol) {
		t.Errorf("one more than all: %v", err)
	}
}

// A stranger that is told so, and does not hang up, holds no place. If too many are being told, the
// next one is not.
func TestDismissedHoldNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{ctx: t.Context(), place: &Place{Size: 2}, dismissed: make(chan struct{}, 1),
			cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
		for _, want := range []string{"does not know the name", "has closed the conversation"} {
			a, b := conversing(t, time.Minute, nil)
			if err := b.Send(t.Context(), kindJoin, hello{Proof: "none"}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if s.greet(a, make(chan struct{})); time.Since(began) > parting {
				t.Errorf("it has its place for %v", time.Since(began))
			}
			if _, err := b.Next(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("it is told %v, want %q", err, want)
			}
		}
		s.all.Wait()
	})
}
