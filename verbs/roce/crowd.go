package roce

import (
	"time"

	"ibverbx/verbs/roce/internal/wire"
)

// crowd divides a NIC's receive buffer among the NICs that send to it, and every acknowledgement
// grants its receiver a part. One NIC gets half of the buffer; several divide a quarter, because a
// queue pair that is alone on its NIC uses twice the part.
type crowd struct {
	own    int // half of the buffer, bytes
	grant  wire.Syndrome
	period uint32 // number of the present one
	since  int64  // when it began
	now    int    // NICs that have sent much in it
	before int    // NICs that had sent much in the one before
}

// arrivals counts what a NIC has sent to this one.
type arrivals struct {
	period uint32
	bytes  int // in that period
}

const (
	crowdPeriod = int64(20 * time.Millisecond)
	// much is how many bytes a NIC must send in a period to get a part: one that sends little takes
	// no room from others.
	much = 16 << 10
)

// arrived counts n bytes that a peer has sent.
func (d *Device) arrived(s *share, now int64, n int) {
	c := &d.crowd
	if now-c.since >= crowdPeriod {
		c.before = c.now
		if now-c.since >= 2*crowdPeriod {
			c.before = 0
		}
		c.now, c.since = 0, now
		c.period++
		d.divide()
	}
	if s.from.period != c.period {
		s.from = arrivals{period: c.period}
	}
	if s.from.bytes < much {
		if s.from.bytes += n; s.from.bytes >= much {
			c.now++
			d.divide()
		}
	}
}

// divide computes the part that acknowledgements grant.
func (d *Device) divide() {
	part := d.crowd.own
	if n := max(d.crowd.now, d.crowd.before); n > 1 {
		part /= 2 * n
	}
	d.crowd.grant = wire.AckCredits(max(part, leastGrant) >> 10)
}
