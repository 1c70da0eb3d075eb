package roce

import (
	"time"

	"ibverbx/verbs/roce/internal/wire"
)

// crowd divides a NIC's receive buffer among the NICs that send to it: every answer grants its
// receiver a part. It counts them by their bytes, all of them by those of the busiest, so that a
// NIC that sends little takes no room from others. One may use half of the buffer; several divide a
// quarter, because a queue pair that is alone on its NIC uses twice the part.
type crowd struct {
	own    int // half of the buffer, bytes
	grant  wire.Syndrome
	period uint32 // number of the present one
	since  int64  // when it began
	// total is the bytes that have arrived in it, and most those of one NIC.
	total, most int
	last        int // how many NICs have sent in the period before
}

// arrivals counts what a NIC has sent to this one in a period.
type arrivals struct {
	period uint32
	bytes  int
}

// crowdPeriod spans several turns of processes that share a processor, because those that wait for
// theirs count too. 100 processes on two busy processors sent 1.2 % of their packets again with
// 5 ms, and 0.4 % with 10 ms; with 50 ms their parts were so small that it cost half of the
// bandwidth.
const crowdPeriod = int64(10 * time.Millisecond)

// arrived counts n bytes that a peer has sent.
func (d *Device) arrived(s *share, now int64, n int) {
	c := &d.crowd
	if past := now - c.since; past >= crowdPeriod {
		c.last = c.senders()
		if past >= 2*crowdPeriod {
			c.last = 1
		}
		c.total, c.most, c.since = 0, 0, now
		c.period++
	}
	if s.from.period != c.period {
		s.from = arrivals{period: c.period}
	}
	before := c.senders()
	s.from.bytes += n
	c.total, c.most = c.total+n, max(c.most, s.from.bytes)
	if c.total == n || c.senders() != before {
		d.divide()
	}
}

// departed stops counting a NIC whose queue pairs have all left: if it comes back, it counts once.
func (d *Device) departed(s *share) {
	if c := &d.crowd; s.from.period == c.period {
		c.total -= s.from.bytes
		d.divide()
	}
}

// senders returns how many NICs send to this one, if all send as much as the busiest.
func (c *crowd) senders() int { return (c.total + c.most/2) / max(c.most, 1) }

// divide computes the part that answers grant.
func (d *Device) divide() {
	c := &d.crowd
	part := c.own
	if n := max(c.senders(), c.last); n > 1 {
		part /= 2 * n
	}
	c.grant = wire.AckCredits(max(part, leastGrant) >> 10)
}
