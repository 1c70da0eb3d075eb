package processes_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/rendezvous"
)

// newTestTable makes a table and the connections of all members, which have said hello.
func newTestTable(t *testing.T, members int, kill func(rank int)) (*table, []*tableConn, []context.Context) {
	t.Helper()
	tb, err := newTable(members, "token", kill)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tb.close)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	conns, ctxs := make([]*tableConn, members), make([]context.Context, members)
	for rank := range conns {
		if ctxs[rank], conns[rank], err = dialTable(ctx, tb.addr(), "token", rank); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conns[rank].leave("") }) // some have left before
	}
	return tb, conns, ctxs
}

// In each gather all members get the data of all, by rank. Dead members have none and are not
// waited for.
func TestTableGathers(t *testing.T) {
	died := make(chan int, 1)
	_, conns, ctxs := newTestTable(t, 3, func(rank int) { died <- rank })
	gather := func(n int, want ...string) {
		t.Helper()
		got := make(chan [][]byte, n)
		for rank := range n {
			go func() {
				all, err := conns[rank].gather(ctxs[rank], []byte{byte('a' + rank)})
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
	if err := conns[2].conn.Send(t.Context(), kindKill, nil); err != nil {
		t.Fatal(err)
	}
	if rank := <-died; rank != 2 {
		t.Errorf("member %d was killed, want 2", rank)
	}
	gather(2, "a", "b", "")
}

// A member that disconnects without goodbye fails the team: the contexts of the others end with an
// error that names it.
func TestTableReportsAMemberThatIsGone(t *testing.T) {
	_, conns, ctxs := newTestTable(t, 3, nil)
	if err := conns[0].leave(kindBye); err != nil {
		t.Fatal(err)
	}
	if err := conns[1].leave(""); err != nil {
		t.Fatal(err)
	}
	if _, err := conns[2].gather(ctxs[2], nil); err == nil ||
		!strings.Contains(err.Error(), "member 1 has gone") {
		t.Errorf("gather: %v, want that member 1 has gone", err)
	}
}

// A client with a wrong token, with the rank of another member or with none is refused. The team
// goes on.
func TestTableRefusesStrangers(t *testing.T) {
	tb, conns, ctxs := newTestTable(t, 1, nil)
	if _, err := conns[0].gather(ctxs[0], nil); err != nil { // it has its place
		t.Fatal(err)
	}
	if _, _, err := dialTable(t.Context(), tb.addr(), "x", 0); !errors.Is(err, rendezvous.ErrVersion) {
		t.Errorf("wrong token: error %v", err)
	}
	for name, rank := range map[string]any{"taken rank": 0, "no such rank": 7, "negative": -1, "none": "x"} {
		c, err := rendezvous.Dial(t.Context(), tb.addr(), tableConfig("token"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), kindHello, rank); err != nil {
			t.Error(err)
		}
		<-c.Done()
		var said *rendezvous.PeerError
		if !errors.As(c.Err(), &said) {
			t.Errorf("%s: the conversation ends with %v", name, c.Err())
		}
		c.Close()
	}
	if all, err := conns[0].gather(ctxs[0], []byte("mine")); err != nil || len(all) != 1 ||
		string(all[0]) != "mine" {
		t.Errorf("gather: %q, %v", all, err)
	}
}
