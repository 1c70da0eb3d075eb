package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// base is common to the ends of all layers: memory, the round under way, and the resources to
// close.
type base struct {
	*Config
	src, dst *ibverbx.MR // nil if the layer needs none; src also if nothing is read
	remote   struct{ src, dst ibverbx.RemoteMR }
	task     Task
	olds     []uint64 // results of the round's atomics
	seen     int      // messages that have come
	broken   error    // why the end is broken; nil while it works
	opened   []func(ctx context.Context) error
}

// These are the methods of traffic that most layers share.

func (b *base) Target() []byte                { return b.Dst }
func (b *base) Counter() uint64               { return binary.NativeEndian.Uint64(b.Dst[b.Tail:]) }
func (b *base) Old(i int) uint64              { return b.olds[i] }
func (b *base) arm() (<-chan struct{}, error) { return nil, nil }
func (b *base) flush(bool) error              { return nil }
func (b *base) arrived() (int, error)         { return b.seen, b.broken }

// next prepares for a round.
func (b *base) next(t *Task) {
	b.task, b.seen = *t, 0
	if !b.Shape.Op.Atomic() {
		return
	}
	binary.NativeEndian.PutUint64(b.Dst[b.Tail:], t.Round.Counter(0))
	if len(b.olds) < t.Send {
		b.olds = make([]uint64, t.Send)
	}
}

// places returns the offsets of message i in the source and in the target.
func (b *base) places(i int) (from, to, size int) {
	return b.task.Round.Source(i), b.task.Round.Target(i), b.task.Round.Size
}

// add returns the number that atomic i adds.
func (b *base) add(i int) uint64 { return b.task.Round.Counter(i+1) - b.task.Round.Counter(i) }

// unknown returns the error of an operation that the layer does not post.
func (b *base) unknown() error {
	return fmt.Errorf("--layer %s posts no --op %s", b.Shape.Layer, b.Shape.Op)
}

// register registers the memory of an end with its NICs.
func (b *base) register(dom *ibverbx.Domain) (err error) {
	if len(b.Src) > 0 {
		if b.src, err = dom.Alloc(len(b.Src), verbs.AccessLocalWrite|verbs.AccessRemoteRead); err != nil {
			return err
		}
		b.Src = b.place(b.Src, b.src.Bytes(), b.src.Close)
	}
	if b.dst, err = dom.Alloc(len(b.Dst), verbs.AccessAll); err == nil {
		b.Dst = b.place(b.Dst, b.dst.Bytes(), b.dst.Close)
	}
	return err
}

// place copies a buffer to registered memory, which also touches its pages, and returns that.
func (b *base) place(from, to []byte, free func() error) []byte {
	copy(to, from)
	b.onClose(free)
	return to
}

// memoryCard describes the memory of an end to the other end.
func (b *base) memoryCard() (card Card) {
	if b.src != nil {
		card.Src = b.src.Remote()
	}
	card.Dst = b.dst.Remote()
	return card
}

// onClose makes Close call f, before the functions of earlier calls.
func (b *base) onClose(f func() error) {
	b.opened = append(b.opened, func(context.Context) error { return f() })
}

// show shows the end to those who look from outside, until it is closed.
func (b *base) show(w *transport.Worker, cq *ibverbx.VirtualCQ) error {
	if b.Watch == nil {
		return nil
	}
	b.Watch.AddDevices(b.Devices...)
	b.onClose(func() error { b.Watch.Remove(b.WatchAs); return nil })
	if w != nil {
		return b.Watch.AddWorker(b.WatchAs, w)
	}
	return b.Watch.AddCQ(b.WatchAs, cq)
}

// Close closes everything, and drops errors that only say that the peer has closed first.
func (b *base) Close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(b.opened) {
		err := f(ctx)
		if !slices.ContainsFunc([]error{transport.ErrPeerClosed, transport.ErrPeerFailed,
			transport.ErrCanceled, context.Canceled, context.DeadlineExceeded},
			func(of error) bool { return errors.Is(err, of) }) {
			errs = append(errs, err)
		}
	}
	b.opened = nil
	return errors.Join(errs...)
}

// open makes a domain of the end's NICs, and with rest the other parts of the end.
func (b *base) open(rest func(dom *ibverbx.Domain) error) error {
	dom, err := ibverbx.NewDomain(b.Devices...)
	if err != nil {
		return err
	}
	b.onClose(dom.Close)
	if err = rest(dom); err != nil {
		err = errors.Join(err, b.Close(context.Background()))
	}
	return err
}

// one returns the results of post for an operation that was called once.
func one(err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return 1, nil
}
