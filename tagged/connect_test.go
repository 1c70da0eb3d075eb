package tagged_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// TestCard: a card travels as JSON; an endpoint that is closed has none.
func TestCard(t *testing.T) {
	r := newRig(t, 2, 2, tagged.Config{MaxUnexpected: 77})
	a, b := r.endpoint(0, tagged.EndpointConfig{Value: 5}), r.endpoint(1, tagged.EndpointConfig{})
	if _, err := a.Send(1, nil); !errors.Is(err, tagged.ErrNotConnected) {
		t.Error(err)
	}
	card, err := b.Card()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	var read tagged.Card
	if err := json.Unmarshal(text, &read); err != nil || read.MaxUnexpected != 77 ||
		!reflect.DeepEqual(read.Transport.QP, card.Transport.QP) {
		t.Fatalf("%v, %s", err, text)
	}
	mine, err := a.Card()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Connect(read), b.Connect(mine)); err != nil {
		t.Fatal(err)
	}
	if a.Value() != 5 || a.Worker() != r.workers[0] || r.workers[0].Config().MaxUnexpected != 77 {
		t.Error(a.Value())
	}
	ctx := background(r)
	if err := a.SendWait(ctx, 1, []byte("x")); err != nil {
		t.Error(err)
	}
	if err := a.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal([]tagged.Card{card, {}}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an empty place in a list of cards: %v", err)
	}
	if _, err := a.Card(); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	if err := a.Connect(read); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	if _, err := a.Send(1, nil); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
}

// TestBadArguments: nil arguments and bad configurations are refused.
func TestBadArguments(t *testing.T) {
	r := newRig(t, 1, 1, tagged.Config{})
	e := r.endpoint(0, tagged.EndpointConfig{})
	var none context.Context
	posted := r.recv(r.workers[0], 2, tagged.Exact)
	newWorker := func(cfg tagged.Config) error {
		_, err := tagged.NewWorker(r.domains[0], cfg) // it leaves nothing open
		return err
	}
	for name, err := range map[string]error{
		"nothing, endpoint": tagged.Connect(nil, e),
		"endpoint, nothing": tagged.Connect(e, nil),
		"nothing, nothing":  tagged.Connect(nil, nil),
		"no domain": func() error {
			_, err := tagged.NewWorker(nil, tagged.Config{})
			return err
		}(),
		"send, no context":      e.SendWait(none, 1),
		"send sync, no context": e.SendSyncWait(none, 1),
		"recv, no context": func() error {
			_, err := r.workers[0].RecvWait(none, 1, tagged.Exact)
			return err
		}(),
		"recv from one, no context": func() error {
			_, err := e.RecvWait(none, 1, tagged.Exact)
			return err
		}(),
		"wait, no context":         posted.Wait(none),
		"wait for all, no context": tagged.WaitAll(none, posted),
		"close, no context":        e.Close(none),
		"no memory":                func() error { _, err := r.workers[0].Register(nil); return err }(),
		"bad configuration":        newWorker(tagged.Config{Chunk: -1}),
		"bad transport":            newWorker(tagged.Config{Transport: transport.Config{AMBuffers: -1}}),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !posted.Cancel() {
		t.Error("a wait that was refused has ended its request")
	}
	if _, err := e.Send(1, nil); !errors.Is(err, tagged.ErrNotConnected) {
		t.Errorf("the endpoint after a Connect that was refused: %v", err)
	}
}

// TestOtherHandlers: the transport beneath carries the program's own active messages, too.
func TestOtherHandlers(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	got := ""
	handler := func(m *transport.Message) { got = string(m.Data()) }
	if err := r.workers[1].Transport().Handle(1, handler); err != nil {
		t.Fatal(err)
	}
	if err := r.workers[1].Transport().Handle(tagged.FirstAMID, func(*transport.Message) {}); err == nil {
		t.Error("the program could set a handler for an id of this package")
	}
	a, _ := r.connect(0, 1)
	if err := a.Transport().AMShort(1, nil, []byte("own")); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { return got == "own" })
}

// TestOtherEndpoints: an endpoint that the program has made for itself on the transport is aborted
// when its peer sends messages of this package, and other endpoints go on.
func TestOtherEndpoints(t *testing.T) {
	h := newHostile(t)
	var value any
	for _, value = range []any{nil, "the program's own", (*tagged.Endpoint)(nil), h.victim} {
		for kind := range 8 {
			own, err := h.workers[0].Transport().NewEndpoint(transport.EndpointConfig{Value: value})
			if err != nil {
				t.Fatal(err)
			}
			if h.raw, err = h.raw.Worker().NewEndpoint(transport.EndpointConfig{}); err != nil {
				t.Fatal(err)
			}
			if err := transport.Connect(own, h.raw); err != nil {
				t.Fatal(err)
			}
			h.post(kind, head(8, 0, 0, 0), []byte("astray"))
			h.until(func() bool { h.raw.Worker().Progress(); return own.Err() != nil })
			if err := own.Err(); !errors.Is(err, transport.ErrCanceled) {
				t.Errorf("value %v, message %d: %v", value, kind, err)
			}
		}
	}
	if s := h.workers[0].Stats(); s.Violations != 4*8 || s.Failures != 0 || h.victim.Err() != nil {
		t.Errorf("%+v; %v", s, h.victim.Err())
	}
	h.checkGood()
}

// TestJoin: each rank sends to every rank, itself included, short and long messages, and receives
// them by source, with all endpoints made at once and on demand, for numbers of ranks around the
// powers of two.
func TestJoin(t *testing.T) {
	small := transport.Config{AMBuffers: 4, MaxOutstanding: 8, BounceBuffers: 8, BufferSize: 512,
		QP: ibverbx.Config{QPsPerDevice: 1}}
	for _, onDemand := range []bool{false, true} {
		for _, ranks := range []int{1, 2, 3, 5, 8, 11} {
			t.Run(fmt.Sprintf("%d ranks, on demand %t", ranks, onDemand), func(t *testing.T) {
				const long = 5000
				cfg := tagged.Config{OnDemand: onDemand, EagerLimit: 2000, Transport: small}
				r := newJoined(t, ranks, cfg)
				ctx := background(r)
				var sends []*tagged.Request
				for from := range ranks {
					for to := range ranks {
						e := r.peer(from, to)
						if e.Rank() != to || e != r.peer(from, to) {
							t.Fatalf("endpoint of rank %d", e.Rank())
						}
						sends = append(sends, r.send(e, 1, []byte{byte(from), byte(to)}),
							r.send(e, 2, pattern(long, from*ranks+to)))
					}
				}
				for to := range ranks {
					for from := range ranks {
						buf := make([]byte, long)
						info, err := r.peer(to, from).RecvWait(ctx, 2, tagged.Exact, buf)
						if err != nil || info.Source.Rank() != from || string(buf) !=
							string(pattern(long, from*ranks+to)) {
							t.Fatalf("%v from rank %d: %v", info, from, err)
						}
					}
					seen := map[byte]bool{}
					for range ranks {
						buf := make([]byte, 2)
						info, err := r.workers[to].RecvWait(ctx, 1, tagged.Exact, buf)
						if err != nil || info.Source.Rank() != int(buf[0]) || buf[1] != byte(to) ||
							seen[buf[0]] {
							t.Fatalf("% x from rank %d: %v", buf, info.Source.Rank(), err)
						}
						seen[buf[0]] = true
					}
				}
				for _, s := range sends {
					if err := s.Wait(ctx); err != nil {
						t.Error(err)
					}
				}
				if err := r.peer(0, 0).Close(ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestOnDemand: only endpoints between adjacent ranks are there from the start; another is made, at
// both ends, when one asks for it, and only once if both ask at the same time. Nobody between them
// gets one more.
func TestOnDemand(t *testing.T) {
	small := transport.Config{BufferSize: 512} // cards travel in pieces
	r := newJoined(t, 8, tagged.Config{OnDemand: true, Transport: small})
	ctx := background(r)
	count := func() (counts []int) {
		for _, w := range r.workers {
			counts = append(counts, w.Stats().Endpoints)
		}
		return counts
	}
	if got := fmt.Sprint(count()); got != "[3 3 3 3 3 3 3 3]" {
		t.Errorf("endpoints after Join: %s", got)
	}
	for round := range 20 {
		a, b := r.peer(0, 7), r.peer(7, 0)
		in := make([]byte, 1)
		for _, e := range []*tagged.Endpoint{a, b} {
			if err := e.SendWait(ctx, 1, []byte{byte(round)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range []*tagged.Endpoint{a, b} {
			if _, err := e.RecvWait(ctx, 1, tagged.Exact, in); err != nil || in[0] != byte(round) {
				t.Fatal(err, in)
			}
		}
	}
	if got := fmt.Sprint(count()); got != "[4 3 3 3 3 3 3 4]" {
		t.Errorf("endpoints after messages between two: %s", got)
	}
	early := r.peer(1, 6) // closed, perhaps before it is connected
	if err := early.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := r.peer(6, 1).RecvWait(ctx, 1, tagged.Exact); err == nil || ctx.Err() != nil {
		t.Errorf("from a rank that has closed the endpoint: %v", err)
	}
}

// TestOnDemandAroundTheDead: a rank that has failed is passed by on the way to others; to itself no
// way leads, and the endpoint to it fails and says so.
func TestOnDemandAroundTheDead(t *testing.T) {
	r := newJoined(t, 8, tagged.Config{OnDemand: true})
	ctx := background(r)
	for _, next := range []int{0, 3, 5} {
		if err := r.peer(1, next).Abort(); err != nil {
			t.Fatal(err)
		}
		r.until(func() bool { return r.peer(next, 1).Err() != nil })
	}
	before := r.workers[1].Stats().Endpoints
	for range 2 {
		if _, err := r.workers[1].Peer(6); !errors.Is(err, tagged.ErrPeerFailed) ||
			!strings.Contains(err.Error(), "no rank on the way from rank 1 to rank 6 is left") {
			t.Errorf("an endpoint of the dead one: %v", err)
		}
	}
	if n := r.workers[1].Stats().Endpoints; n != before {
		t.Errorf("%d endpoints: there were %d", n, before)
	}
	r.send(r.peer(0, 7), 1, nil)
	if _, err := r.peer(7, 0).RecvWait(ctx, 1, tagged.Exact); err != nil {
		t.Errorf("from rank 0 to rank 7 beside rank 1: %v", err)
	}
	s := r.send(r.peer(2, 1), 1, nil)
	if err := s.Wait(ctx); !errors.Is(err, tagged.ErrPeerFailed) ||
		!strings.Contains(err.Error(), "no rank on the way from rank 3 to rank 1 is left") {
		t.Errorf("to the dead one: %v", err)
	}
	if _, err := r.peer(7, 1).RecvWait(ctx, 1, tagged.Exact); !errors.Is(err, tagged.ErrPeerFailed) {
		t.Errorf("from the dead one: %v", err)
	}
}

// TestOnDemandAroundTwoDead: if all ranks are gone that lie between two others, these connect by a
// detour.
func TestOnDemandAroundTwoDead(t *testing.T) {
	r := newJoined(t, 8, tagged.Config{OnDemand: true})
	ctx := background(r)
	for _, dead := range []int{1, 2} {
		for _, next := range []int{dead ^ 1, dead ^ 2, dead ^ 4} {
			if err := r.peer(dead, next).Abort(); err != nil {
				t.Fatal(err)
			}
			r.until(func() bool { return r.peer(next, dead).Err() != nil })
		}
	}
	r.send(r.peer(0, 3), 1, nil)
	if _, err := r.workers[3].RecvWait(ctx, 1, tagged.Exact); err != nil {
		t.Error(err)
	}
}

// TestJoinRefused: all ranks learn why they cannot join, and nothing stays open.
func TestJoinRefused(t *testing.T) {
	r := newRig(t, 3, 1, tagged.Config{})
	dies := func(after int) func(int, *tagged.Config) { // rank 2, and the job tells the others
		return func(_ int, cfg *tagged.Config) {
			exchange, calls := cfg.Exchange, 0
			cfg.Exchange = func(ctx context.Context, mine []byte) ([][]byte, error) {
				if calls++; calls > after {
					return nil, errors.New("rank 2 has died")
				}
				return exchange(ctx, mine)
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func(rank int, cfg *tagged.Config)
		want   string // in the error of each rank
	}{
		{"other size", func(i int, cfg *tagged.Config) { cfg.Size += i / 2 }, "ranks"},
		{"same rank", func(i int, cfg *tagged.Config) { cfg.Rank = i / 2 }, "it is that of rank"},
		{"on demand", func(i int, cfg *tagged.Config) { cfg.OnDemand = i == 2 }, "OnDemand"},
		{"size", func(_ int, cfg *tagged.Config) { cfg.Size = -1 }, "Size -1: must be 1 to 65536"},
		{"rank", func(_ int, cfg *tagged.Config) { cfg.Rank = 3 }, "of 3 ranks the numbers are 0 to 2"},
		{"exchange", func(_ int, cfg *tagged.Config) { cfg.Exchange = nil }, "3 ranks need it"},
		{"other queue pairs", func(i int, cfg *tagged.Config) { cfg.Transport.QP.QPsPerDevice = 1 + i/2 },
			"configure both alike"},
		{"a wrong exchange", func(_ int, cfg *tagged.Config) { cfg.Exchange = tooMany(cfg.Exchange) },
			"it returned 4 entries: there are 3 ranks"},
		{"a death", dies(0), "tagged: join: exchange: rank 2 has died"},
		{"a later death", dies(1), "tagged: join: exchange: rank 2 has died"},
		{"no worker", func(i int, cfg *tagged.Config) { cfg.Chunk = 1 - i }, "Chunk -1: must be"},
		{"escapes", func(i int, cfg *tagged.Config) {
			exchange, calls := cfg.Exchange, 0
			cfg.Exchange = func(ctx context.Context, mine []byte) ([][]byte, error) {
				if calls++; calls == 2 && i == 2 {
					mine = []byte("\x1b[31mred\nline")
				}
				return exchange(ctx, mine)
			}
		}, "rank 2 cannot join:  [31mred line"},
		{"too many", func(i int, cfg *tagged.Config) { cfg.Transport.MaxEndpoints = 3 - i }, "MaxEndpoints"},
	} {
		for i, err := range r.join(tagged.Config{}, c.change) {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: rank %d: %v: want %q", c.name, i, err, c.want)
			}
		}
	}
	_, err := tagged.NewWorker(r.domains[0], tagged.Config{Size: 3})
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if _, err = r.workers[0].Peer(0); err == nil ||
		err.Error() != "tagged: peer: invalid argument: the worker has no ranks: make it with Join" {
		t.Error(err)
	}
}

type exchanger = func(context.Context, []byte) ([][]byte, error)

// tooMany is an all-gather that returns an entry more than there are ranks.
func tooMany(exchange exchanger) exchanger {
	return func(ctx context.Context, mine []byte) ([][]byte, error) {
		all, err := exchange(ctx, mine)
		return append(all[:len(all):len(all)], nil), err
	}
}

// TestNoRankIsLeft: a receive from any peer ends when all other ranks have failed, although this
// process could send to itself.
func TestNoRankIsLeft(t *testing.T) {
	for _, onDemand := range []bool{false, true} {
		r := newJoined(t, 2, tagged.Config{OnDemand: onDemand})
		ctx := background(r)
		r.peer(0, 0)
		if err := r.peer(1, 0).Abort(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.workers[0].RecvWait(ctx, 1, tagged.Exact); !errors.Is(err, tagged.ErrNoPeer) {
			t.Errorf("on demand %t: %v", onDemand, err)
		}
	}
}

// TestOnDemandRefused: a rank that cannot make one more endpoint says so to the one that asks.
func TestOnDemandRefused(t *testing.T) {
	r := newJoined(t, 8, tagged.Config{OnDemand: true, Transport: transport.Config{MaxEndpoints: 4}})
	ctx := background(r)
	r.send(r.peer(7, 0), 1, nil)
	if _, err := r.peer(0, 7).RecvWait(ctx, 1, tagged.Exact); err != nil {
		t.Fatal(err)
	}
	if err := r.send(r.peer(3, 0), 1, nil).Wait(ctx); !errors.Is(err, tagged.ErrPeerFailed) ||
		!strings.Contains(err.Error(), "MaxEndpoints") {
		t.Errorf("a send to a rank that has no place for another endpoint: %v", err)
	}
	if _, err := r.workers[7].Peer(1); err == nil || !strings.Contains(err.Error(), "MaxEndpoints") {
		t.Errorf("no place at this end: %v", err)
	}
}

// TestOnDemandByAnotherWay: cards that still wait, whole or in pieces, when the next rank on their
// way fails go by another way.
func TestOnDemandByAnotherWay(t *testing.T) {
	for _, buffer := range []int{416, 8192} {
		for _, at := range []int{0, 1} {
			t.Run(fmt.Sprintf("buffers of %d, at rank %d", buffer, at), func(t *testing.T) {
				testAnotherWay(t, buffer, at)
			})
		}
	}
}

// testAnotherWay has rank 0 connect to others by rank 1. Its endpoint, or that of rank 1, takes two
// messages, which do not arrive, and then fails.
func testAnotherWay(t *testing.T, buffer, at int) {
	small := transport.Config{AMBuffers: 2, BufferSize: buffer, QP: ibverbx.Config{QPsPerDevice: 8}}
	r := newJoined(t, 16, tagged.Config{OnDemand: true, Transport: small})
	ctx := background(r)
	fails := r.peer(at, 2*at+1)
	card, err := fails.Card()
	if err != nil {
		t.Fatal(err)
	}
	stall := r.fabric.Inject(soft.Fault{Device: r.fabric.Device(at), QPNum: card.Transport.QP.NotifyQPNum,
		Kind: soft.StallQP, Count: -1})
	for to := 3; to < 16; to += 2 {
		r.send(r.peer(0, to), 1, nil)
	}
	if at == 1 { // it has all cards once it has what is behind them
		r.send(r.peer(0, 1), 2, nil)
		if _, err := r.workers[1].RecvWait(ctx, 2, tagged.Exact); err != nil {
			t.Fatal(err)
		}
	}
	if err := fails.Abort(); err != nil {
		t.Fatal(err)
	}
	if stall.Hits() == 0 {
		t.Error("no message has waited")
	}
	stall.Remove()
	for _, to := range []int{11, 13, 15} {
		if _, err := r.workers[to].RecvWait(ctx, 1, tagged.Exact); err != nil {
			t.Errorf("rank %d: %v", to, err)
		}
	}
}

// TestHostileRanks: routed messages that no rank sends fail the endpoint on which they come, or
// concern only the rank that they claim to be from.
func TestHostileRanks(t *testing.T) {
	for _, c := range []struct {
		what     string
		from, to uint64
		kind     byte
		offset   uint64
		fails    bool   // the endpoint to the sender
		want     string // in the error of the endpoint to rank from; "" if there is none
	}{
		{"from the rank itself", 1, 2, 0, 0, true, ""},
		{"to its sender", 2, 2, 0, 0, true, ""},
		{"from no rank", 4, 1, 0, 0, true, ""},
		{"to no rank", 0, 4, 0, 0, true, ""},
		{"a card that is none", 2, 1, 0, 0, false, "card"},
		{"an answer to nothing", 2, 1, 1, 0, false, ""},
		{"ready for nothing", 2, 1, 2, 0, false, ""},
		{"a refusal of nothing", 2, 1, 3, 0, false, ""},
		{"a piece of nothing", 2, 1, 0, 1, false, ""},
		{"a card from one that is connected", 3, 1, 0, 0, false, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newJoined(t, 4, tagged.Config{OnDemand: true})
			ctx := background(r)
			before := r.workers[1].Stats().Endpoints
			header := head(24, 0, c.kind, uint32(4+c.offset), c.from|c.to<<32, c.offset)
			if _, err := r.peer(0, 1).Transport().AMBcopy(tagged.FirstAMID+route, header,
				func(b []byte) int { return copy(b, "junk") }); err != nil {
				t.Fatal(err)
			}
			if c.fails {
				r.until(func() bool { return r.peer(1, 0).Err() != nil })
				if err := r.peer(1, 0).Err(); !errors.Is(err, tagged.ErrProtocol) {
					t.Error(err)
				}
				return
			}
			r.send(r.peer(0, 1), 1, nil)
			if _, err := r.peer(1, 0).RecvWait(ctx, 1, tagged.Exact); err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if n := r.workers[1].Stats().Endpoints; n != before {
					t.Errorf("%d endpoints: there were %d", n, before)
				}
				return
			}
			err := r.peer(1, int(c.from)).Err()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}
