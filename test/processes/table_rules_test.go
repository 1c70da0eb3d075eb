package processes_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// newTestTable is a table and the places of its members, who have all said hello.
func newTestTable(t *testing.T, members int, kill func(rank int)) (*table, []*place, []context.Context) {
	t.Helper()
	tb, err := newTable(members, "token", kill)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tb.close)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	places, ctxs := make([]*place, members), make([]context.Context, members)
	for rank := range places {
		if ctxs[rank], places[rank], err = sitDown(ctx, tb.addr(), "token", rank); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = places[rank].leave("") }) // some have left
	}
	return tb, places, ctxs
}

// Everybody gets what all have laid down, in the order of the members, round by round; the dead lay
// nothing down, and nobody waits for them.
func TestTableHandsOutWhatAllHaveLaidDown(t *testing.T) {
	died := make(chan int, 1)
	_, places, ctxs := newTestTable(t, 3, func(rank int) { died <- rank })
	gather := func(n int, want ...string) {
		t.Helper()
		got := make(chan [][]byte, n)
		for rank := range n {
			go func() {
				all, err := places[rank].gather(ctxs[rank], []byte{byte('a' + rank)})
				if err != nil {
					t.Error(err)
				}
				got <- all
			}()
		}
		for range n {
			if all := <-got; string(bytes.Join(all, []byte(","))) != strings.Join(want, ",") ||
				len(all) != 3 {
				t.Errorf("got %q, want %q", all, want)
			}
		}
	}
	gather(3, "a", "b", "c")
	gather(3, "a", "b", "c")
	if err := writeNote(places[2].conn, &note{Kind: noteKill}); err != nil {
		t.Fatal(err)
	}
	if rank := <-died; rank != 2 {
		t.Errorf("member %d was killed, want 2", rank)
	}
	gather(2, "a", "b", "")
}

// A member whose connection ends before it has said goodbye fails the team: the others' contexts
// end with its number.
func TestTableTellsOfAMemberThatHasGone(t *testing.T) {
	_, places, ctxs := newTestTable(t, 3, nil)
	if err := places[0].leave(noteBye); err != nil {
		t.Fatal(err)
	}
	if err := places[1].leave(""); err != nil {
		t.Fatal(err)
	}
	if _, err := places[2].gather(ctxs[2], nil); err == nil ||
		!strings.Contains(err.Error(), "member 1 has gone") {
		t.Errorf("gather: %v, want that member 1 has gone", err)
	}
}

// Who does not know the token, takes a place twice, or writes what is no note is turned away, and
// the team goes on.
func TestTableTurnsStrangersAway(t *testing.T) {
	tb, places, ctxs := newTestTable(t, 1, nil)
	if _, err := places[0].gather(ctxs[0], nil); err != nil { // it has its place
		t.Fatal(err)
	}
	oversized := binary.LittleEndian.AppendUint32(nil, maxNote+1)
	for name, write := range map[string]func(c net.Conn) error{
		"wrong token": func(c net.Conn) error { return writeNote(c, &note{Kind: noteHello, Token: "x"}) },
		"taken place": func(c net.Conn) error { return writeNote(c, &note{Kind: noteHello, Token: "token"}) },
		"no such place": func(c net.Conn) error {
			return writeNote(c, &note{Kind: noteHello, Token: "token", Rank: 7})
		},
		"too long": func(c net.Conn) error { _, err := c.Write(oversized); return err },
	} {
		c, err := net.Dial("tcp", tb.addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.SetDeadline(time.Now().Add(20*time.Second)), write(c)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: read %d bytes, %v; want the connection closed", name, n, err)
		}
		c.Close()
	}
	if all, err := places[0].gather(ctxs[0], []byte("mine")); err != nil || len(all) != 1 ||
		string(all[0]) != "mine" {
		t.Errorf("gather: %q, %v", all, err)
	}
}
