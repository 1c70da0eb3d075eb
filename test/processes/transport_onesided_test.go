package processes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"ibverbx/transport"
)

// Three members write into each other's memory by short, bcopy and zcopy, from one byte to many
// fragments, at odd addresses. After a remote flush every byte is there, and no other byte has
// changed. Gets return the same bytes. Neighbours are on different NICs, the first and third on the
// same.
func TestTransportPutsAndGets(t *testing.T) {
	eachShape(t, team{program: "puts and gets", members: 3})
}

const (
	field = 640 << 10 // bytes of a member's memory for each member that writes there
	blank = 0xee      // its bytes before
)

// strip is a put: its place in the field, and its kind.
type strip struct {
	off, size int
	kind      int
}

// strips are puts of all kinds, with gaps of some bytes between them.
func strips(l transport.Limits) (all []strip) {
	off := 3
	add := func(kind int, sizes ...int) {
		for _, n := range sizes {
			all = append(all, strip{off: off, size: n, kind: kind})
			off += n + 5
		}
	}
	add(0, 1, 2, 7, 8, 9, l.PutShort-1, l.PutShort)
	add(1, 1, 64, 4095, 4097, l.PutBcopy)
	add(2, 1, 63, 4096, 65537, 300_001)
	return all
}

func putsAndGets(ctx context.Context, m *member) (err error) {
	cfg := m.transportConfig()
	cfg.QP.FragmentSize = 16 << 10
	h, err := newMesh(m, cfg, (m.Of+1)*field, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	for i := range h.mem[:m.Of*field] {
		h.mem[i] = blank
	}
	if err := h.connect(ctx); err != nil {
		return err
	}
	for rank, ep := range h.eps {
		if ep == nil {
			continue
		}
		if err := h.putStrips(ctx, rank); err != nil {
			return fmt.Errorf("to member %d: %w", rank, err)
		}
	}
	if err := h.w.Flush(ctx, transport.FlushRemote); err != nil {
		return err
	}
	if err := m.meet(ctx); err != nil {
		return err
	}
	// The completions of the gets are behind what the NIC has written here before.
	for rank, ep := range h.eps {
		if ep == nil {
			continue
		}
		if err := h.getBack(ctx, rank); err != nil {
			return fmt.Errorf("back from member %d: %w", rank, err)
		}
	}
	for rank, ep := range h.eps {
		if ep == nil {
			continue
		}
		if err := checkField(h.mem[rank*field:(rank+1)*field], rank, m.Rank,
			strips(ep.Limits())); err != nil {
			return fmt.Errorf("from member %d: %w", rank, err)
		}
	}
	return h.closeAll(ctx)
}

// putStrips writes to a member's field for this one, from the last field of this one's memory.
func (h *mesh) putStrips(ctx context.Context, to int) error {
	ep, source := h.eps[to], h.mem[h.m.Of*field:]
	var zcopies []*transport.Completion
	for i, s := range strips(ep.Limits()) {
		remote := h.theirs[to].Slice(uint64(h.m.Rank*field+s.off), uint64(s.size))
		pattern := seed(h.m.Rank, to, i)
		var try func() error
		switch s.kind {
		case 0:
			data := filled(s.size, pattern)
			try = func() error { return ep.PutShort(data, remote) }
		case 1:
			try = func() error {
				_, err := ep.PutBcopy(func(dst []byte) int {
					fill(dst[:s.size], pattern)
					return s.size
				}, remote)
				return err
			}
		case 2:
			fill(source[s.off:s.off+s.size], pattern)
			comp := transport.NewCompletion(1, nil)
			zcopies = append(zcopies, comp)
			at, a := uint64(h.m.Of*field+s.off), uint64(s.size/2)
			try = func() error {
				_, err := ep.PutZcopy(comp, remote, h.mr.Slice(at, a), h.mr.Slice(at+a, uint64(s.size)-a))
				return err
			}
		}
		if err := h.do(ctx, try); err != nil {
			return err
		}
	}
	for _, comp := range zcopies { // the next member uses the same memory
		if err := h.w.Wait(ctx, comp); err != nil {
			return err
		}
	}
	return nil
}

// checkField checks that a member has written its strips into a field, and nothing else.
func checkField(b []byte, from, to int, all []strip) error {
	at := 0
	for i, s := range all {
		if err := untouched(b[at:s.off], blank); err != nil {
			return fmt.Errorf("before put %d: %w", i, err)
		}
		at = s.off + s.size
		if err := verify(b[s.off:at], seed(from, to, i)); err != nil {
			return fmt.Errorf("put %d, of kind %d: %w", i, s.kind, err)
		}
	}
	return untouched(b[at:], blank)
}

// getBack reads this member's field of another one's memory, whole by zcopy, and some of it by
// bcopy.
func (h *mesh) getBack(ctx context.Context, rank int) error {
	ep := h.eps[rank]
	mine := h.mem[h.m.Of*field:]
	clear(mine)
	theirs := uint64(h.m.Rank * field)
	at, a := uint64(h.m.Of*field), uint64(field/3)
	comp := transport.NewCompletion(1, nil)
	if err := h.do(ctx, func() error {
		_, err := ep.GetZcopy(comp, h.theirs[rank].Slice(theirs, field), h.mr.Slice(at, a),
			h.mr.Slice(at+a, field-a))
		return err
	}); err != nil {
		return err
	}
	if err := h.w.Wait(ctx, comp); err != nil {
		return err
	}
	all := strips(ep.Limits())
	if err := checkField(mine, h.m.Rank, rank, all); err != nil {
		return fmt.Errorf("zcopy: %w", err)
	}
	for i, s := range all {
		if s.size > ep.Limits().GetBcopy {
			continue
		}
		dst := make([]byte, s.size)
		comp.Init(1, nil)
		if err := h.do(ctx, func() error {
			_, err := ep.GetBcopy(comp, dst, h.theirs[rank].Slice(theirs+uint64(s.off), uint64(s.size)))
			return err
		}); err != nil {
			return err
		}
		if err := h.w.Wait(ctx, comp); err != nil {
			return err
		}
		if err := verify(dst, seed(h.m.Rank, rank, i)); err != nil {
			return fmt.Errorf("bcopy of put %d: %w", i, err)
		}
	}
	return nil
}
