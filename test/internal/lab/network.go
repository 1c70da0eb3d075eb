package lab

import (
	"math/rand/v2"
	"slices"
	"time"
)

// NetworkPlan is a network that loses, repeats, delays, overtakes and changes packets, in virtual
// time.
type NetworkPlan struct {
	Seed    uint64
	NICs    int
	Latency time.Duration // of a packet that nothing happens to
	// Shares of all packets.
	Lose, Repeat, Delay, Corrupt float64
	// Forge is the share of packets of which a third NIC sends a false copy.
	Forge float64
	// Foreign: some NICs are as those of other makers.
	Foreign bool
	// IPv6, OddPorts and Bursts: how the NICs send.
	IPv6, OddPorts, Bursts bool
	// Patience is after how much time without a completion nothing comes of what still happens: a
	// receiver that is not ready is asked again for ever.
	Patience time.Duration
}

// DrawNetwork draws a network.
func DrawNetwork(rng *rand.Rand, seed uint64, nics int) *NetworkPlan {
	share := func(most float64) float64 { return max(0, rng.Float64()*2*most-most) }
	p := &NetworkPlan{Seed: seed, NICs: nics, Latency: time.Duration(1+rng.IntN(50)) * time.Microsecond,
		Patience: networkPatience, Foreign: rng.IntN(3) == 0, IPv6: rng.IntN(2) == 0,
		Bursts: rng.IntN(2) == 0, OddPorts: rng.IntN(3) == 0}
	if rng.IntN(5) != 0 {
		p.Lose, p.Repeat, p.Delay, p.Corrupt = share(0.06), share(0.1), share(0.3), share(0.03)
		p.Forge = share(0.05)
	}
	if p.Foreign {
		p.OddPorts = false
	}
	p.OddPorts = p.OddPorts && !p.IPv6
	return p
}

// The timers of queue pairs on a network. What a fault does to packets for a moment is over long
// before the retries are used up, even where the network loses as many as it may: so it must not
// fail anything.
const (
	NetworkTimeout  = 12 // the code of 16.8 ms
	NetworkRetries  = 7
	moment          = 8 * time.Millisecond
	networkPatience = 300 * time.Millisecond
)

// Network is a fabric of NICs that send packets.
type Network interface {
	Fabric
	// Describe has what happens described from now on.
	Describe(bool)
	// Check says what is wrong with a NIC, beside what its users see; nil when nothing is.
	Check() error
}

// NetworkNIC is a NIC of a network, and what may happen to its packets.
type NetworkNIC interface {
	Device
	// Lose has all packets lost that come in or go out, for some time, or until stop is called if
	// that is 0.
	Lose(in, out bool, d time.Duration) (stop func())
	// Hold holds what goes out for some time.
	Hold(d time.Duration)
	// Clog has the send buffer full so many times.
	Clog(times int)
}

func (q *QP) network() NetworkNIC { return q.NIC.Device.(NetworkNIC) }

// psns replaces each packet sequence number that the library has drawn by one that follows from
// the seed. As with the library's, those of one queue pair are far apart: an end cannot tell
// packets of an earlier connection from those of a later one if their numbers fit.
type psns struct {
	rng   *rand.Rand
	known map[drawnPSN]uint32
	of    map[uint32][]uint32 // by the number of the queue pair that sends
}

// drawnPSN is a number that the library has drawn for a queue pair that sends. Two queue pairs may
// draw the same number, by chance and not by the seed, so each has a translation of its own.
type drawnPSN struct{ qpNum, psn uint32 }

func newPSNs(seed uint64) *psns {
	return &psns{rng: rand.New(rand.NewPCG(seed, 0x70736e)), known: map[drawnPSN]uint32{},
		of: map[uint32][]uint32{}}
}

// translate returns the number that replaces one that the library has drawn for a queue pair that
// sends. Some are near the wrap.
func (p *psns) translate(qpNum, psn uint32) uint32 {
	drawn := drawnPSN{qpNum, psn}
	to, ok := p.known[drawn]
	if ok {
		return to
	}
	near := func(earlier uint32) bool { return !PSNsApart(earlier, to, 1<<14) }
	for again := true; again; again = slices.ContainsFunc(p.of[qpNum], near) {
		if to = p.rng.Uint32N(1 << 24); p.rng.IntN(3) == 0 {
			to = 1<<24 - 1 - to%64
		}
	}
	p.known[drawn] = to
	p.of[qpNum] = append(p.of[qpNum], to)
	return to
}

// PSNsApart says whether two packet sequence numbers are so far from each other, around the wrap.
func PSNsApart(a, b, far uint32) bool {
	ahead := (a - b) % (1 << 24)
	return far <= ahead && ahead <= 1<<24-far
}
