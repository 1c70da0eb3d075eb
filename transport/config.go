package transport

import (
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Config configures a [Worker]. The zero value works.
type Config struct {
	// QP configures the virtual queue pair of every endpoint. Zero fields mean: MaxMsgCntPerQP is
	// what the limits below need, and Credits is as large, because a rail carries no more messages
	// at a time than its peer has credits, although no message of this package uses one; MaxInline
	// is 128; MaxSGE is 5, or the NIC's maximum; MaxRecvSGE is 1, QPsPerDevice 4. Conn.RNRRetry is
	// 6, not forever: a peer that observes the credits always has a receive, so a peer without one
	// fails its endpoint, within 4 ms or the 6 pauses that the peer's NIC asks for. Conn.Access is
	// local and remote write and remote read; add remote atomic for atomics. NoNotifyQP is
	// refused in DQPLB over several queue pairs, because active messages are SENDs and use the
	// notify QP there. In Spray nothing of this package needs the notify QP.
	//
	// With Failover at both ends, an endpoint continues when it loses a NIC or a queue pair and
	// another is left at both ends: see the package comment. Credits are then two more. With Spray,
	// set it at both ends or at neither. A goroutine of their own calls the functions of QP.Events,
	// one after the other, soon after the event, also behind Close. So they may call the worker and
	// its endpoints, and may wait; of more than 1,024 events that wait meanwhile, later ones are
	// dropped.
	QP ibverbx.Config
	// MaxEndpoints is how many endpoints there may be at a time; 0 means 128, or as many as the
	// NIC's completion queue has room for.
	MaxEndpoints int
	// BufferSize is the size in bytes of a bounce buffer and of a receive buffer, and so of the
	// longest bcopy and of the longest active message; 0 means 8 KiB, or the longest message of the
	// NIC's port if that is less: beyond 8 KiB the copy costs more than sending from registered
	// memory.
	BufferSize int
	// BounceBuffers is how many bounce buffers all endpoints share; 0 means 256. Each endpoint has
	// two more of its own, in case slow or failed peers hold all others.
	BounceBuffers int
	// AMBuffers is how many receive buffers each endpoint keeps for its peer's active messages; 0
	// means 32, or what the NIC's queues hold; at most 4096. With more of them the sender can run
	// further ahead, but those of a hundred endpoints exceed the cache.
	AMBuffers int
	// MaxOutstanding is how many operations of one endpoint may be outstanding, so that one cannot
	// take what all share; 0 means 64.
	MaxOutstanding int
	// Spin is how long a call that waits, or the goroutine of [Worker.Start], polls before it
	// sleeps; 0 means 20 µs, [ibverbx.None] not at all, and an hour is busy polling. With few
	// cores, long spinning takes the processor from the goroutines that should do the work.
	Spin time.Duration
	// KeepAlive is how long an endpoint may be silent before the peer's NIC is probed by a small
	// read, as long as a goroutine makes progress or waits; 0 means a second, or never if Idle is
	// set, and [ibverbx.None] never. A peer that vanished is noticed after at most twice that time
	// and the retries of QP.Conn.
	KeepAlive time.Duration
	// Idle, if set, replaces polling and sleeping: a call that waits calls it after each round of
	// progress that did nothing. It is for a program with a scheduler of its own, such as a
	// simulation that moves its network by hand.
	Idle func()
}

// EndpointConfig configures an [Endpoint]. The zero value works.
type EndpointConfig struct {
	// Name names the peer in errors; "" means "endpoint 3".
	Name string
	// Value is the caller's own; [Endpoint.Value] returns it.
	Value any
	// OnError is called once, inside progress, when the peer fails or closes. The operations of the
	// endpoint complete with the same error. Requests that are pending are still in the queue then:
	// [Endpoint.Purge] hands them over; the functions of those that it leaves are called once more.
	OnError func(ep *Endpoint, err error)
	// OnReady is called inside progress once resources are back after a send on
	// [Endpoint.NotifyReady] met ErrNoResource. Sends on the endpoint that it gets go before all
	// others; if one of them meets ErrNoResource, it is called again.
	OnReady func(ep *Endpoint)
}

// Sizes and limits of the implementation.
const (
	// MaxHeader is the longest header of an active message in bytes.
	MaxHeader = 64
	// MaxAMBuffers is the largest Config.AMBuffers.
	MaxAMBuffers = 4096
	// minBuffer is the smallest Config.BufferSize.
	minBuffer = 256
	// maxPool is the most memory in bytes that bounce buffers, or the buffers of an endpoint, may
	// take: a configuration that asks for more is a mistake.
	maxPool = 1 << 34
	// maxEndpoints is the largest Config.MaxEndpoints: work-request ids hold the endpoint's number.
	maxEndpoints = 1 << 20
	// controlSlots is the number of the transport's own messages that an endpoint may have
	// outstanding, and of the receives that it keeps for those of its peer: two with credits, one
	// goodbye.
	controlSlots = 3
	// railControlSlots is the number of its own messages that a rail of a virtual queue pair has
	// room for if failover is offered, and railControlRecvs the least number of its own receives.
	railControlSlots = 2
	railControlRecvs = 4
	// defaultInline is the inline size asked for: a wire header and a cache line and a half of
	// payload.
	defaultInline = 128
	// needs are the rights that a queue pair must give its peer.
	needs = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	// shortWithoutInline is the longest short if the NIC takes less inline: it goes through a
	// bounce buffer then.
	shortWithoutInline = 64
)

// failoverSlots returns how many places of its queues a rail keeps for failover.
func (c *Config) failoverSlots() int {
	if c.QP.Failover {
		return railControlSlots
	}
	return 0
}

func (c Config) withDefaults(l *deviceLimits) Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.BufferSize, max(minBuffer, min(8<<10, l.message.most)))
	def(&c.BounceBuffers, 256)
	def(&c.AMBuffers, min(32, max(1, l.queue.most-controlSlots-c.failoverSlots())))
	def(&c.MaxOutstanding, 64)
	def(&c.QP.MaxMsgCntPerQP, max(c.MaxOutstanding, c.AMBuffers)+controlSlots)
	def(&c.QP.Credits, c.QP.MaxMsgCntPerQP+c.failoverSlots())
	def(&c.QP.MaxInline, min(defaultInline, l.inline.most))
	def(&c.QP.MaxSGE, max(2, min(5, l.sge.most)))
	def(&c.QP.MaxRecvSGE, 1)
	def(&c.QP.QPsPerDevice, 4)
	if c.QP.Conn.RNRRetry == 0 {
		c.QP.Conn.RNRRetry = 6
	}
	if c.QP.Conn.Access == 0 {
		c.QP.Conn.Access = needs
	}
	if c.Spin == 0 {
		c.Spin = 20 * time.Microsecond
	}
	if c.KeepAlive == 0 {
		if c.KeepAlive = time.Second; c.Idle != nil {
			c.KeepAlive = ibverbx.None
		}
	}
	return c
}

// validate returns what is wrong with a configuration whose defaults have been filled in, over so
// many NICs: all that would keep every endpoint from being made.
func (c *Config) validate(l *deviceLimits, nics int) error {
	for _, f := range [...]struct {
		name           string
		v, least, most int
	}{
		{"MaxEndpoints", c.MaxEndpoints, 0, maxEndpoints},
		{"BufferSize", c.BufferSize, minBuffer, 1 << 30},
		{"BounceBuffers", c.BounceBuffers, 1, 1 << 20},
		{"AMBuffers", c.AMBuffers, 1, MaxAMBuffers},
		{"MaxOutstanding", c.MaxOutstanding, 1, 1 << 16},
	} {
		if f.v < f.least || f.v > f.most {
			return configError("%s %d: must be %d to %d", f.name, f.v, f.least, f.most)
		}
	}
	// Its defaults follow from what stands above.
	if err := c.QP.Validate(nics); err != nil {
		return fmt.Errorf("transport: config: QP: %w", err)
	}
	switch {
	case c.QP.Conn.Access&needs != needs:
		return configError("QP.Conn.Access %v: must have %v: a flush and the keep-alive read, and failover "+
			"writes", c.QP.Conn.Access, needs)
	case c.QP.MaxSGE < 2:
		return configError("QP.MaxSGE %d: must be 2 at least, for active messages from registered memory",
			c.QP.MaxSGE)
	case c.QP.MaxMsgCntPerQP < c.AMBuffers+controlSlots:
		return configError("QP.MaxMsgCntPerQP %d: must be %d at least with AMBuffers %d", c.QP.MaxMsgCntPerQP,
			c.AMBuffers+controlSlots, c.AMBuffers)
	case c.BufferSize*c.BounceBuffers > maxPool:
		return configError("BufferSize %d times BounceBuffers %d: more than %d bytes", c.BufferSize,
			c.BounceBuffers, maxPool)
	case c.BufferSize*(c.AMBuffers+controlSlots+ownBuffers) > maxPool:
		return configError("BufferSize %d times AMBuffers %d: more than %d bytes an endpoint", c.BufferSize,
			c.AMBuffers, maxPool)
	case c.QP.NoNotifyQP && c.QP.QPsPerDevice*nics > 1 && c.QP.Scheme == ibverbx.DQPLB:
		return configError("QP.NoNotifyQP: active messages of dqplb travel on the notify QP: do not set it")
	}
	return l.check(c)
}
