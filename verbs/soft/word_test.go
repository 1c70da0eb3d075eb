package soft

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Places in the buffers: data, then a word behind it, with room between.
const (
	dataAt = 64
	dataN  = 40
	wordAt = 128
)

func (e *end) load(n int) uint64 {
	if n == 4 {
		return uint64(atomic.LoadUint32(nic.Word32(e.buf[wordAt : wordAt+4])))
	}
	return atomic.LoadUint64(nic.Word64(e.buf[wordAt : wordAt+8]))
}

func (e *end) store(n int, v uint64) {
	if n == 4 {
		atomic.StoreUint32(nic.Word32(e.buf[wordAt:wordAt+4]), uint32(v))
		return
	}
	atomic.StoreUint64(nic.Word64(e.buf[wordAt:wordAt+8]), v)
}

// A program polls on a word that a NIC writes, and reads the data that came before it, without a
// completion and without a race: the race detector is the judge.
func TestPolledWordFollowsItsData(t *testing.T) {
	const rounds = 200
	for _, c := range []struct {
		name string
		n    int // bytes of the word
		data int // bytes written before it
		post func(x, y *end, v uint64) verbs.SendWR
	}{
		{"write of 8", 8, dataN, func(x, y *end, _ uint64) verbs.SendWR { return x.write(y, 2, wordAt, 8) }},
		{"write of 4", 4, dataN, func(x, y *end, _ uint64) verbs.SendWR { return x.write(y, 2, wordAt, 4) }},
		{"behind a copy outside of the lock", 8, 20 << 10,
			func(x, y *end, _ uint64) verbs.SendWR { return x.write(y, 2, wordAt, 8) }},
		{"inline", 8, dataN, func(x, y *end, v uint64) verbs.SendWR {
			wr := x.write(y, 2, wordAt, 8)
			wr.SGL, wr.Flags, wr.Inline = nil, wr.Flags|verbs.SendInline, binary.NativeEndian.AppendUint64(
				nil, v)
			return wr
		}},
		{"from two pieces", 8, dataN, func(x, y *end, _ uint64) verbs.SendWR {
			wr := x.write(y, 2, wordAt, 8)
			wr.SGL = append(x.sge(wordAt, 4), x.sge(wordAt+4, 4)...)
			return wr
		}},
		{"send", 8, dataN, func(x, y *end, _ uint64) verbs.SendWR {
			y.recv(verbs.RecvWR{ID: 1, SGL: y.sge(wordAt, 8)})
			return x.send(2, wordAt, 8)
		}},
		{"fetch and add", 8, dataN, func(x, y *end, _ uint64) verbs.SendWR {
			return verbs.SendWR{ID: 2, Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled,
				SGL:        x.sge(wordAt+8, 8),
				RemoteAddr: y.mr.Addr() + wordAt, RKey: y.mr.RKey(), CompareAdd: 1}
		}},
		{"compare and swap", 8, dataN, func(x, y *end, v uint64) verbs.SendWR {
			return verbs.SendWR{ID: 2, Opcode: verbs.OpAtomicCmpAndSwp, Flags: verbs.SendSignaled,
				SGL:        x.sge(wordAt+8, 8),
				RemoteAddr: y.mr.Addr() + wordAt, RKey: y.mr.RKey(), CompareAdd: v - 1, Swap: v}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, x, y := pair(t, Config{}, endConfig{})
			at := dataAt
			if c.data > dataN {
				at = 4096
			}
			read := make(chan byte)
			go func() {
				for v := uint64(1); v <= rounds; v++ {
					for y.load(c.n) != v {
						runtime.Gosched()
					}
					read <- y.buf[at+c.data-1]
				}
			}()
			for v := uint64(1); v <= rounds; v++ {
				x.store(c.n, v)
				for i := range c.data {
					x.buf[at+i] = byte(v)
				}
				x.post(x.write(y, 1, at, c.data), c.post(x, y, v))
				if got := <-read; got != byte(v) { // nothing was polled yet
					t.Fatalf("round %d: data of round %d", v, got)
				}
				await(t, x.cq, 2)
				if c.name == "send" {
					await(t, y.rcq, 1)
				}
			}
		})
	}
}

// A program may also poll on a word that a read or an atomic brings.
func TestPolledWordOfAReadOrAtomic(t *testing.T) {
	const rounds = 100
	for _, stepped := range []bool{false, true} {
		for _, n := range []int{4, 8} {
			f, x, y := pair(t, Config{Stepped: stepped}, endConfig{})
			seen := make(chan struct{})
			go func() {
				for v := uint64(1); v <= rounds; v++ {
					for x.load(n) != v {
						runtime.Gosched()
					}
					seen <- struct{}{}
				}
			}()
			for v := uint64(1); v <= rounds; v++ {
				y.store(n, v)
				wr := x.write(y, 1, wordAt, n)
				wr.Opcode = verbs.OpRDMARead
				if n == 8 && v%2 == 0 {
					wr.Opcode, wr.CompareAdd = verbs.OpAtomicFetchAdd, 0
				}
				x.post(wr)
				if stepped {
					f.Run(10)
				}
				<-seen
				await(t, x.cq, 1)
			}
		}
	}
}

// A word that the program changes while NICs fetch it comes whole.
func TestFetchedWordIsWhole(t *testing.T) {
	for _, stepped := range []bool{false, true} {
		f, x, y := pair(t, Config{Stepped: stepped}, endConfig{})
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for v := uint64(0); ; v = ^v {
				select {
				case <-stop:
					return
				default:
					y.store(8, v)
				}
			}
		}()
		for range 500 {
			wr := x.write(y, 1, wordAt, 8)
			wr.Opcode = verbs.OpRDMARead
			x.post(wr)
			if stepped {
				f.Run(10)
			}
			await(t, x.cq, 1)
			if v := x.load(8); v != 0 && v != ^uint64(0) {
				t.Fatalf("a torn word: %x", v)
			}
		}
		close(stop)
		<-stopped
	}
}

// Words land right wherever either end lies, and in how many pieces.
func TestWordsOfAnyAlignmentAndPieces(t *testing.T) {
	_, x, y := pair(t, Config{}, endConfig{})
	for _, n := range []int{1, 3, 4, 5, 8} {
		for from := range 9 {
			for to := range 9 {
				for cut := 0; cut < n; cut++ {
					for i := range 64 {
						x.buf[i], y.buf[i] = byte(i+1), 0
					}
					wr := x.write(y, 1, 8+from, n)
					wr.RemoteAddr = y.mr.Addr() + uint64(8+to)
					if cut > 0 {
						wr.SGL = append(x.sge(8+from, cut), x.sge(8+from+cut, n-cut)...)
					}
					x.post(wr)
					awaitStatus(t, x.cq, 1, verbs.StatusSuccess)
					for i := range 64 {
						want := byte(0)
						if i >= 8+to && i < 8+to+n {
							want = byte(8 + from + i - (8 + to) + 1)
						}
						if y.buf[i] != want {
							t.Fatalf("%d bytes from %d to %d, cut at %d: byte %d is %d, want %d", n, from, to,
								cut, i, y.buf[i], want)
						}
					}
				}
			}
		}
	}
}

// The program's own atomics on a word and those of NICs add up.
func TestAtomicsOfNICsAndOfTheProgramAddUp(t *testing.T) {
	_, x, y := pair(t, Config{}, endConfig{})
	const rounds = 500
	own := make(chan struct{})
	go func() {
		for range rounds {
			atomic.AddUint64(nic.Word64(y.buf[wordAt:wordAt+8]), 1)
		}
		close(own)
	}()
	for range rounds {
		x.post(verbs.SendWR{ID: 1, Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled,
			SGL:        x.sge(0, 8),
			RemoteAddr: y.mr.Addr() + wordAt, RKey: y.mr.RKey(), CompareAdd: 1})
		awaitStatus(t, x.cq, 1, verbs.StatusSuccess)
	}
	<-own
	if got := y.load(8); got != 2*rounds {
		t.Fatalf("%d, want %d", got, 2*rounds)
	}
}
