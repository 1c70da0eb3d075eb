package transport

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// deviceLimits are limits that every NIC of a worker allows: for each, the smallest. One that no
// NIC reports is infinite.
type deviceLimits struct {
	inline, sge, queue, cqe, message limit
}

// limit is a number, and the NIC that allows no more.
type limit struct {
	most   int
	device string
}

const unlimited = 1 << 30

// lower lowers the limit to that of a NIC; 0 means that the NIC does not say.
func (l *limit) lower(to int, device string) {
	if to > 0 && to < l.most {
		l.most, l.device = to, device
	}
}

// limitsOf asks the NICs of a domain, and their ports: those with a number, or the default ports.
func limitsOf(dom *ibverbx.Domain, port int) (l deviceLimits, err error) {
	for _, limit := range []*limit{&l.inline, &l.sge, &l.queue, &l.cqe, &l.message} {
		limit.most = unlimited
	}
	for _, dev := range dom.Devices() {
		attr, err := dev.Query()
		if err != nil {
			return l, fmt.Errorf("transport: new worker: %w", err)
		}
		number := port
		if number == 0 {
			number = dev.DefaultPort()
		}
		ends, err := dev.QueryPort(number)
		if err != nil {
			return l, fmt.Errorf("transport: new worker: %w", err)
		}
		name := dev.Name()
		l.inline.lower(attr.MaxInline, name)
		l.sge.lower(attr.MaxSGE, name)
		l.queue.lower(attr.MaxQPWR, name)
		l.cqe.lower(attr.MaxCQE, name)
		l.message.lower(int(ends.MaxMsgSize), name)
	}
	return l, nil
}

// check returns which field asks for more than a NIC can do; nil if none does.
func (l *deviceLimits) check(c *Config) error {
	for _, f := range [...]struct {
		name        string
		value, need int // need is the limit that the value needs of the NIC
		limit       limit
		of          string
	}{
		{"QP.MaxSGE", c.QP.MaxSGE, c.QP.MaxSGE, l.sge, "scatter-gather elements in a request"},
		{"QP.MaxRecvSGE", c.QP.MaxRecvSGE, c.QP.MaxRecvSGE, l.sge, "scatter-gather elements in a receive"},
		{"QP.MaxInline", c.QP.MaxInline, c.QP.MaxInline, l.inline, "bytes of an inline request"},
		{"AMBuffers", c.AMBuffers, c.AMBuffers + controlSlots + c.failoverSlots(), l.queue,
			"requests in a queue"},
		{"BufferSize", c.BufferSize, c.BufferSize, l.message, "bytes in a message"},
	} {
		if f.need > f.limit.most {
			return configError("%s %d: needs %d %s, %s allows %d", f.name, f.value, f.need, f.of,
				f.limit.device, f.limit.most)
		}
	}
	return nil
}

// completions returns the most completions that an endpoint may have outstanding on one of so many
// NICs. The first one also carries the notify QP.
func (c *Config) completions(nics int) int {
	data, other := c.QP.QPsPerDevice, 1
	credits, room := max(c.QP.Credits, 1), 2*c.QP.MaxMsgCntPerQP
	if c.QP.Failover && data*nics > 1 {
		credits = max(c.QP.Credits, railControlRecvs)
		if nics == 1 {
			other = 2 // a second one, for when the first is lost; on several NICs each has one
		}
		if c.QP.Scheme == ibverbx.Spray {
			other *= 2 // for SENDs, and for notifications
		}
		room += railControlSlots
	}
	n := data*(c.QP.MaxMsgCntPerQP+credits+c.failoverSlots()) + other*room
	if c.QP.Scheme == ibverbx.Spray {
		n += c.QP.MaxMsgCntPerQP // its first data rail takes SENDs
	}
	return n
}

// fitEndpoints sets MaxEndpoints if it is 0, and returns the depth of the completion queues.
func (c *Config) fitEndpoints(cqe limit, nics int) (depth int, err error) {
	each := c.completions(nics)
	if each > cqe.most {
		return 0, configError("an endpoint needs %d completions, the queues of %s hold %d: lower AMBuffers, "+
			"MaxOutstanding or QP.QPsPerDevice", each, cqe.device, cqe.most)
	}
	if c.MaxEndpoints == 0 {
		c.MaxEndpoints = min(128, cqe.most/each)
	}
	if c.MaxEndpoints*each > cqe.most {
		return 0, configError("MaxEndpoints %d: need %d completions, the queues of %s hold %d, enough for %d",
			c.MaxEndpoints, c.MaxEndpoints*each, cqe.device, cqe.most, cqe.most/each)
	}
	return c.MaxEndpoints * each, nil
}

func configError(format string, args ...any) error {
	return fmt.Errorf("transport: config: %w: "+format, append([]any{verbs.ErrInvalid}, args...)...)
}
