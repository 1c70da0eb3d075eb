package lab

import (
	"math/rand/v2"
	"slices"
	"time"
)

// NetworkPlan is a network that loses, repeats, delays, reorders and changes packets, in virtual
// time.
type NetworkPlan struct {
	Seed    uint64
	NICs    int
	Latency time.Duration // of an undisturbed packet
	// Shares of all packets.
	Lose, Repeat, Delay, Corrupt float64
	// Forge is the share of packets that a third NIC forges a copy of.
	Forge float64
	// Foreign: some NICs behave like those of other makers.
	Foreign bool
	// IPv6, OddPorts and Bursts: how the NICs send.
	IPv6, OddPorts, Bursts bool
	// Patience is the time without a completion after which further activity is futile: a receiver
	// that is not ready is asked again forever.
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

// These are the timers of queue pairs on a network. A momentary fault is over long before the
// retries are used up, even on a network with the most losses, so it must not fail anything.
const (
	NetworkTimeout  = 12 // the code of 16.8 ms
	NetworkRetries  = 7
	moment          = 8 * time.Millisecond
	networkPatience = 300 * time.Millisecond
)

// Network is a fabric of NICs that send packets.
type Network interface {
	Fabric
	// Describe turns descriptions of events on or off.
	Describe(bool)
	// Check returns what is wrong inside a NIC, unseen by its users; nil if nothing is.
	Check() error
}

// NetworkNIC is a NIC of a network whose packets can be disturbed.
type NetworkNIC interface {
	Device
	// Lose drops all packets that come in or go out, for d, or until stop is called if d is 0.
	Lose(in, out bool, d time.Duration) (stop func())
	// Hold delays outgoing packets for some time.
	Hold(d time.Duration)
	// Clog makes the send buffer full so many times.
	Clog(times int)
}

func (q *QP) network() NetworkNIC { return q.NIC.Device.(NetworkNIC) }

// psns replaces each packet sequence number that the library has drawn with one that follows from
// the seed. As with the library's, those of one queue pair are far apart: an end cannot tell
// packets of an earlier connection from those of a later one if their numbers fit.
type psns struct {
	rng   *rand.Rand
	known map[drawnPSN]uint32
	of    map[uint32][]uint32 // by the number of the sending queue pair
}

// drawnPSN is a number that the library has drawn for a sending queue pair. Two queue pairs may
// draw the same number, by chance and not by the seed, so each has its own translation.
type drawnPSN struct{ qpNum, psn uint32 }

func newPSNs(seed uint64) *psns {
	return &psns{rng: rand.New(rand.NewPCG(seed, 0x70736e)), known: map[drawnPSN]uint32{},
		of: map[uint32][]uint32{}}
}

// translate returns the replacement of a number that the library has drawn for a sending queue
// pair. Some are near the wrap.
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

// PSNsApart reports whether two packet sequence numbers are at least that far apart, across the
// wrap.
func PSNsApart(a, b, far uint32) bool {
	ahead := (a - b) % (1 << 24)
	return far <= ahead && ahead <= 1<<24-far
}
