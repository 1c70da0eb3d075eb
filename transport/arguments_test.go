package transport_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Bad arguments are refused at once with an error that names the argument; no credit is consumed.
func TestContract16BadArgumentsAreRefused(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		a := l.a
		lim := a.Limits()
		comp := transport.NewCompletion(1, nil)
		foreign := newLink(t, setup{}).a.mr
		closed, err := a.w.Domain().Register(make([]byte, 64), verbs.AccessAll)
		must(t, err)
		piece := closed.All()
		must(t, closed.Close())
		big := make([]byte, 1<<20)
		at := a.peer.At
		for _, c := range []struct {
			name string
			call func() error
			is   error
			says string
		}{
			{"am short, too long", func() error { return a.AMShort(1, nil, big[:lim.AMShort+1]) },
				transport.ErrTooLong, fmt.Sprint(lim.AMShort)},
			{"am short, header too long",
				func() error { return a.AMShort(1, big[:transport.MaxHeader+1], nil) }, transport.ErrTooLong,
				"header"},
			{"am short, unknown id", func() error { return a.AMShort(2, nil, nil) }, transport.ErrNoHandler,
				"id 2"},
			{"am short, id beyond all", func() error { return a.AMShort(255, nil, nil) },
				transport.ErrNoHandler, "id 255"},
			{"am bcopy, unknown id", func() error { return only(a.AMBcopy(63, nil, pack(nil))) },
				transport.ErrNoHandler, "id 63"},
			{"am bcopy, header too long",
				func() error { return only(a.AMBcopy(1, big[:65], pack(nil))) },
				transport.ErrTooLong, "header"},
			{"am bcopy, pack boasts", func() error {
				return only(a.AMBcopy(1, nil, func(dst []byte) int { return len(dst) + 1 }))
			}, transport.ErrTooLong, "pack"},
			{"am bcopy, pack of less than nothing", func() error {
				return only(a.AMBcopy(1, nil, func([]byte) int { return -1 }))
			}, transport.ErrTooLong, "pack"},
			{"am bcopy, no function", func() error { return only(a.AMBcopy(1, nil, nil)) }, verbs.ErrInvalid,
				"no pack function"},
			{"put bcopy, no function", func() error { return only(a.PutBcopy(nil, at(0))) }, verbs.ErrInvalid,
				"no pack function"},
			{"flush, unknown kind",
				func() error { return only(a.StartFlush(transport.FlushRemote+1, comp)) },
				verbs.ErrInvalid, "have local (0) and remote (1)"},
			{"am zcopy, too long",
				func() error {
					err := a.AMZcopy(comp, 1, nil,
						a.mr.Slice(0, uint64(lim.AMZcopy+1)))
					return err
				}, transport.ErrTooLong, fmt.Sprintf("payload have more than the %d bytes", lim.AMZcopy)},
			{"am zcopy, unknown id",
				func() error { return a.AMZcopy(comp, 9, nil, a.mr.Slice(0, 1)) },
				transport.ErrNoHandler, "id 9"},
			{"am zcopy, too many pieces", func() error {
				err := a.AMZcopy(comp, 1, nil, slices.Repeat([]ibverbx.Segment{a.mr.Slice(0, 1)},
					lim.Pieces+1)...)
				return err
			}, verbs.ErrInvalid, "pieces"},
			{"am zcopy, beyond the region",
				func() error {
					err := a.AMZcopy(comp, 1, nil,
						a.mr.Slice(uint64(len(a.mem))-1, 2))
					return err
				}, ibverbx.ErrBounds, ""},
			{"put short, too long", func() error { return a.PutShort(big[:lim.PutShort+1], at(0)) },
				transport.ErrTooLong, fmt.Sprint(lim.PutShort)},
			{"put short, overrun", func() error { return a.PutShort(big[:9], a.peer.Slice(0, 8)) },
				ibverbx.ErrBounds, ""},
			{"put short, beyond the region",
				func() error { return a.PutShort(big[:9], a.peer.Slice(uint64(len(a.mem))-8, 9)) },
				ibverbx.ErrBounds, ""},
			{"put short, no memory", func() error { return a.PutShort(big[:9], ibverbx.RemoteSegment{}) },
				ibverbx.ErrNoKey, ""},
			{"put bcopy, pack boasts", func() error {
				return only(a.PutBcopy(func(dst []byte) int { return len(dst) + 1 }, at(0)))
			}, transport.ErrTooLong, "pack"},
			{"put bcopy, overrun",
				func() error { return only(a.PutBcopy(pack(big[:9]), a.peer.Slice(0, 8))) },
				ibverbx.ErrBounds, ""},
			{"put zcopy, overrun",
				func() error {
					return only(a.PutZcopy(comp, at(uint64(len(a.mem))-1), a.mr.Slice(0, 2)))
				}, ibverbx.ErrBounds, ""},
			{"put zcopy, beyond the region",
				func() error {
					return only(a.PutZcopy(comp, at(0), a.mr.Slice(0, uint64(len(a.mem))+1)))
				}, ibverbx.ErrBounds, ""},
			{"put zcopy, not registered",
				func() error {
					return only(a.PutZcopy(comp, at(0), ibverbx.Segment{Addr: 4096, Length: 1}))
				}, ibverbx.ErrNoKey, ""},
			{"put zcopy, lengths that wrap", func() error {
				return only(a.PutZcopy(comp, at(0), a.mr.Slice(0, 1<<63), a.mr.Slice(0, 1<<63)))
			}, ibverbx.ErrBounds, ""},
			{"get bcopy, too long",
				func() error { return only(a.GetBcopy(comp, big[:lim.GetBcopy+1], at(0))) },
				transport.ErrTooLong, fmt.Sprint(lim.GetBcopy)},
			{"get bcopy, overrun",
				func() error { return only(a.GetBcopy(comp, big[:9], a.peer.Slice(0, 8))) },
				ibverbx.ErrBounds, ""},
			{"get zcopy, overrun",
				func() error { return only(a.GetZcopy(comp, a.peer.Slice(0, 8), a.mr.Slice(0, 9))) },
				ibverbx.ErrBounds, ""},
			{"get zcopy, lengths that wrap", func() error {
				return only(a.GetZcopy(comp, at(0), a.mr.Slice(0, 1<<63), a.mr.Slice(0, 1<<63)))
			}, ibverbx.ErrBounds, ""},
			{"fetch add, misaligned", func() error { return a.FetchAdd(comp, nil, at(4), 1) },
				ibverbx.ErrAlignment, ""},
			{"fetch add, overrun",
				func() error { return a.FetchAdd(comp, nil, a.peer.Slice(0, 7), 1) },
				ibverbx.ErrBounds, ""},
			{"compare swap, misaligned",
				func() error { return a.CompareSwap(comp, nil, at(1), 1, 2) },
				ibverbx.ErrAlignment, ""},
		} {
			before, worker := a.Stats(), a.w.Stats()
			err := c.call()
			var refusal *transport.OpError
			if !errors.Is(err, c.is) || !errors.As(err, &refusal) {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			op, _, _ := strings.Cut(c.name, ",")
			if refusal.Op != op || refusal.Peer != "peer b" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: the error reads %q", c.name, err)
			}
			if after := a.Stats(); after != before {
				t.Errorf("%s: %+v, was %+v", c.name, after, before)
			}
			if after := a.w.Stats(); after != worker {
				t.Errorf("%s: %+v, was %+v", c.name, after, worker)
			}
		}
		if s.single() { // several take any number
			_, err := a.PutZcopy(comp, at(0), slices.Repeat([]ibverbx.Segment{a.mr.Slice(0, 1)}, 80)...)
			if !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("put zcopy of 80 pieces: %v", err)
			}
		}
		// Closed memory, and memory that is not registered on every NIC, is refused at once; a
		// single queue pair leaves that to its NIC.
		if _, err := a.PutZcopy(comp, at(0), piece); err == nil && !s.single() {
			t.Error("put zcopy from a closed region was not refused")
		}
		if !s.single() && s.nics == 2 {
			if _, err := a.PutZcopy(comp, at(0), foreign.All()); !errors.Is(err, ibverbx.ErrNoKey) {
				t.Errorf("put zcopy from memory of another domain, registered on one NIC of two: %v", err)
			}
		}
		if !s.single() && comp.Fired() {
			t.Error("a refused operation counted on the completion")
		}
	})
}

// A completion that counts nothing is refused by the call that gets it: inside progress it would be
// counted below zero.
func TestCompletionsThatCountNothingAreRefused(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		var zero transport.Completion
		fired := transport.NewCompletion(1, nil)
		fired.Done(nil)
		for _, comp := range []*transport.Completion{&zero, fired} {
			_, put := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			_, get := l.a.GetBcopy(comp, make([]byte, 8), l.a.peer.At(0))
			am := l.a.AMZcopy(comp, 1, nil, l.a.mr.Slice(0, 8))
			add := l.a.FetchAdd(comp, nil, l.a.peer.At(0), 1)
			for call, err := range map[string]error{"put": put, "get": get, "am": am, "fetch add": add} {
				if !errors.Is(err, verbs.ErrInvalid) {
					t.Errorf("%s: %v", call, err)
				}
			}
		}
		if s := l.a.w.Stats(); s.BounceFree != s.BounceTotal || l.a.Stats().Outstanding != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Close returns when its context ends, even while a callback holds progress up.
func TestCloseKeepsToItsContext(t *testing.T) {
	s := shapes()[0]
	block, blocked := make(chan struct{}), make(chan struct{})
	s.handle = func(*transport.Message) { close(blocked); <-block }
	l := newLink(t, s)
	must(t, l.b.w.Start())
	must(t, l.a.AMShort(1, nil, nil))
	<-blocked
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := l.b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(block)
}
