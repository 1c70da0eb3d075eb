package rc

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// A stranger that forges the addresses of the peer, and knows or guesses the packet numbers, can
// end a connection: RoCE has no authentication. What it must not do is here.

var strangeOpcodes = []wire.Opcode{wire.SendFirst, wire.SendMiddle, wire.SendLast, wire.SendLastImm,
	wire.SendOnly, wire.SendOnlyImm, wire.WriteFirst, wire.WriteMiddle, wire.WriteLast, wire.WriteLastImm,
	wire.WriteOnly, wire.WriteOnlyImm, wire.ReadRequest, wire.ReadResponseFirst, wire.ReadResponseMiddle,
	wire.ReadResponseLast, wire.ReadResponseOnly, wire.Acknowledge, wire.AtomicAcknowledge,
	wire.CompareSwap, wire.FetchAdd}

// strangers is a transfer between two ends, and packets that neither has sent in the middle of it.
type strangers struct {
	*network
	input []byte
	posts int // requests and receives of both ends
	// trusted: they have the keys, and may change memory and ask for much; see TestHostilePeer.
	trusted bool

	forged   int             // packets of strangers
	answers  int             // packets of answers to their requests
	requests [2]map[seq]bool // the numbers of those requests, by the end that they go to
}

// byte is the next byte of the input, 0 behind its end.
func (s *strangers) byte() byte {
	if len(s.input) == 0 {
		return 0
	}
	b := s.input[0]
	s.input = s.input[1:]
	return b
}

const (
	strangeRecv   = 64 << 10 // what a message of anyone may land in
	strangeLand   = 96 << 10 // what an answer of anyone may land in
	strangeWrite  = 128 << 10
	strangeMemory = 160 << 10
)

// header is a packet that the input describes. Its keys are none of the connection's.
func (s *strangers) header(to int) (wire.Header, []byte) {
	q := s.ends[to].q
	h := wire.Header{Opcode: strangeOpcodes[int(s.byte())%len(strangeOpcodes)]}
	base := q.resp.expected
	if h.Opcode.IsResponse() {
		base = q.req.una
	}
	flags := s.byte()
	distance := seq(int64(int8(s.byte())))
	if flags&1 != 0 {
		distance <<= flags >> 3
	}
	h.PSN = (base + distance).psn()
	h.AckReq, h.Solicited = flags&2 != 0, flags&4 != 0
	b := s.byte()
	h.Syndrome = wire.Syndrome(b)
	h.Length = uint32(s.byte()) << (b & 31)
	h.Addr = uint64(s.byte())
	if b&1 != 0 {
		h.Addr = s.ends[to].mr.Addr() + uint64(s.byte())
	}
	h.RKey = s.ends[to].mr.RKey() ^ (1 + uint32(s.byte()))
	if s.trusted {
		h.RKey = s.ends[to].mr.RKey()
	}
	h.SwapAdd, h.Compare, h.Original = uint64(b), uint64(b), uint64(flags)
	var payload []byte
	if h.Opcode.HasPayload() {
		sizes := []int{0, 1, 255, 256, 257, 4096, 60000, int(s.byte())}
		payload = bytes.Repeat([]byte{0x5a}, sizes[int(s.byte())%len(sizes)])
	}
	return h, payload
}

// play gives the ends the packets that the input describes, in the middle of a transfer.
func (s *strangers) play(t *testing.T) {
	a, b := s.ends[0], s.ends[1]
	for _, e := range s.ends {
		for i := range e.mem {
			e.mem[i] = byte(i * 7)
		}
	}
	before := [2][]byte{bytes.Clone(a.mem), bytes.Clone(b.mem)}
	for i := range uint64(6) {
		for j, e := range s.ends {
			p := s.ends[1-j]
			if e.q.State != verbs.StateRTS {
				continue
			}
			e.recv(verbs.RecvWR{ID: i, SGL: e.sge(strangeRecv, 5000)})
			wr := verbs.SendWR{ID: i, Opcode: simOps[int(s.byte())%len(simOps)], Flags: verbs.SendSignaled,
				RKey: p.mr.RKey(), RemoteAddr: p.mr.Addr() + strangeWrite, SGL: e.sge(strangeLand, 3000)}
			if wr.Opcode.IsAtomic() {
				wr.SGL = e.sge(strangeLand, 8)
			}
			e.send(wr)
			s.posts += 2
		}
		for range s.byte() % 8 {
			s.step()
			s.check()
		}
		for range s.byte() % 16 {
			s.intrude(t, int(s.byte())&1)
		}
	}
	for range 20000 {
		if !s.step() {
			break
		}
	}
	completions := 0
	for i, e := range s.ends {
		completions += len(e.poll())
		if !s.trusted && !bytes.Equal(e.mem[:strangeRecv], before[i][:strangeRecv]) {
			t.Errorf("end %d: memory that nobody has a key of has changed", i)
		}
	}
	if completions > s.posts {
		t.Errorf("%d completions of %d requests and receives", completions, s.posts)
	}
}

// intrude gives an end a packet, and checks what it costs. Without a key a packet draws one
// acknowledgement or report of a gap when it arrives, and its request one packet of an answer when
// it is carried out, which may be later: at the latest when the gap before it is filled. What
// leaves then for requests of the peer that were kept too is not counted.
func (s *strangers) intrude(t *testing.T, to int) {
	h, payload := s.header(to)
	q := s.ends[to].q
	s.leaving(to)
	number := q.resp.expected.near(h.PSN)
	for n := range s.requests[to] { // of those to come, the ones that were dropped since
		p := q.resp.ahead.find(n)
		if n >= q.resp.expected && (p == nil || p.header.RKey == s.ends[to].mr.RKey()) {
			delete(s.requests[to], n)
		}
	}
	if h.Opcode.IsRequest() && q.resp.ahead.find(number) == nil { // of two the end keeps neither
		s.requests[to][number] = true
	}
	s.forge(to, h, payload)
	s.forged++
	reports := 0
	for _, h := range s.leaving(to) {
		switch {
		case !h.Opcode.IsResponse():
		case h.Opcode == wire.Acknowledge, h.TellsGap():
			reports++
		case s.requests[to][q.resp.expected.near(h.PSN)]:
			s.answers++
		}
	}
	if !s.trusted && (reports > 1 || s.answers > s.forged) {
		t.Errorf("%v draws %d reports; %d packets draw %d answers without a key", h.Opcode, reports,
			s.forged, s.answers)
	}
	a, r := &q.resp.answers, &q.resp.ahead
	kept := 0
	for _, p := range r.slots {
		if p != nil {
			kept += cap(p.payload)
		}
	}
	if len(a.list)-a.first > 3*maxReads+2 || r.n > maxTrack || kept > maxTrack*2*256 {
		t.Errorf("%d answers, %d packets of %d bytes kept", len(a.list), r.n, kept)
	}
	if p := q.resp.message; p.kind == sendMessage && p.at > 5000 {
		t.Errorf("%d bytes of a message in 5000", p.at)
	}
}

func playStrangers(t *testing.T, ours, trusted bool, input []byte) {
	s := &strangers{input: input, trusted: trusted, requests: [2]map[seq]bool{{}, {}},
		network: newNetwork(t, 1, shape{ours: ours, memory: strangeMemory, cqDepth: 512, rnrRetry: 3})}
	s.play(t)
}

// TestStrangers plays random intruders.
func TestStrangers(t *testing.T) { playMany(t, false, 400) }

// A peer that breaks the protocol has the keys. It may ruin its own connection and the memory that
// it was given, and costs no more than a stranger otherwise.
func TestHostilePeer(t *testing.T) { playMany(t, true, 150) }

func playMany(t *testing.T, trusted bool, worlds int) {
	if testing.Short() {
		worlds /= 10
	}
	if *seeds != 0 {
		worlds = int(*seeds)
	}
	bothKinds(t, func(t *testing.T, ours bool) {
		for seed := range worlds {
			rng := rand.New(rand.NewPCG(*firstSeed+uint64(seed), 3))
			input := make([]byte, 1500)
			for i := range input {
				input[i] = byte(rng.Uint32())
			}
			if playStrangers(t, ours, trusted, input); t.Failed() {
				t.Fatalf("seed %d", *firstSeed+uint64(seed))
			}
		}
	})
}

// FuzzReceive lets the fuzzer be the intruder.
func FuzzReceive(f *testing.F) {
	for _, ours := range []bool{false, true} {
		for _, trusted := range []bool{false, true} {
			f.Add(ours, trusted, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
			f.Add(ours, trusted, []byte{4, 3, 2, 1, 0, 255, 254, 253})
		}
	}
	f.Fuzz(func(t *testing.T, ours, trusted bool, input []byte) {
		if len(input) < 4000 {
			playStrangers(t, ours, trusted, input)
		}
	})
}

// A queue pair puts no more under way than its owner allows, asks for an acknowledgement of the
// last of that, and says that more would leave. Reads are asked for in shorter parts.
func TestAllow(t *testing.T) {
	bothKinds(t, func(t *testing.T, ours bool) {
		for name, ask := range map[string]func(e, peer *end) verbs.SendWR{
			"write": func(e, peer *end) verbs.SendWR { return e.write(peer, 1, 8000) },
			"read":  func(e, peer *end) verbs.SendWR { return e.read(peer, 1, 8000) },
		} {
			t.Run(name, func(t *testing.T) {
				n := newNetwork(t, 1, shape{ours: ours, mtu: verbs.MTU256, memory: 8000})
				a, b := n.ends[0], n.ends[1]
				a.send(ask(a, b))
				a.q.Allow(0)
				if n := len(a.transmit(n.now)); n != 0 || !a.q.HeldBack() || a.q.UnderWay() != 0 {
					t.Fatalf("%d packets leave, of none allowed; held back: %v", n, a.q.HeldBack())
				}
				var asks []bool
				n.left = func(from int, h *wire.Header) {
					if from == 0 {
						asks = append(asks, h.AckReq)
					}
				}
				a.q.Allow(3)
				n.flush(0)
				if a.q.UnderWay() != 3 || !a.q.HeldBack() || !asks[len(asks)-1] {
					t.Errorf("%d numbers under way; held back: %v; acknowledgements are asked for: %v",
						a.q.UnderWay(), a.q.HeldBack(), asks)
				}
				a.q.Allow(math.MaxInt)
				n.run()
				a.wantStatuses(success(1)...)
				if a.q.HeldBack() || a.q.UnderWay() != 0 {
					t.Errorf("in the end %d numbers are under way; held back: %v", a.q.UnderWay(),
						a.q.HeldBack())
				}
			})
		}
	})
}

// A peer that was silent for some probes gives its room to others.
func TestUnderWayOfSilentPeer(t *testing.T) {
	n := newNetwork(t, 1, shape{ours: true, timeout: 20})
	a, b := n.ends[0], n.ends[1]
	n.drop = func(int, *wire.Header) bool { return true }
	a.send(a.write(b, 1, 8))
	n.flush(0)
	for probe := range silentProbes {
		if got := a.q.UnderWay(); got != 1 {
			t.Errorf("%d under way after %d probes", got, probe)
		}
		n.happen()
		n.flush(0)
	}
	if got := a.q.UnderWay(); got != 0 {
		t.Errorf("%d under way after %d probes", got, silentProbes)
	}
}
