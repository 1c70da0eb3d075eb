package ibverbx

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// FuzzCompletions gives a connected virtual queue pair completions that are real, altered, or
// spurious. It must not panic, and must report every accepted request once, in order.
func FuzzCompletions(f *testing.F) {
	for scheme := range byte(2) {
		head := []byte{scheme | 2<<1 | 8}
		program := func(ops ...byte) { f.Add(append(head[:1:1], ops...)) }
		// posts of every kind, and their completions
		program(4, 1, 4, 0, 4, 3, 5, 0, 5, 1, 0, 7, 0, 7, 1, 7, 1, 7, 0, 7)
		program(4, 1, 4, 1, 5, 0, 5, 0, 7, 0, 0x80, 0, 7, 1, 0x81, 0, 7, 1, 7) // two notifications arrive
		// one fails, the others follow
		program(4, 0, 4, 0, 4, 2, 2, 7, 4, 0, 0, 2, 7, 0, 0, 4, 1, 0, 7, 1, 7)
		// duplicates, losses, wrong opcodes
		program(4, 0, 4, 1, 4, 0, 2, 7, 3, 3, 3, 3, 0, 7, 2, 7, 1, 2, 16, 8)
		program(5, 0, 5, 1, 6, 4, 0, 0, 0, 1, 0, 6, 5, 1, 0, 0, 3, 9, 8, 4, 1)    // invented, then a reset
		program(3, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 129, 1, 2) // noise
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) <= 512 { // longer programs find nothing new
			runProgram(t, data)
		}
	})
}

// FuzzCompletions with random programs: mostly posts and real completions. The share of altered and
// spurious ones differs from program to program.
func TestCompletionsAtRandom(t *testing.T) {
	programs := uint64(5000)
	if testing.Short() {
		programs = 500
	}
	const limit = 30 * time.Second
	watchdog := time.AfterFunc(limit, func() { panic("a program does not end") })
	defer watchdog.Stop()
	for seed := range programs {
		rng := rand.New(rand.NewPCG(seed, 6))
		data := make([]byte, 200+rng.IntN(400))
		altered := rng.IntN(10)
		for i := range data {
			switch {
			case rng.IntN(2) == 0:
				data[i] = []byte{0, 1, 4, 4, 4, 5, 5, 7}[rng.IntN(8)]
			case rng.IntN(10) < altered:
				data[i] = []byte{2, 6}[rng.IntN(2)]
			default:
				data[i] = byte(rng.Uint32() >> rng.UintN(9))
			}
		}
		runProgram(t, data)
		watchdog.Reset(limit)
	}
}

func runProgram(t *testing.T, data []byte) {
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("panic: %v\n%v\n%s", p, data, debug.Stack())
		}
	}()
	z := newFuzzed(t, program{data})
	for len(z.in.data) > 0 {
		z.step(t)
	}
	z.end(t)
}

// program is the bytes that control a fuzzed run.
type program struct{ data []byte }

func (p *program) byte() byte {
	if len(p.data) == 0 {
		return 0
	}
	b := p.data[0]
	p.data = p.data[1:]
	return b
}

func (p *program) uint32() uint32 {
	return binary.LittleEndian.Uint32([]byte{p.byte(), p.byte(), p.byte(), p.byte()})
}

// fuzzed is a virtual queue pair that is given invalid completions, and counts what it has accepted
// and reported.
type fuzzed struct {
	in       program
	null     *verbstest.Null
	q        *VirtualQP
	mr       *MR
	card     BusinessCard
	sends    uint64 // accepted: IDs 0, 1, 2, ...
	recvs    uint64
	sendDone uint64
	recvDone uint64
	scratch  []WC
}

// recvID is the first ID of receives; sends have smaller ones.
const recvID = 1 << 40

func newFuzzed(t *testing.T, in program) *fuzzed {
	z := &fuzzed{in: in}
	shape := z.in.byte()
	devices := []verbs.Device{}
	z.null = verbstest.NewNull(1 + int(shape>>3&1))
	for i := range 1 + int(shape>>3&1) {
		devices = append(devices, z.null.Device(i))
	}
	var err error
	z.q, err = Open(devices, Config{Scheme: Scheme(shape & 1), QPsPerDevice: 2 + int(shape>>1&3),
		FragmentSize: 100, MaxMsgCntPerQP: 4, Credits: 4, MaxBanked: 4})
	if err != nil {
		t.Fatal(err)
	}
	if z.mr, err = z.q.Domain().Register(make([]byte, 4096), verbs.AccessAll); err != nil {
		t.Fatal(err)
	}
	if z.card, err = z.q.Card(); err != nil {
		t.Fatal(err)
	}
	z.card = Elsewhere(z.card)
	if err := z.q.Connect(z.card); err != nil {
		t.Fatal(err)
	}
	return z
}

func (z *fuzzed) step(t *testing.T) {
	switch z.in.byte() % 9 {
	case 0, 1:
		z.processReal(t)
	case 2:
		z.processAltered(t)
	case 3:
		z.process(t, z.in.byte(), verbs.WC{
			ID: uint64(z.in.uint32())<<32 | uint64(z.in.uint32()), Status: verbs.Status(z.in.uint32()),
			Opcode: verbs.WCOpcode(z.in.byte()),
			QPNum:  z.in.uint32(), ByteLen: z.in.uint32(), Imm: z.in.uint32(),
			Flags: verbs.WCFlags(z.in.byte()),
		})
	case 4:
		z.send(t)
	case 5:
		z.recv(t)
	case 6:
		z.invent(t)
	case 7:
		z.arrive()
	case 8:
		if err := errors.Join(z.q.Reset(), z.q.Connect(z.card)); err != nil {
			t.Fatal(err)
		}
	}
}

// processReal processes what a device has really completed.
func (z *fuzzed) processReal(t *testing.T) {
	i := int(z.in.byte()) % len(z.q.cq.cqs)
	wcs := make([]verbs.WC, 1+z.in.byte()%16)
	n, err := z.q.cq.cqs[i].cq.Poll(wcs)
	if err != nil {
		t.Fatal(err)
	}
	z.process(t, byte(i), wcs[:n]...)
}

// processAltered alters what a device has completed, and processes that.
func (z *fuzzed) processAltered(t *testing.T) {
	i := int(z.in.byte()) % len(z.q.cq.cqs)
	wcs := make([]verbs.WC, 4)
	n, err := z.q.cq.cqs[i].cq.Poll(wcs)
	if err != nil {
		t.Fatal(err)
	}
	var given []verbs.WC
	for _, wc := range wcs[:n] {
		how := z.in.byte()
		if how&1 != 0 {
			given = append(given, wc) // twice
		}
		if how&2 != 0 {
			continue // missing, or once
		}
		if how&4 != 0 {
			wc.Status, wc.Opcode = verbs.Status(1+how>>4), verbs.WCOpcode(z.in.byte())
		}
		if how&8 != 0 {
			wc.Opcode = verbs.WCOpcode(z.in.byte())
		}
		if how&16 != 0 {
			wc.ID ^= wrid.New(0, 0, uint32(z.in.byte()), 0)
		}
		if how&32 != 0 {
			wc.Imm = z.in.uint32()
		}
		if how&64 != 0 {
			wc.ID ^= uint64(z.in.byte() & 7) // another request
		}
		if how&128 != 0 {
			given = append([]verbs.WC{wc}, given...) // out of order
			continue
		}
		given = append(given, wc)
	}
	z.process(t, byte(i), given...)
}

// rail chooses a rail, the notify rail included.
func (z *fuzzed) rail() *rail {
	if i := int(z.in.byte()) % (len(z.q.send.rails.data) + 1); i < len(z.q.send.rails.data) {
		return z.q.send.rails.data[i]
	}
	return z.q.send.rails.notify
}

// invent processes a spurious completion that looks real.
func (z *fuzzed) invent(t *testing.T) {
	kind, rl := uint64(z.in.byte()%8), z.rail()
	wc := verbs.WC{
		ID:     wrid.New(kind, rl.idBits, z.in.uint32()&wrid.AuxMask>>(z.in.byte()%24), uint64(z.in.byte())),
		Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: dqplb.Swap(uint32(z.in.byte())),
		QPNum: rl.qp.Num(), ByteLen: 5,
	}
	if b := z.in.byte(); b&1 != 0 {
		wc.Status = verbs.Status(b >> 1)
	}
	z.process(t, rl.device, wc)
}

// arrive makes a message of the peer consume a receive.
func (z *fuzzed) arrive() {
	rl := z.rail()
	b := z.in.byte()
	imm := uint32(b&15) | uint32(b>>7)<<31 | uint32(b>>6&1)<<30
	op := verbs.WCRecvRDMAWithImm
	if b>>4&3 == 3 {
		op = verbs.WCRecv
	}
	verbstest.CompleteRecv(rl.qp, dqplb.Swap(imm), uint32(b), op)
}

func (z *fuzzed) send(t *testing.T) {
	how := z.in.byte()
	wr := SendWR{ID: z.sends, Opcode: verbs.Opcode(how % 7), Flags: verbs.SendSignaled,
		Imm: uint32(how >> 3 & 1)}
	if how&0x80 != 0 {
		wr.Flags |= verbs.SendFence
	}
	wr.Local, wr.Remote = z.mr.Slice(0, 1+uint64(how&0x70)*8), z.mr.Remote().At(0)
	switch {
	case wr.Opcode.IsAtomic():
		wr.Local.Length = 8
	case how&0x60 == 0x60:
		wr.SGL, wr.Local = []Segment{z.mr.Slice(0, 130), {}, z.mr.Slice(7, 3), z.mr.Slice(300, 95)}, Segment{}
	case how&0x60 == 0x40 && wr.Opcode != verbs.OpRDMARead:
		wr.Flags |= verbs.SendInline
		wr.Local, wr.Inline = Segment{}, make([]byte, 60)
	}
	if n, err := z.q.PostSend(wr); n == 1 {
		z.sends++
	} else if !errors.Is(err, ErrFailed) {
		t.Fatalf("%+v: %v", wr, err)
	}
}

func (z *fuzzed) recv(t *testing.T) {
	wr := RecvWR{ID: recvID + z.recvs}
	if z.in.byte()&1 != 0 {
		wr.Local = z.mr.Slice(0, 100)
	}
	if n, err := z.q.PostRecv(wr); n == 1 {
		z.recvs++
	} else if !errors.Is(err, ErrFailed) {
		t.Fatalf("%+v: %v", wr, err)
	}
}

func (z *fuzzed) process(t *testing.T, dev byte, wcs ...verbs.WC) {
	z.scratch = z.q.cq.ProcessCompletions(z.scratch[:0], verbs.DeviceID(dev), wcs...)
	for i := range z.scratch {
		z.reported(t, &z.scratch[i])
	}
}

func (z *fuzzed) reported(t *testing.T, wc *WC) {
	next, accepted := &z.sendDone, z.sends
	id := wc.ID
	if id >= recvID {
		next, accepted = &z.recvDone, z.recvs
		id -= recvID
	}
	if id != *next || id >= accepted || wc.QPNum != z.q.num {
		t.Fatalf("reported %+v, want number %d of %d", *wc, *next, accepted)
	}
	*next++
}

// end closes everything and collects the remaining completions.
func (z *fuzzed) end(t *testing.T) {
	if err := z.q.Close(); err != nil {
		t.Fatal(err)
	}
	for wc, err := range z.q.cq.Completions() {
		if err != nil {
			break
		}
		z.reported(t, &wc)
	}
	if z.sendDone != z.sends || z.recvDone != z.recvs {
		t.Fatalf("%d of %d sends and %d of %d receives were reported", z.sendDone, z.sends, z.recvDone,
			z.recvs)
	}
	if err := errors.Join(z.mr.Close(), z.null.Close()); err != nil {
		t.Fatalf("leak: %v", err)
	}
}
