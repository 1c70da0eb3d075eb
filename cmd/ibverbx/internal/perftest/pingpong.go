package perftest

import (
	"sync/atomic"
	"time"
	"unsafe" //nolint:depguard // Go has no other way to read atomically what a NIC writes

	"github.com/HdrHistogram/hdrhistogram-go"

	"ibverbx/verbs"
)

// longest is the longest latency that is distinguished, in nanoseconds.
const longest = int64(100 * time.Second)

// pingPong sends one message at a time over queue pair 0,
// and measures the time from one to the next.
type pingPong struct {
	*stream
	first   bool // this end sends the first message
	poll    *uint64
	shift   int // of the byte in poll that counts the peer's messages
	seen    int // messages of the peer
	samples *hdrhistogram.Histogram
}

// newPingPong measures a stream one message at a time. The server writes first, but the client
// sends first.
func newPingPong(s *stream, client bool) *pingPong {
	p := &pingPong{stream: s, first: client != (s.cfg.Kind == WriteLat),
		samples: hdrhistogram.New(1, longest, 3)}
	at := s.target(0) + s.size - 1
	p.poll = word(s.memory, at&^7)
	p.shift = (at & 7) * 8
	return p
}

// word is the word at an offset of b, a multiple of 8. This is the only place of the package that
// needs package unsafe.
func word(b []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[at : at+8])))
}

// run exchanges the messages, and says how long that took.
func (p *pingPong) run(w *waiter) (took time.Duration, err error) {
	answered := p.cfg.Kind.Halved()
	start := time.Now()
	last := start
	for i := range p.cfg.Messages {
		if answered && !p.first {
			if err := p.await(w, i+1, i); err != nil {
				return 0, err
			}
		}
		now := time.Now()
		if i > 0 {
			_ = p.samples.RecordValue(min(max(int64(now.Sub(last)), 1), longest)) // in range
		}
		last = now
		if err := p.sendOne(w, i); err != nil {
			return 0, err
		}
		if p.first || !answered {
			answers := 0
			if answered {
				answers = i + 1
			}
			if err := p.await(w, answers, i+1); err != nil {
				return 0, err
			}
		}
	}
	return time.Since(start), p.await(w, 0, p.cfg.Messages)
}

// sendOne posts message i, which carries its number in its last byte.
func (p *pingPong) sendOne(w *waiter, i int) error {
	if p.opcode == verbs.OpRDMAWrite {
		p.memory[p.source(0)+p.size-1] = byte(i + 1)
	}
	for {
		if n, err := p.post(0); n == 1 || err != nil {
			return err
		}
		if err := w.pause(); err != nil {
			return err
		}
	}
}

// await waits until so many messages have come, and so many of this end have completed.
func (p *pingPong) await(w *waiter, come, completed int) error {
	w.moved()
	for p.seen < come || p.sent < completed {
		moved, err := p.look(p.sent < completed)
		if err != nil {
			return err
		}
		if moved {
			w.moved()
		} else if err := w.pause(); err != nil {
			return under(err, p.sent+p.seen, p.all())
		}
	}
	return nil
}

// all is how many messages there are: this end's, and the answers where the peer sends them.
func (p *pingPong) all() int {
	if p.cfg.Kind.Halved() {
		return 2 * p.cfg.Messages
	}
	return p.cfg.Messages
}

// look collects a completion, if one is outstanding, and what has come.
func (p *pingPong) look(outstanding bool) (moved bool, err error) {
	if p.opcode == verbs.OpRDMAWrite {
		if byte(atomic.LoadUint64(p.poll)>>p.shift) == byte(p.seen+1) {
			p.seen++
			moved = true
		}
	} else if p.takes > 0 {
		if moved, err = p.take(); err != nil {
			return false, err
		}
		p.seen = p.took
	}
	// An empty poll also makes NICs of software receive.
	if outstanding || !moved {
		n, err := p.collect()
		return moved || n > 0, err
	}
	return moved, nil
}

// distribution is what the samples say, in nanoseconds.
func (p *pingPong) distribution() *Latency {
	h, half := p.samples, int64(1)
	if p.cfg.Kind.Halved() {
		half = 2
	}
	return &Latency{Halved: half == 2, Samples: h.TotalCount(), Min: h.Min() / half,
		Mean: h.Mean() / float64(half), P50: h.ValueAtQuantile(50) / half, P90: h.ValueAtQuantile(90) / half,
		P99: h.ValueAtQuantile(99) / half, P999: h.ValueAtQuantile(99.9) / half, Max: h.Max() / half}
}
