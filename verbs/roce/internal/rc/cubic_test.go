package rc

import "math"

// cubic is a flow of TCP CUBIC (RFC 9438) with selective acknowledgements (RFC 6675), as a model:
// it counts packets, its receiver acknowledges each, and it has no pacing and no HyStart.
//
// Invariant: una <= next; pipe counts the packets from una to next-1 that are under way.
type cubic struct {
	id      int
	stopped bool

	una, next int
	track     []sent // from una on, by the low bits of the number
	pipe      int
	highest   int // one past the highest packet that has arrived
	checked   int // no packet before it is found to be lost for the first time
	recovery  int // packets before it were sent before the window was last cut
	resend    int // no packet before it is lost

	window, threshold float64
	most              float64 // the window before the last cut
	epoch             int64   // when it was cut; 0 is not yet
	k                 float64 // the seconds from then on in which the window is at most again
	friendly          float64 // the window that Reno would have

	srtt  int64
	heard int64 // when something was last acknowledged

	got     []bool // what the receiver has beyond expect, by the low bits of the number
	expect  int
	arrived int
}

// sent is a packet that was sent.
type sent struct {
	at        int64
	has, lost bool // it has arrived; it is lost and not sent again yet
	resent    bool
}

// segment is a packet of TCP: its number, or what its acknowledgement says.
type segment struct {
	number int
	upTo   int // all before it have arrived
	sentAt int64
}

const (
	tcpSegment = 4096
	tcpHeaders = 66
	cubicC     = 0.4
	cubicBeta  = 0.7
	minRTO     = 200 * ms
	tcpTrack   = 1 << 13 // the most packets under way
)

func (n *bottleneck) addCubic() *cubic {
	f := &cubic{id: len(n.flows), window: 10, threshold: math.Inf(1),
		track: make([]sent, tcpTrack), got: make([]bool, tcpTrack), heard: n.now}
	n.flows = append(n.flows, f)
	return f
}

func (f *cubic) carried() float64 { return float64(f.arrived) * tcpSegment }
func (f *cubic) stop()            { f.stopped = true }

func (f *cubic) at(i int) *sent { return &f.track[i%tcpTrack] }

func (f *cubic) deadline() int64 {
	if f.una == f.next {
		return Never
	}
	return f.heard + max(minRTO, 2*f.srtt)
}

// tick handles a retransmission timeout.
func (f *cubic) tick(n *bottleneck) {
	if n.now < f.deadline() {
		return
	}
	for i := f.una; i < f.next; i++ {
		if s := f.at(i); !s.has {
			s.lost = true
		}
	}
	f.pipe, f.resend = 0, f.una
	f.threshold, f.window = max(f.window*cubicBeta, 2), 1
	f.most, f.epoch, f.recovery, f.heard = f.threshold, 0, f.next, n.now
}

func (f *cubic) receive(n *bottleneck, p *parcel) {
	if !p.back {
		f.arrives(n, p)
		return
	}
	a := p.tcp
	f.srtt += (n.now - a.sentAt - f.srtt) / 8
	if f.srtt == 0 {
		f.srtt = n.now - a.sentAt
	}
	news := f.take(a.number)
	f.highest = max(f.highest, a.number+1)
	for ; f.una < a.upTo; f.una++ {
		news += f.take(f.una)
	}
	if news == 0 {
		return
	}
	f.heard = n.now
	f.detect(n.now)
	if f.una >= f.recovery {
		f.grow(n.now, float64(news))
	}
}

// take notes that a packet has arrived. It returns how many have that had not before.
func (f *cubic) take(i int) int {
	s := f.at(i)
	if i < f.una || s.has {
		return 0
	}
	if !s.lost {
		f.pipe--
	}
	s.has, s.lost = true, false
	return 1
}

// arrives is the receiver.
func (f *cubic) arrives(n *bottleneck, p *parcel) {
	i := p.tcp.number
	if i >= f.expect && !f.got[i%tcpTrack] {
		f.arrived++
		f.got[i%tcpTrack] = true
	}
	for ; f.got[f.expect%tcpTrack]; f.expect++ {
		f.got[f.expect%tcpTrack] = false
	}
	a := n.parcel()
	a.flow, a.back = f.id, true
	a.tcp = segment{number: i, upTo: f.expect, sentAt: p.tcp.sentAt}
	n.carry(a, tcpHeaders)
}

// detect finds the packets behind which three others have arrived, and whether the oldest was lost
// again.
func (f *cubic) detect(now int64) {
	if s := f.at(f.una); f.una < f.next && s.resent && !s.lost && now-s.at > 2*f.srtt {
		f.lose(f.una)
	}
	for f.checked = max(f.checked, f.una); f.checked+3 < f.highest; f.checked++ {
		if s := f.at(f.checked); !s.has && !s.lost && !s.resent {
			f.lose(f.checked)
		}
	}
}

func (f *cubic) lose(i int) {
	f.at(i).lost = true
	f.pipe--
	f.resend = min(f.resend, i)
	if i >= f.recovery {
		f.cut()
	}
}

// cut answers a loss, once a round trip.
func (f *cubic) cut() {
	f.recovery, f.epoch = f.next, 0
	if f.window < f.most {
		f.most = f.window * (1 + cubicBeta) / 2 // fast convergence
	} else {
		f.most = f.window
	}
	f.window = max(f.window*cubicBeta, 2)
	f.threshold = f.window
}

// grow enlarges the window for packets that have arrived.
func (f *cubic) grow(now int64, packets float64) {
	if f.window < f.threshold {
		f.window += packets
		return
	}
	if f.epoch == 0 {
		f.epoch, f.friendly = now, f.window
		f.most = max(f.most, f.window)
		f.k = math.Cbrt((f.most - f.window) / cubicC)
	}
	alpha := 3 * (1 - cubicBeta) / (1 + cubicBeta)
	if f.friendly >= f.most {
		alpha = 1
	}
	f.friendly += alpha * packets / f.window
	t := float64(now-f.epoch+f.srtt)/1e9 - f.k
	target := min(max(cubicC*t*t*t+f.most, f.window), 1.5*f.window)
	f.window = max(f.window+packets*(target-f.window)/f.window, f.friendly)
}

func (f *cubic) transmit(n *bottleneck) {
	for !f.stopped && f.pipe < int(f.window) && f.next-f.una < tcpTrack {
		for f.resend = max(f.resend, f.una); f.resend < f.next && !f.at(f.resend).lost; {
			f.resend++
		}
		i := f.resend
		s := f.at(i)
		if i == f.next {
			if f.una == f.next {
				f.heard = n.now
			}
			f.next++
			*s = sent{}
		} else {
			s.resent, s.lost = true, false
		}
		s.at = n.now
		f.pipe++
		p := n.parcel()
		p.flow = f.id
		p.tcp = segment{number: i, sentAt: n.now}
		n.carry(p, tcpSegment+tcpHeaders)
	}
}
