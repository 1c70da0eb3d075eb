package roce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// gate is a socket's send buffer that has room for so many packets. It keeps a copy of those that
// it has let through. The NIC's lock guards it.
type gate struct {
	dev    *Device
	room   int
	refill int // the room that there is again once a packet was refused
	passed [][]byte
	next   func(destination, []udp.Packet, bool) (int, error)
}

func newGate(d *Device, room, refill int) *gate {
	g := &gate{dev: d, room: room, refill: refill, next: d.sender.put}
	d.mu.Lock()
	d.sender.put = g.put
	d.mu.Unlock()
	return g
}

func (g *gate) put(to destination, packets []udp.Packet, segment bool) (int, error) {
	n := min(g.room, len(packets))
	for i := range packets[:n] {
		p := &packets[i]
		g.passed = append(g.passed, slices.Concat(p.Header, p.Payload, p.Trailer))
	}
	g.room -= n
	if k, err := g.next(to, packets[:n], segment); err != nil {
		return k, err
	}
	if n < len(packets) {
		g.room = g.refill
		return n, udp.ErrAgain
	}
	return n, nil
}

// open lets so many packets through.
func (g *gate) open(room int) {
	g.dev.mu.Lock()
	g.room, g.refill = room, room
	g.dev.mu.Unlock()
}

// destQP is the queue pair that a packet is for.
func destQP(packet []byte) uint32 { return binary.BigEndian.Uint32(packet[4:]) & 0xffffff }

const plenty = 1 << 30

// What the socket refuses leaves later, whole, in its order; and since each packet then leaves by
// itself, with the ICRC of one that is no part of a burst.
func TestBacklog(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<18)
	a, b := pair[0], pair[1]
	overWire(a, b)
	a.post(t, a.write(b, 1, 1<<16)) // from here on both know that the other is an end of this package
	a.succeed(t)
	for i := range a.buf {
		a.buf[i] = byte(i * 7)
	}
	g := newGate(a.dev, 3, 0)
	a.post(t, a.write(b, 2, len(a.buf)))
	a.dev.mu.Lock()
	refused := len(a.dev.sender.backlog)
	direct := len(g.passed)
	a.dev.mu.Unlock()
	if refused == 0 || direct != 3 {
		t.Fatalf("%d packets left and %d wait", direct, refused)
	}
	g.open(plenty)
	a.succeed(t)
	if !bytes.Equal(a.buf, b.buf) {
		t.Error("the bytes differ")
	}
	a.dev.mu.Lock()
	defer a.dev.mu.Unlock()
	for i, packet := range g.passed[direct : direct+refused] {
		if !a.qp.path.out.Check(0, packet) {
			t.Errorf("packet %d of the backlog: the ICRC is not that of a packet by itself", i)
		}
	}
	if a.dev.counts.Retried != uint64(refused) {
		t.Errorf("%d packets counted, %d waited", a.dev.counts.Retried, refused)
	}
}

// Ends of this package leave out the ICRC towards an address of their own host, and take a packet
// without one from there only. Over a wire, and to a foreign end, each packet has one.
func TestICRCOfOneHost(t *testing.T) {
	for name, test := range map[string]struct {
		cfg     Config
		wire    bool
		without bool
	}{
		"one host": {without: true},
		"a wire":   {wire: true},
		"foreign":  {cfg: Config{Strict: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p := openNICs(t, test.cfg, "127.0.0.1", "127.0.0.2")
			pair := newNodes(t, p.Device(0), p.Device(1), 1<<14)
			a, b := pair[0], pair[1]
			if test.wire {
				overWire(a, b)
			}
			a.post(t, a.write(b, 1, len(a.buf))) // now both know that the other is an end of this package
			a.succeed(t)
			g := newGate(a.dev, plenty, 0)
			a.post(t, a.write(b, 2, len(a.buf)))
			a.succeed(t)
			stripped := &stripper{next: g.next}
			a.dev.mu.Lock()
			a.dev.sender.put = stripped.put
			a.dev.mu.Unlock()
			a.post(t, a.write(b, 3, 100))
			a.succeed(t)
			a.dev.mu.Lock()
			defer a.dev.mu.Unlock()
			for i, packet := range g.passed {
				if test.without != wire.HasNoICRC(packet) {
					t.Errorf("packet %d has the ICRC %x", i, packet[len(packet)-wire.ICRCSize:])
				}
			}
			if bad := b.dev.Counters().BadICRC; len(g.passed) == 0 || test.without != (bad == 0) {
				t.Errorf("%d packets have left, %d have a wrong ICRC", len(g.passed), bad)
			}
		})
	}
}

// stripper takes the ICRC from the first packets that leave.
type stripper struct {
	done bool
	next func(destination, []udp.Packet, bool) (int, error)
}

func (s *stripper) put(to destination, packets []udp.Packet, segment bool) (int, error) {
	for i := range packets {
		if tail := packets[i].Trailer; !s.done {
			clear(tail[len(tail)-wire.ICRCSize:])
		}
	}
	s.done = true
	return s.next(to, packets, segment)
}

// Queue pairs that wait for room take turns.
func TestBacklogFair(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<18)
	a, b := pair[0], pair[1]
	second := [2]*QP{a.newQP(t), b.newQP(t)}
	defer second[0].Close()
	defer second[1].Close()
	must(t, verbstest.Connect(second[0], second[1], verbstest.ConnectConfig{Port: 1}))
	g := newGate(a.dev, 0, 0)
	wrs := []verbs.SendWR{a.write(b, 1, len(a.buf)), a.write(b, 2, len(a.buf))}
	for _, qp := range []*QP{a.qp, second[0]} {
		_, err := qp.PostSend(wrs)
		must(t, err)
	}
	g.open(4)
	for range 4 {
		a.succeed(t)
	}
	a.dev.mu.Lock()
	defer a.dev.mu.Unlock()
	first := slices.IndexFunc(g.passed, func(p []byte) bool { return destQP(p) == second[1].Num() })
	last := len(g.passed)
	for last > 0 && destQP(g.passed[last-1]) != b.qp.Num() {
		last--
	}
	if first < 0 || first > 2*rc.BatchPackets {
		t.Errorf("the second queue pair sends its first packet behind %d of the first one, of %d in all",
			first, last)
	}
}

// What a queue pair has in the backlog does not leave any more once it is reset or closed, and does
// not hold up others.
func TestBacklogForgotten(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *QP){
		"reset": func(t *testing.T, qp *QP) {
			must(t, qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
			must(t, qp.Close())
		},
		"close": func(t *testing.T, qp *QP) { must(t, qp.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
			pair := newNodes(t, p.Device(0), p.Device(1), 1<<16)
			a, b := pair[0], pair[1]
			doomed := [2]*QP{a.newQP(t), b.newQP(t)}
			defer doomed[1].Close()
			must(t, verbstest.Connect(doomed[0], doomed[1], verbstest.ConnectConfig{Port: 1}))
			g := newGate(a.dev, 0, 0)
			_, err := doomed[0].PostSend([]verbs.SendWR{a.write(b, 1, len(a.buf))})
			must(t, err)
			a.post(t, a.write(b, 2, len(a.buf)))
			end(t, doomed[0])
			g.open(plenty)
			if wc := a.succeed(t); wc.ID != 2 {
				t.Errorf("completion of %d", wc.ID)
			}
			a.dev.mu.Lock()
			defer a.dev.mu.Unlock()
			for _, packet := range g.passed {
				if destQP(packet) == doomed[1].Num() {
					t.Fatal("a packet of the old connection has left")
				}
			}
		})
	}
}

// A queue pair that gets another way to its peer leaves nothing in the backlog for the way before,
// which is closed. What it had there is sent again.
func TestBacklogOfModify(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<16)
	a, b := pair[0], pair[1]
	g := newGate(a.dev, 0, 0)
	a.post(t, a.write(b, 1, len(a.buf)))
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.QPAttrState))
	attr, err := a.qp.Query()
	must(t, err)
	must(t, a.qp.Modify(&attr, verbs.QPAttrAV))
	a.dev.mu.Lock()
	closed := 0
	for _, h := range a.dev.sender.backlog {
		if h.to != a.qp.path.to {
			closed++
		}
	}
	users := a.qp.path.share.users
	a.dev.mu.Unlock()
	if closed != 0 || users != 1 {
		t.Errorf("%d packets wait to leave for a destination that is closed; a share of one has %d users",
			closed, users)
	}
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState))
	g.open(plenty)
	a.succeed(t)
}

// What a queue pair may send leaves at once, also where it is more than a batch holds.
func TestMoreThanABatch(t *testing.T) {
	n := openVirtualNICs(t, Config{}, 2)
	const size = 1 << 20
	for _, x := range n.nics {
		x.cfg = Config{Strict: true} // the network marks no packet of foreign ends
	}
	pair := newNodes(t, n.nics[0].Device, n.nics[1].Device, size)
	a, b := pair[0], pair[1]
	for range 3 { // after which the window is large
		a.post(t, a.write(b, 1, size))
		must(t, n.await(t, a).Status.Err())
	}
	a.post(t, a.write(b, 2, size))
	if k := a.qp.engine.UnderWay(); k <= rc.BatchPackets {
		t.Errorf("%d packets are under way, no more than a batch holds", k)
	}
	must(t, n.Check())
	must(t, n.await(t, a).Status.Err())
}

// A rate limit holds in both directions: of writes, and of the answers to reads, which the other
// end sends. The NICs are on a network in virtual time, so that the figure is theirs and not that
// of the machine.
func TestRate(t *testing.T) {
	for _, rate := range []float64{0.25e6, 5e6, 50e6, 1e9} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			t.Run(fmt.Sprintf("%v MB a second/%v", rate/1e6, op), func(t *testing.T) {
				n := openVirtual(t, Config{Rate: rate})
				pair := newNodes(t, n.nics[0].Device, n.nics[1].Device, rateSize)
				got := rateOf(t, n, pair, op)
				if got > 1.01*rate || got < 0.99*rate {
					t.Errorf("%.0f bytes a second, %.1f %% of the limit", got, 100*got/rate)
				}
				t.Logf("%.1f %% of the limit; %+v", 100*got/rate, pair[0].dev.Counters())
			})
		}
	}
}

const rateSize = 64 << 10

// rateOf returns how many bytes a second pass, with four requests outstanding.
func rateOf(t *testing.T, n *network, pair [2]*node, op verbs.Opcode) float64 {
	const count, depth = 160, 4
	a, b := pair[0], pair[1]
	began := n.now
	for i := range count + depth {
		if i >= depth {
			must(t, n.await(t, a).Status.Err())
		}
		if i < count {
			wr := a.write(b, 1, rateSize)
			wr.Opcode = op
			a.post(t, wr)
		}
	}
	return float64(count*rateSize) / (float64(n.now-began) / 1e9)
}
