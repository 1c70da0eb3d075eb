package sim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// vcq is a virtual CQ and the virtual queue pairs on it.
type vcq struct {
	w        *world
	host     *lab.Host
	name     string
	cq       *ibverbx.VirtualCQ
	taps     []*tappedCQ
	ends     []*end
	direct   bool // the program polls the physical CQs itself
	mayDie   bool // a physical CQ may have died
	reported bool // a poll has reported that
	closed   bool
	buf      [80]ibverbx.WC
	scratch  []ibverbx.WC
}

// ended is a context that has ended: calls that wait poll once.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// poll takes completions with one of the polling calls.
func (c *vcq) poll() int {
	if c.direct && !c.closed {
		return c.pollDirectly()
	}
	rng := c.w.Rng
	switch n := rng.IntN(12); n {
	case 0:
		wc, ok, err := c.cq.PollOne()
		if c.buf[0], n = wc, 0; ok {
			n = 1
		}
		return c.polled(n, err)
	case 1:
		c.w.only = c.host.NICs[rng.IntN(len(c.host.NICs))]
		n, err := c.cq.PollDevice(c.w.only.ID(), c.buf[:1+rng.IntN(5)])
		c.w.only = nil
		return c.polled(n, err)
	case 2:
		return c.pollRange()
	case 3:
		c.wait()
		return c.polled(c.cq.Poll(c.buf[:2]))
	case 4, 5, 6:
		return c.polled(c.cq.Poll(c.buf[:1+rng.IntN(4)]))
	default:
		return c.polled(c.cq.Poll(c.buf[:]))
	}
}

// polled handles the result of a poll.
func (c *vcq) polled(n int, err error) int {
	c.takeAll(c.buf[:n])
	c.mayFail(n, err)
	return n
}

// pollRange ranges over completions. If it stops early, the rest must not be lost.
func (c *vcq) pollRange() int {
	n, most := 0, 1+c.w.Rng.IntN(20)
	for wc, err := range c.cq.Completions() {
		if err != nil {
			c.mayFail(n, err)
			continue
		}
		c.take(&wc)
		if n++; n == most {
			break
		}
	}
	return n
}

// pollDirectly polls the physical CQs itself and passes on their completions.
func (c *vcq) pollDirectly() int {
	c.scratch = c.scratch[:0]
	var wcs [16]verbs.WC
	polled := 0
	for i := range c.taps {
		t := c.taps[(i+c.w.At)%len(c.taps)]
		if t.dead {
			continue
		}
		n, err := t.Poll(wcs[:1+c.w.Rng.IntN(len(wcs))])
		polled += n
		c.scratch = c.cq.ProcessCompletions(c.scratch, t.NIC.ID(), wcs[:n]...)
		if err != nil {
			c.mayFail(0, err)
			c.cq.FailDevice(t.NIC.ID(), err)
			c.scratch = c.cq.ProcessCompletions(c.scratch, t.NIC.ID())
		}
	}
	// the library repeats posts that a NIC refused for now
	c.scratch = c.cq.ProcessCompletions(c.scratch, c.taps[0].NIC.ID())
	c.takeAll(c.scratch)
	return polled + len(c.scratch)
}

// wait checks the result of Wait, and perhaps arms for an event.
func (c *vcq) wait() {
	ready := c.cq.Stats().Ready
	err := c.w.waiting(func() error { return c.cq.Wait(ended) })
	switch {
	case err == nil:
		if c.cq.Stats().Ready == 0 {
			c.w.Broken(ruleCounters, "%s: Wait says that there is a completion, and there is none", c.name)
		}
	case errors.Is(err, context.Canceled):
		if ready != 0 {
			c.w.Broken(lab.Liveness, "%s: %d completions wait, and Wait does not see them", c.name, ready)
		}
	default:
		c.mayFail(0, err)
	}
	if !c.closed && c.w.Rng.IntN(2) == 0 {
		if err := c.cq.Arm(); err != nil {
			c.mayFail(0, err)
		}
		select {
		case <-c.cq.Events():
		default:
		}
	}
}

// mayFail checks an error of a poll.
func (c *vcq) mayFail(n int, err error) {
	switch {
	case err == nil:
	case c.closed && n == 0 && errors.Is(err, ibverbx.ErrClosed):
	case c.mayDie && (errors.Is(err, verbs.ErrOverrun) || errors.Is(err, verbs.ErrDeviceGone)):
		c.reported = true
		c.w.Logf("  %s: %v", c.name, err)
	default:
		c.w.Broken(lab.Isolation, "%s: poll: %v", c.name, err)
	}
}

func (c *vcq) takeAll(wcs []ibverbx.WC) {
	for i := range wcs {
		c.take(&wcs[i])
	}
}

// take hands a completion to the virtual queue pair that it names.
func (c *vcq) take(wc *ibverbx.WC) {
	for _, e := range c.ends {
		if e.vq.Num() == wc.QPNum {
			e.take(wc)
			e.checkErr()
			return
		}
	}
	c.w.Broken(ruleRouting, "%s: a completion of virtual qp %d, which is not there: %s", c.name, wc.QPNum,
		describe(wc))
}

// checkErr checks that Err keeps the first error, and that there is a cause for it.
func (e *end) checkErr() {
	err := e.vq.Err()
	if err == nil {
		if e.firstErr != "" {
			e.w.Broken(ruleFirstError, "%v has forgotten: %s", e, e.firstErr)
		}
		return
	}
	var failed *ibverbx.FailedError
	if !errors.As(err, &failed) {
		e.w.Broken(ruleFirstError, "%v: Err is no FailedError: %v", e, err)
	}
	if e.firstErr == "" {
		e.firstErr = err.Error()
		e.w.Logf("  %v: %v: %v", e, failed.Part, err)
		e.checkNamed(failed)
		e.checkReadable(failed)
		e.conn.causeInCQ()
		if e.conn.Blame == "" && !e.ended() {
			e.w.Broken(lab.Isolation, "%v has failed without a cause: %v", e, err)
		}
	}
	if e.firstErr != err.Error() {
		e.w.Broken(ruleFirstError, "%v said %s, and now says %v", e, e.firstErr, err)
	}
	if state := e.vq.State(); state != verbs.StateErr {
		e.w.Broken(ruleFirstError, "%v has failed and is in %v", e, state)
	}
}

// checkSource checks that a completion of the error's rail had the error's status and vendor code.
func (e *end) checkSource(f *ibverbx.FailedError) {
	var status verbs.Status
	if f.Rail < 0 || !errors.As(f.Err, &status) {
		return
	}
	q := e.wires[f.Rail]
	if f.RailQPNum != q.Num() || f.Device != q.NIC.Name() {
		e.w.Broken(ruleFirstError, "%v: rail %d is %v: %v", e, f.Rail, q, f)
	}
	seen := func(wc verbs.WC) bool {
		return wc.Status == status && (wc.VendorErr == f.VendorErr || f.Part == ibverbx.PartUnknown)
	}
	if !slices.ContainsFunc(q.bad, seen) {
		e.w.Broken(ruleFirstError, "%v: no completion of %v was so: %v", e, q, f)
	}
}

// checkNamed checks that the error names the physical request that failed first: queue pair,
// addresses, and its request.
func (e *end) checkNamed(f *ibverbx.FailedError) {
	e.checkSource(f)
	var status verbs.Status
	if f.Recv || !f.HasID || f.Part != ibverbx.PartFragment && f.Part != ibverbx.PartMessage ||
		f.WholeRange || !errors.As(f.Err, &status) || e.single || e.conn.failover {
		return
	}
	if e.firstFailed == nil {
		e.w.Broken(ruleFirstError, "%v: no request has failed, but the error says: %v", e, f)
	}
	if base := e.peer.host.MR.Addr(); f.Device != e.firstFailedOn.NIC.Name() ||
		f.RailQPNum != e.firstFailedOn.Num() ||
		f.ID != e.id(false, e.firstFailed.req.index) ||
		f.RemoteAddr != e.firstFailed.remote || f.Length != e.firstFailed.bytes {
		// for a SEND the addresses mean nothing
		e.w.Broken(ruleFirstError, "%v: what failed first was %d bytes of %v on %v at %+d, but the error "+
			"says %d bytes at %d: %v", e, e.firstFailed.bytes, e.firstFailed.req, e.firstFailedOn,
			e.firstFailed.remote-base,
			f.Length, f.RemoteAddr-base, f)
	}
}

// checkReadable checks that an error has the same content as text, JSON and slog fields.
func (e *end) checkReadable(err error) {
	var fields struct {
		Error string `json:"error"`
	}
	data, jsonErr := json.Marshal(err)
	if jsonErr == nil {
		jsonErr = json.Unmarshal(data, &fields)
	}
	if jsonErr != nil || fields.Error != err.Error() {
		e.w.Broken(ruleFirstError, "%v: %v is %s in JSON: %v", e, err, data, jsonErr)
	}
	if log := err.(slog.LogValuer).LogValue(); len(log.Group()) == 0 {
		e.w.Broken(ruleFirstError, "%v: %v is logged without fields", e, err)
	}
}

// pollAll takes all waiting completions. The fabric does not move.
func (c *vcq) pollAll() int {
	total := 0
	for {
		var n int
		if c.direct && !c.closed {
			n = c.pollDirectly()
		} else {
			n = c.polled(c.cq.Poll(c.buf[:]))
		}
		if total += n; n == 0 {
			return total
		}
	}
}
