package processes_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"ibverbx/transport"
)

// Active messages by short, bcopy and zcopy go in both directions at the same time. They arrive
// once, whole, and in order, although each end has two buffers and keeps one of them for a while.
// At last one end closes: the other reports that, and refuses sends for that reason.
func TestTransportMessages(t *testing.T) {
	eachShape(t, team{program: "messages", members: 2, rounds: 120})
}

// The zero configuration works on any NICs.
func TestTransportMessagesByTheZeroConfiguration(t *testing.T) {
	team{program: "messages", members: 2, rounds: 120, zero: true}.run(t)
}

// amData is a numbered message with a pattern.
const amData transport.AMID = 1

// inbox checks what the peer sends.
type inbox struct {
	from, to int
	next     int // number of the next message
	err      error
	kept     *transport.Message
}

// data is the handler of amData. It keeps every third message until the next of those.
func (in *inbox) data(msg *transport.Message) {
	n := int(binary.LittleEndian.Uint32(msg.Header()))
	err := verify(msg.Data(), seed(in.from, in.to, n))
	if in.err == nil && err != nil {
		in.err = fmt.Errorf("message %d: %w", n, err)
	}
	if in.err == nil && n != in.next {
		in.err = fmt.Errorf("message %d came, want %d", n, in.next)
	}
	in.next++
	if n%3 == 0 {
		in.release()
		msg.Keep()
		in.kept = msg
	}
}

func (in *inbox) release() {
	if in.kept != nil {
		in.kept.Release()
		in.kept = nil
	}
}

func messages(ctx context.Context, m *member) (err error) {
	peer := 1 - m.Rank
	in := &inbox{from: peer, to: m.Rank}
	cfg := m.transportConfig()
	if !m.Zero {
		cfg.AMBuffers, cfg.BufferSize = 2, 1<<10
	}
	h, err := newMesh(m, cfg, 1<<16, map[transport.AMID]transport.Handler{amData: in.data})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.connect(ctx); err != nil {
		return err
	}
	ep := h.eps[peer]
	for n := range m.Rounds {
		if err := h.sendNumbered(ctx, peer, n); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
	}
	if err := h.w.WaitFor(ctx, 0, func() bool { return in.next == m.Rounds || in.err != nil }); err != nil {
		return fmt.Errorf("%d of %d messages have come: %w", in.next, m.Rounds, err)
	}
	in.release()
	if in.err != nil {
		return in.err
	}
	if err := ep.Flush(ctx, transport.FlushLocal); err != nil {
		return err
	}
	if s := h.w.Stats(); !m.Zero && s.NoResource == 0 {
		return fmt.Errorf("%d messages met no flow control: %+v", m.Rounds, s)
	}
	return closing(ctx, h, peer)
}

// sendNumbered sends message n, by one kind after the other, of any length that fits.
func (h *mesh) sendNumbered(ctx context.Context, peer, n int) error {
	ep, limits, pattern := h.eps[peer], h.eps[peer].Limits(), seed(h.m.Rank, peer, n)
	hdr := binary.LittleEndian.AppendUint32(make([]byte, 0, 8), uint32(n))
	hdr = hdr[:4+n%3]
	length := func(most int) int {
		return []int{0, 1, most / 3, most - 1, most}[n/3%5]
	}
	switch n % 3 {
	case 0:
		data := filled(length(limits.AMShort-len(hdr)), pattern)
		return h.do(ctx, func() error { return ep.AMShort(amData, hdr, data) })
	case 1:
		size := length(limits.AMBcopy - len(hdr))
		return h.do(ctx, func() error {
			_, err := ep.AMBcopy(amData, hdr, func(dst []byte) int {
				fill(dst[:size], pattern)
				return size
			})
			return err
		})
	}
	size := length(limits.AMZcopy - len(hdr))
	fill(h.mem[:size], pattern)
	a, b := uint64(size/3), uint64(size-size/3)
	comp := transport.NewCompletion(1, nil)
	if err := h.do(ctx, func() error {
		return ep.AMZcopy(comp, amData, hdr, h.mr.Slice(0, a), h.mr.Slice(a, b))
	}); err != nil {
		return err
	}
	return h.w.Wait(ctx, comp) // the next one uses the same memory
}

// closing has member 0 close its end, which member 1 must report.
func closing(ctx context.Context, h *mesh, peer int) error {
	ep := h.eps[peer]
	if err := h.m.meet(ctx); err != nil {
		return err
	}
	if h.m.Rank == 0 {
		return errors.Join(ep.Close(ctx), h.m.meet(ctx))
	}
	if err := h.w.WaitFor(ctx, 0, func() bool { return h.ended[peer] != nil }); err != nil {
		return fmt.Errorf("the peer has closed, and OnError was not called: %w", err)
	}
	refused := ep.AMShort(amData, nil, nil)
	if err := h.ended[peer]; !errors.Is(err, transport.ErrPeerClosed) ||
		!errors.Is(refused, transport.ErrPeerClosed) || h.calls[peer] != 1 {
		return fmt.Errorf("OnError was called %d times, with: %w; a send says: %w; want both "+
			"ErrPeerClosed, once", h.calls[peer], err, refused)
	}
	return errors.Join(ep.Close(ctx), h.m.meet(ctx))
}

// What a member sends before the other one has connected is repeated by its NIC, and arrives after
// that.
func TestTransportSendBeforeThePeerConnects(t *testing.T) {
	eachShape(t, team{program: "early", members: 2})
}

func early(ctx context.Context, m *member) (err error) {
	peer := 1 - m.Rank
	in := &inbox{from: peer, to: m.Rank}
	h, err := newMesh(m, m.transportConfig(), 1<<16, map[transport.AMID]transport.Handler{amData: in.data})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	ep, err := h.w.NewEndpoint(transport.EndpointConfig{OnError: h.failed, Value: peer})
	if err != nil {
		return err
	}
	h.eps[peer] = ep
	card, err := ep.Card()
	if err != nil {
		return err
	}
	cards, err := exchange(ctx, m, meshCard{Endpoints: []*transport.Card{&card}, Memory: h.mr.Remote()})
	if err != nil {
		return err
	}
	flag := word64(h.mem, 8) // in the memory of member 1
	if m.Rank == 1 {
		if err := m.meet(ctx); err != nil { // the other member has sent
			return err
		}
		if err := ep.Connect(*cards[peer].Endpoints[0]); err != nil {
			return err
		}
		if err := h.w.WaitFor(ctx, pollEvery, func() bool {
			return in.next == 2 &&
				atomic.LoadUint64(flag) != 0
		}); err != nil {
			return err
		}
		in.release()
		if err := errors.Join(in.err, verify(h.mem[8:16], seed(0, 1, 0))); err != nil {
			return err
		}
		return h.closeAll(ctx)
	}
	if err := ep.Connect(*cards[peer].Endpoints[0]); err != nil {
		return err
	}
	for n := range 2 {
		if err := h.sendNumbered(ctx, peer, n); err != nil { // short and bcopy
			return err
		}
	}
	if err := ep.PutShort(filled(8, seed(0, 1, 0)), cards[peer].Memory.Slice(8, 8)); err != nil {
		return err
	}
	return errors.Join(m.meet(ctx), h.closeAll(ctx))
}
