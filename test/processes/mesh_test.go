package processes_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// transportConfig is the configuration of a member's transport worker, as far as the team sets it.
func (m *member) transportConfig() transport.Config {
	if m.Zero {
		// A process may be stopped for as long as the default timeouts last.
		var cfg transport.Config
		if m.Provider != "soft" {
			cfg.QP.Conn.Patience = ibverbx.PatienceFabric
		}
		return cfg
	}
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: m.QPs, Conn: m.conn()}}
	if m.Hasty {
		cfg.KeepAlive = 200 * time.Millisecond
	}
	return cfg
}

// mesh is a transport worker with an endpoint to every other member, and memory that those may
// access.
type mesh struct {
	m      *member
	w      *transport.Worker
	eps    []*transport.Endpoint // by rank; nil for this member
	mem    []byte
	mr     *ibverbx.MR
	theirs []ibverbx.RemoteMR // by rank
	ended  []error            // by rank: the error of OnError
	calls  []int              // by rank: calls of OnError
}

// lookEvery is how often conditions outside of the worker are checked.
const lookEvery = time.Millisecond

// meshCard is what members send each other to connect.
type meshCard struct {
	Endpoints []*transport.Card
	Memory    ibverbx.RemoteMR
}

// newMesh makes a worker with handlers and memory.
func newMesh(m *member, cfg transport.Config, size int, handlers map[transport.AMID]transport.Handler) (*mesh,
	error) {
	h := &mesh{m: m, eps: make([]*transport.Endpoint, m.Of), ended: make([]error, m.Of),
		calls: make([]int, m.Of)}
	var err error
	if h.w, err = transport.NewWorker(m.dom, cfg); err != nil {
		return nil, err
	}
	if h.mr, err = m.dom.Alloc(size, verbs.AccessAll); err != nil {
		return nil, errors.Join(err, h.w.Close())
	}
	h.mem = h.mr.Bytes()
	m.serve = func(ctx context.Context, done func() bool) error { return h.w.WaitFor(ctx, lookEvery, done) }
	for id, f := range handlers {
		if err := h.w.Handle(id, f); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

// connect connects to all others. When it returns, all members are connected.
func (h *mesh) connect(ctx context.Context) error {
	card := meshCard{Endpoints: make([]*transport.Card, h.m.Of), Memory: h.mr.Remote()}
	for rank := range h.eps {
		if rank == h.m.Rank {
			continue
		}
		ep, err := h.w.NewEndpoint(transport.EndpointConfig{Name: fmt.Sprintf("member %d", rank), Value: rank,
			OnError: h.failed})
		if err != nil {
			return err
		}
		h.eps[rank] = ep
		c, err := ep.Card()
		if err != nil {
			return err
		}
		card.Endpoints[rank] = &c
	}
	cards, err := exchange(ctx, h.m, card)
	if err != nil {
		return err
	}
	h.theirs = make([]ibverbx.RemoteMR, h.m.Of)
	for rank, ep := range h.eps {
		if ep == nil {
			continue
		}
		h.theirs[rank] = cards[rank].Memory
		if err := ep.Connect(*cards[rank].Endpoints[h.m.Rank]); err != nil {
			return err
		}
	}
	return h.m.allConnected(ctx)
}

func (h *mesh) failed(ep *transport.Endpoint, err error) {
	rank := ep.Value().(int)
	h.ended[rank] = err
	h.calls[rank]++
}

// do calls a send, and again after progress for as long as it returns ErrNoResource.
func (h *mesh) do(ctx context.Context, try func() error) (err error) {
	waited := h.w.WaitFor(ctx, 0, func() bool {
		err = try()
		return !errors.Is(err, transport.ErrNoResource)
	})
	return errors.Join(waited, err)
}

// close closes worker and memory. Open connections are cut.
func (h *mesh) close() error { return errors.Join(h.w.Close(), h.mr.Close()) }

// closeAll closes all connections, after all members have met.
func (h *mesh) closeAll(ctx context.Context) error {
	if err := h.m.meet(ctx); err != nil {
		return err
	}
	for _, ep := range h.eps {
		if ep == nil {
			continue
		}
		// The other member may close first.
		if err := ep.Close(ctx); err != nil && !errors.Is(err, transport.ErrPeerClosed) {
			return err
		}
	}
	return nil
}

// seed names a pattern of bytes: sender, receiver, and number.
func seed(from, to, n int) uint64 { return uint64(from)<<48 | uint64(to)<<40 | uint64(n) }

// patternWord is the i-th word of a pattern. Other words and patterns differ.
func patternWord(seed uint64, i int) uint64 {
	x := (seed+1)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// fill writes a pattern.
func fill(b []byte, seed uint64) {
	i := 0
	for ; len(b) >= 8; i++ {
		binary.LittleEndian.PutUint64(b, patternWord(seed, i))
		b = b[8:]
	}
	for w := patternWord(seed, i); len(b) != 0; w >>= 8 {
		b[0] = byte(w)
		b = b[1:]
	}
}

// filled returns new memory with a pattern.
func filled(n int, seed uint64) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// verify returns an error that says where b differs from a pattern.
func verify(b []byte, seed uint64) error {
	for i := 0; i < len(b); i += 8 {
		var got, want [8]byte
		n := copy(got[:], b[i:])
		binary.LittleEndian.PutUint64(want[:], patternWord(seed, i/8))
		clear(want[n:])
		if got != want {
			return fmt.Errorf("bytes %d to %d of %d are % x, want % x", i, i+n-1, len(b), got[:n], want[:n])
		}
	}
	return nil
}

// untouched returns an error that says where b is not b0.
func untouched(b []byte, b0 byte) error {
	for i := range b {
		if b[i] != b0 {
			return fmt.Errorf("byte %d of %d was written: %#x", i, len(b), b[i])
		}
	}
	return nil
}

// word64 is the word at an offset of b, which must be aligned. It is the only use of package unsafe
// here: Go has no other way to read atomically what a NIC writes.
func word64(b []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[at : at+8])))
}

// Shapes of connections: NICs of each member, and queue pairs of each NIC.
var shapes = []struct {
	name      string
	nics, qps int
}{
	{"one queue pair", 1, 1},
	{"two queue pairs", 1, 2},
	{"two NICs of two queue pairs", 2, 2},
}

// eachShape runs a team in every shape.
func eachShape(t *testing.T, c team) {
	t.Helper()
	for i := range shapes {
		c.inShape(t, i, testing.Short() && i == 1)
	}
}

// outerShapes runs a team of many members in the smallest and largest shape.
func outerShapes(t *testing.T, c team) {
	t.Helper()
	for i := range shapes {
		c.inShape(t, i, i == 1)
	}
}

func (c team) inShape(t *testing.T, i int, skip bool) {
	t.Helper()
	if skip {
		return
	}
	t.Run(shapes[i].name, func(t *testing.T) {
		t.Helper()
		if c.victim {
			t.Parallel() // it mostly waits until a member is taken for dead
		}
		c.nics, c.qps = shapes[i].nics, shapes[i].qps
		c.run(t)
	})
}
