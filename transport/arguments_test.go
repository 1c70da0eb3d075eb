package transport_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
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

// Puts and gets take any number of pieces; over a single queue pair as many as it takes.
func TestPutsAndGetsTakeManyPieces(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		const pieces, size = 40, 100
		var local []ibverbx.Segment
		for i := range uint64(pieces) {
			local = append(local, l.a.mr.Slice(i*2*size, size), l.a.mr.Slice(0, 0))
		}
		_, err := l.a.PutZcopy(nil, l.a.peer.At(0), local...)
		if s.single() {
			if !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("80 pieces: %v, want them refused", err)
			}
			return
		}
		must(t, err)
		l.flushed(l.a)
		for i := range pieces {
			landed(t, "piece that was put", l.b.mem[i*size:(i+1)*size], l.a.mem[i*2*size:i*2*size+size])
		}
		comp := transport.NewCompletion(1, nil)
		if _, err := l.a.GetZcopy(comp, l.a.peer.At(30000), local...); err != nil {
			t.Fatal(err)
		}
		l.until("the get", comp.Fired)
		for i := range pieces {
			landed(t, "piece that was got", l.a.mem[i*2*size:i*2*size+size],
				l.b.mem[30000+i*size:30000+(i+1)*size])
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

// Configurations that no queue pair can have, and no domain, are refused by name.
func TestImpossibleWorkers(t *testing.T) {
	w := newWorld(t, soft.Config{})
	dom, err := ibverbx.NewDomain(w.fabric.Device(0))
	must(t, err)
	w.domains = append(w.domains, dom)
	for name, cfg := range map[string]ibverbx.Config{
		"QPsPerDevice": {QPsPerDevice: -1}, "MaxSGE": {MaxSGE: -1}, "Credits": {Credits: -1},
		"MaxInline": {MaxInline: -1},
	} {
		if _, err := transport.NewWorker(dom, transport.Config{QP: cfg}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s -1: %v", name, err)
		}
	}
	if _, err := transport.NewWorker(nil, transport.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no domain: %v", err)
	}
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

// A call that is refused, or whose post the NIC refuses, returns no bytes and keeps no buffer.
func TestRefusedPackCallsHaveNoEffect(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		before := l.a.w.Stats()
		for name, call := range map[string]func(pack func([]byte) int) (int, error){
			"put": func(pack func([]byte) int) (int, error) { return l.a.PutBcopy(pack, l.a.peer.At(0)) },
			"am":  func(pack func([]byte) int) (int, error) { return l.a.AMBcopy(1, nil, pack) },
		} {
			if n, err := call(nil); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s without a pack function: %d, %v", name, n, err)
			}
			func() {
				defer func() { _ = recover() }()
				n, err := call(func([]byte) int { panic("pack") })
				t.Errorf("%s: %d, %v", name, n, err)
			}()
			if n, err := call(func([]byte) int { return -1 }); n > 0 || err == nil {
				t.Errorf("%s of -1 bytes: %d, %v", name, n, err)
			}
		}
		if after := l.a.w.Stats(); after.BounceFree != before.BounceFree || after.AMSent != before.AMSent ||
			after.Puts != before.Puts || l.a.Stats().OwnBuffers != 2 || l.a.Stats().Outstanding != 0 {
			t.Errorf("before %+v, after %+v", before, after)
		}
		for range 3 { // the buffers are as good as new
			l.send(l.a, []byte{1, 2, 3})
		}
		l.until("the messages", func() bool { return l.got == 3 })
	})
}

// What a single queue pair refuses for now is not sent: the call says so, and may be made again.
func TestRefusedForNowIsNotSent(t *testing.T) {
	s := shapes()[0]
	if !s.single() {
		t.Fatal("the first shape has several queue pairs")
	}
	l := newLink(t, s)
	data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	for name, call := range map[string]func() error{
		"am short":  func() error { return l.a.AMShort(1, nil, data) },
		"am bcopy":  func() error { _, err := l.a.AMBcopy(1, nil, pack(data)); return err },
		"am zcopy":  func() error { return l.a.AMZcopy(nil, 1, nil, l.a.mr.Slice(0, 8)) },
		"put short": func() error { return l.a.PutShort(data, l.a.peer.At(0)) },
		"put bcopy": func() error { _, err := l.a.PutBcopy(pack(data), l.a.peer.At(0)); return err },
		"put zcopy": func() error {
			_, err := l.a.PutZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			return err
		},
		"get bcopy": func() error {
			_, err := l.a.GetBcopy(nil, make([]byte, 8), l.a.peer.At(0))
			return err
		},
		"get zcopy": func() error {
			_, err := l.a.GetZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			return err
		},
		"fetch add": func() error { return l.a.FetchAdd(nil, nil, l.a.peer.At(0), 1) },
	} {
		before, mine := l.a.w.Stats(), l.a.Stats()
		fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.RefuseSend})
		err := call()
		if after, now := l.a.w.Stats(), l.a.Stats(); !errors.Is(err, transport.ErrNoResource) ||
			after.SentBytes != before.SentBytes || after.BounceFree != before.BounceFree || now != mine {
			t.Errorf("%s: %v; before %+v, after %+v", name, err, mine, now)
		}
		fault.Remove()
		if err := call(); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
		l.flushed(l.a)
	}
}

// Progress returns how much it did: whenever it ran a callback, that is not nothing.
func TestProgressCountsCallbacks(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		ran := 0
		s.handle = func(*transport.Message) { ran++ }
		l := newLink(t, s)
		for want := range 5 {
			l.send(l.a, nil)
			for ran <= want {
				l.a.w.Progress()
				if s.stepped {
					l.fabric.Step()
				}
				before := ran
				if n := l.b.w.Progress(); n < ran-before {
					t.Fatalf("%d messages were handled, and Progress did %d", ran-before, n)
				}
				runtime.Gosched()
			}
		}
	})
}

// An endpoint is aborted once, also while the first call's callbacks are still to come.
func TestAbortTwice(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
		must(t, l.a.Abort(nil))
		for range 2 {
			if err := l.a.Abort(nil); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("aborted twice: %v", err)
			}
			l.a.w.Progress()
		}
	})
}
