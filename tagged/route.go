package tagged

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"

	"ibverbx/internal/collective"
	"ibverbx/internal/peertext"
	"ibverbx/internal/ring"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Endpoints that are made on demand exchange their cards over those that all ranks have from the
// start: rank a has one to each rank b whose number differs from its own in one bit. A routed
// message changes the lowest bit in which the rank that it is at differs from the one that it is
// for. The rank after that may not exist, if Size is no power of two; then it changes the next one.
// There is always one: clearing a bit leads to a smaller number, and if all that differ are to be
// set, any of them leads to a number below that of the goal. Each step changes a bit that differs,
// so a message takes log2(Size) steps at most, and no step can be in a circle.
//
// A rank whose endpoint has failed is passed by. If no bit that differs leads on, the message takes
// a detour over one that does not, and does not go back at once. A message that has made more
// steps than the number has bits may go in a circle: from then on a hash of where it is, where it
// goes and how far it has come chooses the bit. So it arrives as long as any way is left, but for
// an unlikely one of more than maxHops steps. A rank that is next to a failed one ends a message
// for it.
//
//	this end                       the peer
//	Peer: makes an endpoint
//	   ── routeCard ─────────────►  makes one, and connects it
//	   ◄───────── routeConnected ─
//	connects; sends go out
//	   ── routeReady ────────────►  sends go out
//
// If both ask at once, each connects with the other's routeCard, and sends routeReady. Nothing is
// sent to a queue pair that is not connected: a NIC retries that only for so long.

// The kinds of routed messages, in byte 2 of their header.
const (
	routeCard      = iota // the card of an endpoint that is not connected
	routeConnected        // that of one that is
	routeReady            // the sender has connected its endpoint
	routeRefused          // it cannot; the data says why
)

// maxRouted is the most bytes of a routed message; cards are below 20 KiB.
const maxRouted = 64 << 10

// routed is a message, or a piece of one, on its way between two ranks.
//
// Invariant: offset+len(data) <= total <= maxRouted; sent <= len(data).
type routed struct {
	from, to int
	kind     uint8
	total    int // bytes of the message
	offset   int // where data begins in it
	data     []byte
	sent     int // bytes of data that this rank has sent on
	hops     int // steps that it has made, at most maxHops
	last     int // the rank that it came from; -1 at its first
}

// size is the memory that a routed message takes, in bytes.
func (m *routed) size() int { return len(m.data) + 96 }

// relay is the routed messages that wait to go out on an endpoint, in order.
//
// Invariant: bytes is the sum of their sizes. It is bounded by what three messages for each rank
// take, which is more than any program needs.
type relay struct {
	e     *Endpoint
	queue ring.FIFO[*routed]
	bytes int
}

// dial is how far an endpoint that is made on demand has come.
type dial uint8

const (
	dialDone     dial = iota // both ends are connected, or the program connects them
	dialAsked                // the peer was sent this end's card
	dialAnswered             // this end is connected; whether the peer is it does not know
)

// adjacent reports whether two ranks have an endpoint from the start: whether their numbers differ
// in one bit.
func adjacent(a, b int) bool { return bits.OnesCount(uint(a^b)) == 1 }

// maxHops is the most steps of a routed message: with up to three of 40 ranks gone the longest way
// takes 144.
const maxHops = 255

// step returns the rank of size that a message goes to next from rank at; usable says whether it
// may. It returns -1 if there is none.
func (m *routed) step(at, size int, usable func(rank int) bool) int {
	differ, width := uint(at^m.to), bits.Len(uint(size-1))
	if adjacent(at, m.to) {
		if usable(m.to) {
			return m.to
		}
		return -1 // it has failed
	}
	if m.hops >= maxHops {
		return -1
	}
	turn, detour := 0, false
	if m.hops >= width {
		h := collective.Mix(collective.Mix(uint64(m.hops), uint64(at)), uint64(m.to))
		turn, detour = int(h>>8&0xffff), h&3 == 3
	}
	for range 2 {
		for k := range width {
			bit := (k + turn) % width
			next := at ^ 1<<bit
			if (differ>>bit&1 == 0) == detour && next < size && next != m.last && usable(next) {
				return next
			}
		}
		detour = !detour
	}
	if m.last >= 0 && usable(m.last) {
		return m.last
	}
	return -1
}

// relays reports whether the endpoint to a rank carries routed messages.
func (r *ranks) relays(rank int) bool {
	e := r.peers[rank]
	return e != nil && e.relay != nil && e.err == nil
}

// route sends a message, or a piece of one, on its way.
func (r *ranks) route(m *routed) error {
	next := m.step(r.w.cfg.Rank, r.w.cfg.Size, r.relays)
	if next < 0 {
		return fmt.Errorf("%w: no rank on the way from rank %d to rank %d is left", ErrPeerFailed,
			r.w.cfg.Rank, m.to)
	}
	e := r.peers[next]
	if e.relay.bytes > r.w.cfg.Size*3*maxRouted {
		return fmt.Errorf("%w: %s, on the way, takes no messages", ErrPeerFailed, e.name)
	}
	e.relay.queue.Push(m)
	e.relay.bytes += m.size()
	e.kick()
	return nil
}

// passOn routes a message of another rank, or tells its sender that it cannot.
func (r *ranks) passOn(m *routed) {
	if err := r.route(m); err != nil && m.kind != routeRefused {
		r.refuseRouted(m.to, m.from, err)
	}
}

// refuseRouted tells a rank that the endpoint to another cannot be connected. If that does not
// reach it either, its waits end with their contexts.
func (r *ranks) refuseRouted(from, to int, why error) {
	text := []byte(why.Error())
	text = text[:min(len(text), 300)]
	if to != r.w.cfg.Rank {
		_ = r.route(&routed{from: from, to: to, kind: routeRefused, total: len(text), data: text, last: -1})
	} else if e := r.peers[from]; e != nil && e.dial != dialDone {
		e.fail(why)
	}
}

// sendCard sends an endpoint's card to its peer.
func (r *ranks) sendCard(e *Endpoint, kind uint8) error {
	card, err := e.card()
	if err != nil {
		return err
	}
	text, err := json.Marshal(card)
	if err != nil {
		return err
	}
	return r.route(&routed{from: r.w.cfg.Rank, to: e.rank, kind: kind, total: len(text), data: text,
		last: -1})
}

// push sends the routed messages that wait. They take no place of the window.
func (l *relay) push(view *transport.Endpoint) error {
	o := &l.e.w.outgoing
	for l.queue.Len() != 0 {
		m := *l.queue.Front()
		n := min(len(m.data)-m.sent, l.e.limits.AMBcopy-maxHeader)
		h := header{flag: m.kind, id: uint32(m.total), length: uint64(m.offset + m.sent),
			tag: uint64(m.from) | uint64(m.hops+1)<<16 | uint64(m.to)<<32}
		o.src.set([][]byte{m.data[m.sent : m.sent+n]}, n)
		o.from, o.left = &o.src, n
		_, err := view.AMBcopy(amRoute, h.put(&o.hdr, amRoute), o.pack)
		o.from = nil
		o.src.clear()
		if err != nil {
			return err
		}
		if m.sent += n; m.sent == len(m.data) {
			l.bytes -= m.size()
			l.queue.Pop()
		}
	}
	return nil
}

// reroute sends the messages that wait on a failed endpoint by another way.
func (l *relay) reroute() {
	for l.queue.Len() != 0 {
		m := *l.queue.Front()
		l.queue.Pop()
		l.bytes -= m.size()
		if m.sent = 0; !l.e.w.closed {
			l.e.w.ranks.passOn(m)
		}
	}
}

// arrived handles a routed message, or a piece of one, that has arrived on an endpoint.
func (r *ranks) arrived(e *Endpoint, h *header, data []byte) error {
	m := &routed{from: int(uint16(h.tag)), to: int(h.tag >> 32), kind: h.flag, total: int(h.id),
		offset: int(h.length), hops: int(uint16(h.tag >> 16)), last: e.rank}
	switch {
	case e.relay == nil:
		return errors.New("a routed message, which only ranks on demand that are adjacent send")
	case m.hops > maxHops:
		return fmt.Errorf("a routed message that has made %d steps: %d are the most", m.hops, maxHops)
	case m.from >= e.w.cfg.Size || m.to >= e.w.cfg.Size || m.from == m.to ||
		m.from == e.w.cfg.Rank && m.hops < 2: // a detour may lead back
		return fmt.Errorf("a message from rank %d to rank %d of %d routed here", m.from, m.to, e.w.cfg.Size)
	}
	if m.to != e.w.cfg.Rank {
		m.data = append(m.data, data...)
		r.passOn(m)
		return nil
	}
	if m.total != len(data) {
		var whole bool
		if data, whole = r.assemble(m, data); !whole {
			return nil
		}
	}
	r.handle(m.from, m.kind, data)
	return nil
}

// partial is a routed message of which some pieces have arrived.
//
// Invariant: len(data) < total; data is where the message begins.
type partial struct {
	kind  uint8
	total int
	data  []byte
}

// assemble adds a piece to a message that arrives in several, and returns it once it is whole. When
// a rank on the way has failed, pieces may come twice, or not before they come again.
func (r *ranks) assemble(m *routed, data []byte) (whole []byte, ok bool) {
	if r.arriving == nil {
		r.arriving = map[int]*partial{}
	}
	p := r.arriving[m.from]
	if p == nil || p.kind != m.kind || p.total != m.total {
		p = &partial{kind: m.kind, total: m.total}
		r.arriving[m.from] = p
	}
	if have := len(p.data) - m.offset; have >= 0 && have < len(data) {
		p.data = append(p.data, data[have:]...)
	}
	if len(p.data) < m.total {
		return nil, false
	}
	delete(r.arriving, m.from)
	return p.data, true
}

// handle handles a routed message for this rank.
func (r *ranks) handle(from int, kind uint8, data []byte) {
	e := r.peers[from]
	switch kind {
	case routeReady:
		if e != nil && e.err == nil && e.dial == dialAnswered {
			e.connected()
		}
		return
	case routeRefused:
		if e != nil && e.dial != dialDone {
			e.fail(fmt.Errorf("%w: it is not connected: %s", ErrPeerFailed,
				peertext.Line(string(data), 300)))
		}
		return
	}
	if err := r.answer(from, kind, data); err != nil {
		r.refuseRouted(r.w.cfg.Rank, from, err)
	}
}

// answer connects the endpoint to a rank with its card, and tells it so.
func (r *ranks) answer(from int, kind uint8, data []byte) (err error) {
	e := r.peers[from]
	asked := e != nil
	switch {
	case !asked && kind == routeConnected:
		return fmt.Errorf("%w: rank %d has not asked for it", verbs.ErrInvalid, r.w.cfg.Rank)
	case !asked:
		if e, err = r.newPeer(from); err != nil {
			return err
		}
	case e.err != nil:
		return e.err
	case e.dial != dialAsked:
		return nil // it is connected: the card came twice
	}
	var card Card
	if err = json.Unmarshal(data, &card); err != nil {
		err = fmt.Errorf("%w: card: %.200s", verbs.ErrInvalid, err.Error())
	} else {
		err = e.connect(card)
	}
	e.dial = dialAnswered
	switch {
	case err != nil:
	case !asked:
		err = r.sendCard(e, routeConnected)
	default:
		err = r.route(&routed{from: r.w.cfg.Rank, to: from, kind: routeReady, last: -1})
	}
	if err != nil {
		e.fail(err)
		return err
	}
	if kind == routeConnected {
		e.connected()
	}
	return nil
}
