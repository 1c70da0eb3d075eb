package stream

import (
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/nics"
)

var (
	seeds = flag.Int("seeds", 0, "random worlds for each provider; 0: a few")
	first = flag.Uint64("first", 1, "seed of the first world")
)

// TestWorlds runs streams of one link whose programs do anything at any moment, and compares what
// each of them sees with a model: the bytes of a direction are a function of their position; the
// end comes behind the last byte if the writer has ended in order, and is a reset only if one of
// the stream's own ends has reset it. No stream notices the others.
func TestWorlds(t *testing.T) {
	n := 2
	switch {
	case *seeds != 0:
		n = *seeds
	case testing.Short():
		n = 1
	}
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			for seed := *first; seed < *first+uint64(n); seed++ {
				world(t, provider, seed)
			}
		})
	}
}

// world is one of them. A seed fixes what the programs do, though not when.
func world(t *testing.T, provider string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	host := nics.Config{Provider: provider}
	host.Soft.Devices = 1 + int(seed%2)
	cfg := Config{Host: newHost(t, host), Memory: leastMemory << rng.IntN(6),
		Spin: []time.Duration{-1, time.Microsecond, 0}[rng.IntN(3)]}
	l := listen(t, cfg)
	var all sync.WaitGroup
	for id := range uint64(2 + rng.IntN(6)) {
		a, err := Dial(t.Context(), l.Addr().String(), cfg)
		if errors.Is(err, errNoMemory) || errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		p := program{t: t, seed: seed, id: id, ends: [2]*Conn{a, c.(*Conn)}, resets: rng.IntN(3) == 0}
		for i := range 2 {
			p.total[i] = rng.IntN(1 << (4 + rng.IntN(18)))
		}
		all.Go(p.run)
	}
	all.Wait()
}

// program is what the two ends of one stream do.
type program struct {
	t      *testing.T
	seed   uint64
	id     uint64
	ends   [2]*Conn
	total  [2]int // bytes that each end writes
	resets bool   // one of the ends resets the stream, at some moment
}

// at is the byte at a position of what an end writes.
func (p *program) at(end, position int) byte {
	return byte(uint64(position)*31 + uint64(position>>8) + uint64(end)*7 + p.id)
}

func (p *program) run() {
	var both sync.WaitGroup
	for end := range 2 {
		both.Go(func() { p.write(end) })
		both.Go(func() { p.read(end) })
	}
	both.Wait()
	for _, c := range p.ends {
		if err := c.Close(); err != nil && !p.resets {
			p.t.Errorf("seed %d, stream %d: close: %v", p.seed, p.id, err)
		}
	}
}

// rng is the source of one direction's choices.
func (p *program) rng(what uint64) *rand.Rand { return rand.New(rand.NewPCG(p.seed, 100*p.id+what+1)) }

// write writes what an end has to write, with deadlines on the way, and ends that side.
func (p *program) write(end int) {
	rng, c := p.rng(uint64(end)), p.ends[end]
	reset := -1
	if p.resets && end == 0 {
		reset = rng.IntN(p.total[end] + 1)
	}
	data := make([]byte, p.total[end])
	for i := range data {
		data[i] = p.at(end, i)
	}
	for at := 0; at < len(data); {
		if reset >= 0 && at >= reset {
			_, _ = c.SetLinger(0), c.Close()
			return
		}
		n := min(len(data)-at, rng.IntN(1<<(1+rng.IntN(19)))+1)
		if rng.IntN(4) == 0 {
			_ = c.SetWriteDeadline(time.Now().Add(time.Duration(rng.IntN(2000)) * time.Microsecond))
		}
		k, err := c.Write(data[at : at+n])
		at += k
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.SetWriteDeadline(time.Time{})
		case err != nil && p.resets:
			return
		case err != nil || k != n:
			p.t.Errorf("seed %d, stream %d: write %d of %d at %d: %v", p.seed, p.id, k, n, at, err)
			return
		}
	}
	if err := c.CloseWrite(); err != nil && !p.resets {
		p.t.Errorf("seed %d, stream %d: close write: %v", p.seed, p.id, err)
	}
}

// read reads to the end, and compares.
func (p *program) read(end int) {
	rng, c := p.rng(uint64(10+end)), p.ends[end]
	got, buf := 0, make([]byte, 1<<18)
	for {
		if rng.IntN(4) == 0 {
			_ = c.SetReadDeadline(time.Now().Add(time.Duration(rng.IntN(2000)) * time.Microsecond))
		}
		n, err := c.Read(buf[:1+rng.IntN(1<<(1+rng.IntN(17)))])
		for i := range n {
			if buf[i] != p.at(1-end, got+i) {
				p.t.Errorf("seed %d, stream %d: byte %d is wrong", p.seed, p.id, got+i)
				return
			}
		}
		got += n
		switch {
		case err == nil && n != 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.SetReadDeadline(time.Time{})
		case errors.Is(err, io.EOF) && got == p.total[1-end]:
			return
		case p.resets && err != nil && !errors.Is(err, io.EOF):
			return
		default:
			p.t.Errorf("seed %d, stream %d: read at %d of %d: %v", p.seed, p.id, got, p.total[1-end], err)
			return
		}
	}
}
