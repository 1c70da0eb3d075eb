package sendside

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"ibverbx/tagged"
	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
)

// Tagged is the game of messages with tags.
var Tagged = lab.Game("TestTagged", "./test/sendside", newTaggedPlan, (*taggedPlan).run)

// taggedPlan describes a world of messages and its events.
type taggedPlan struct {
	bedPlan
	lab.Schedule[lab.Event]
	configs []tagged.Config
}

// taggedEvents are the events of endpoints, and how often they happen in calm and in faulty worlds.
// The fuzz tests of the package play peers that break the rules.
var taggedEvents = []lab.Kind[*tagEnd]{
	{Name: "step", Often: []int{400, 400}, Do: func(e *tagEnd) { e.w.Steps(1 + e.w.Rng.IntN(8)) }},
	{Name: "progress", Often: []int{260, 260}, Do: func(e *tagEnd) { e.w.progress(e.home) }},
	{Name: "send", Often: []int{160, 160}, Do: func(e *tagEnd) { times(e.w.Pick(1, 1, 2, 3), e.send) }},
	{Name: "burst", Often: []int{8, 8}, Do: func(e *tagEnd) { times(12, e.send) }},
	{Name: "recv", Often: []int{150, 150}, Do: func(e *tagEnd) { times(e.w.Pick(1, 1, 2, 3), e.recv) }},
	{Name: "probe", Often: []int{20, 20}, Do: func(e *tagEnd) { e.site.probe() }},
	{Name: "wait", Often: []int{25, 25}, Do: (*tagEnd).wait}, // in a send, a receive, or for a request
	{Name: "resume", Often: []int{60, 60}, Do: func(e *tagEnd) { e.w.resumeOne() }},
	{Name: "cancel context", Often: []int{6, 6}, Do: func(e *tagEnd) { e.w.cancelOne() }},
	{Name: "cancel", Often: []int{20, 20}, Do: (*tagEnd).cancel},
	{Name: "register", Often: []int{6, 6}, Do: func(e *tagEnd) { e.site.register() }},
	{Name: "look", Often: []int{10, 10}, Do: (*tagEnd).look},
	{Name: "slow", Often: []int{8, 8}, Do: func(e *tagEnd) { e.w.strike(e.link, true) }},
	{Name: "strike", Often: []int{0, 9}, Do: func(e *tagEnd) { e.w.strike(e.link, false) }},
	{Name: "heal", Often: []int{12, 14}, Do: func(e *tagEnd) { e.w.Heal() }},
	{Name: "abort", Often: []int{1, 4}, Do: (*tagEnd).abort},
	{Name: "close", Often: []int{2, 4}, Do: (*tagEnd).close},
}

func times(n int, do func()) {
	for range n {
		do()
	}
}

func newTaggedPlan(seed uint64) *taggedPlan {
	rng := rand.New(rand.NewPCG(seed, 0x746167))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &taggedPlan{bedPlan: newBedPlan(rng, seed)}
	qp := p.qpConfig(rng)
	p.drawPairs(rng, 1+pick(0, 0, 1, 2, 3))
	for h := range p.Hosts {
		cfg := tagged.Config{
			Transport: p.workerConfig(rng, qp, h), EagerLimit: pick(-1, 30, 150, 500, 1200),
			Chunk: pick(40, 200, 0), Window: pick(1, 2, 0),
			MaxUnexpected: pick(1, 2, 4, 16), MaxLeftover: pick(-1, 0, 3), MaxRequests: pick(1, 0),
		}
		cfg.Transport.MaxEndpoints = 1 + p.endsOf(h)
		cfg.Transport.BufferSize = pick(450, 512, 700)
		p.configs = append(p.configs, cfg)
	}
	p.Events = lab.DrawEvents(rng, taggedEvents, int(p.Mood), 60, 150, 400)
	return p
}

// tagWorld is workers and endpoints of messages, and a model that knows the rules of matching.
type tagWorld struct {
	testbed
	plan   *taggedPlan
	sites  []*tagSite
	ends   []*tagEnd
	clock  int  // counts calls of look
	ending bool // receives use spare memory from now on
}

// tagSite is a host's worker.
type tagSite struct {
	*lab.Host
	w       *tagWorld
	worker  *tagged.Worker
	ends    []*tagEnd
	recvs   []*tagRecv // in the order in which they were posted
	open    int        // recvs before this one have ended
	regions []lab.Span // registered for long messages
}

// tagEnd is an endpoint.
type tagEnd struct {
	w    *tagWorld
	site *tagSite
	peer *tagEnd
	fate
	ep *tagged.Endpoint

	msgs    []*tagMsg // in the order in which they were sent
	open    int       // msgs before this one have ended
	lengths map[[2]uint64]bool
}

func (p *taggedPlan) run(log func(string)) *hunt.Violation {
	w := &tagWorld{plan: p}
	return w.play(&p.bedPlan, log, nil, func() {
		w.open()
		lab.PlayEvents(&w.Testbed, p.Events, taggedEvents, &w.ends, func() {
			w.look()
			if w.At%16 == 0 {
				w.Audit()
			}
		})
		w.finish()
	})
}

func (w *tagWorld) open() {
	for i, h := range w.Hosts {
		cfg := w.plan.configs[i]
		w.LogPlan(h.Name, cfg)
		cfg.Transport.Idle = w.idle
		o := &tagSite{Host: h, w: w}
		var err error
		o.worker, err = tagged.NewWorker(h.Dom, cfg)
		w.Must("new worker", err)
		w.sites = append(w.sites, o)
	}
	for i, hosts := range w.plan.pairs {
		l := w.link(sprintf("connection %d", i), w.Hosts[hosts[0]], w.Hosts[hosts[1]])
		a, b := w.newEnd(l, w.sites[hosts[0]], 'a'), w.newEnd(l, w.sites[hosts[1]], 'b')
		a.peer, b.peer, a.other, b.other = b, a, &b.fate, &a.fate
		w.Must("connect", tagged.Connect(a.ep, b.ep))
	}
}

func (w *tagWorld) newEnd(l *link, o *tagSite, letter rune) *tagEnd {
	e := &tagEnd{w: w, site: o, lengths: map[[2]uint64]bool{}}
	e.fate = fate{b: &w.testbed, name: sprintf("%d%c", len(w.ends)/2, letter), home: o.Host, link: l}
	w.build = l
	var err error
	e.ep, err = o.worker.NewEndpoint(tagged.EndpointConfig{Name: e.name, Value: e, OnError: e.onError})
	w.build = nil
	w.Must("new endpoint", err)
	w.ends, o.ends = append(w.ends, e), append(o.ends, e)
	return e
}

func (e *tagEnd) onError(ep *tagged.Endpoint, err error) {
	w := e.w
	w.Logf("  %v fails: %v", e, err)
	e.fails(ep == e.ep, err)
	if w.OneIn(2) && !w.finishing {
		e.recv() // a callback may
	}
}

// progress makes one round of progress of a host's worker.
func (w *tagWorld) progress(h *lab.Host) int {
	w.inside = h
	n := w.sites[h.Index].worker.Progress()
	w.inside = nil
	return n
}

// look checks counters.
func (e *tagEnd) look() {
	w := e.w
	e.site.checkKept()
	if st := e.ep.Stats(); st.Window > w.plan.configs[e.peer.site.Index].MaxUnexpected || st.Window < 0 ||
		st.Owed < 0 {
		w.Broken(ruleCredits, "%v: %+v", e, st)
	}
	if err := e.ep.Err(); err != nil && e.mayFail() == "" && !e.ends() {
		w.Broken(lab.Isolation, "%v: %v", e, err)
	}
}

// checkKept checks how much a worker keeps for later receives.
func (o *tagSite) checkKept() {
	s, cfg := o.worker.Stats(), o.worker.Config()
	most := cfg.MaxLeftover
	for _, e := range o.ends {
		if !e.closed {
			most += cfg.MaxUnexpected
		}
	}
	if s.Unexpected > most || s.Leftover > cfg.MaxLeftover ||
		s.UnexpectedBytes > most*cfg.Transport.BufferSize {
		o.Broken(ruleBalance, "%s keeps %d messages in %d bytes, %d fragments of endpoints that are closed: "+
			"at most %d, of %d bytes, and %d", o.Name, s.Unexpected, s.UnexpectedBytes, s.Leftover, most,
			cfg.Transport.BufferSize, cfg.MaxLeftover)
	}
}

// register registers a part of the unused memory, for long messages.
func (o *tagSite) register() {
	part := lab.Span{Off: o.Memory.Used() + 64, N: 2048}
	if len(o.regions) >= 3 || o.w.ending || part.Off+part.N > arenaSize ||
		slices.Contains(o.regions, part) {
		return
	}
	if _, err := o.worker.Register(o.Memory.Bytes(part)); err == nil {
		o.regions = append(o.regions, part)
	}
}

// abort closes an endpoint at once.
func (e *tagEnd) abort() {
	if e.ends() {
		return
	}
	e.closed = true
	e.peer.because("its peer has aborted")
	e.because("it was aborted")
	err := e.ep.Abort()
	e.w.Logf("  %v: abort: %v", e, err)
	if info, found := e.ep.Probe(0, tagged.Any); found {
		e.w.Broken(ruleBalance, "%v was aborted, and has a message of %d bytes", e, info.Length)
	}
	if err := e.ep.Abort(); !errors.Is(err, tagged.ErrClosed) {
		e.w.Broken(lab.Refusal, "%v: aborted twice: %v", e, err)
	}
}

// close starts a program that waits in Close.
func (e *tagEnd) close() {
	e.fate.close(5, e.ep, func(err error, worked bool) {
		e.w.look()
		for _, m := range e.msgs {
			if err == nil && worked && !m.done && m.req != nil {
				e.w.Broken(ruleFlush, "%v has closed without an error before %v was done", e, m)
			}
		}
		e.site.checkKept()
		e.because("it was closed")
	})
}

// wait starts a program that waits: in a send, in a receive, or for a request.
func (e *tagEnd) wait() {
	w := e.w
	if len(w.waiting()) >= 5 {
		return
	}
	ctx := w.context()
	var body func()
	var name string
	switch w.Rng.IntN(3) {
	case 0:
		m, ok := e.newMsg()
		if !ok {
			return
		}
		name, body = sprintf("%v waits in send", e), func() { e.sendWait(ctx, m) }
	case 1:
		name, body = sprintf("%v waits in recv", e), func() { e.recvWait(ctx) }
	default:
		open := e.site.recvs[e.site.open:]
		if len(open) == 0 || open[0].req == nil {
			return
		}
		r := open[0]
		r.awaited = true
		name, body = sprintf("%v waits for %v", e, r), func() {
			if r.req == nil {
				return
			}
			err := r.req.Wait(ctx)
			var interrupted *tagged.InterruptedError
			if errors.As(err, &interrupted) {
				if interrupted.Req != r.req || !errors.Is(err, context.Canceled) {
					w.Broken(lab.Refusal, "%v: %v", r, err)
				}
			}
		}
	}
	w.start(name, e.site.Host, body)
}

// finish ends a world of messages: all messages between endpoints that work are received, and every
// request ends.
func (w *tagWorld) finish() {
	w.Logf("the end")
	w.finishing = true
	w.EndFaults(nil)
	w.settle(w)
	for _, o := range w.sites {
		for _, r := range o.recvs {
			r.checkUnmatched()
		}
	}
	for _, cancel := range w.cancels {
		cancel()
	}
	w.settle(w)
	for _, o := range w.sites {
		for _, r := range o.recvs {
			if !r.cancelled {
				r.cancel(w, r)
			}
		}
	}
	w.look()
	w.receiveAll()
	for _, e := range w.ends {
		if e.mayFail() != "" && !e.ends() {
			e.abort() // its peer is gone, and it would never learn that
		}
	}
	w.settle(w)
	w.mustReturn()
	w.checkAllDone()
	for _, o := range w.sites {
		w.closeWorker(o.Host, o.worker.Close)
	}
	w.Audit()
	w.Close()
}

// receiveAll receives all remaining messages.
func (w *tagWorld) receiveAll() {
	w.ending = true
	for range 2000 {
		if !w.unreceived() {
			return
		}
		for _, o := range w.sites {
			if _, found := o.worker.Probe(0, 0); !found {
				continue
			}
			if r := o.recv(); r == nil {
				w.Broken(lab.Liveness, "%s has no memory left", o.Name)
			}
		}
		w.settle(w)
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.cancelled && e.mayFail() == "" {
				w.Broken(lab.Liveness, "%v is never received: %+v", m, e.ep.Stats())
			}
		}
	}
}

// unreceived reports whether a message is left that must be received.
func (w *tagWorld) unreceived() bool {
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if m.match == nil && !m.cancelled && e.mayFail() == "" && e.peer.mayFail() == "" {
				return true
			}
		}
	}
	return false
}

// checkAllDone checks that every request has ended, and that workers hold nothing.
func (w *tagWorld) checkAllDone() {
	for _, o := range w.sites {
		for _, r := range o.recvs {
			if !r.done {
				w.Broken(lab.Liveness, "%v does not end", r)
			}
		}
	}
	for _, e := range w.ends {
		for _, m := range e.msgs {
			if !m.done {
				w.Broken(lab.Liveness, "%v does not end: %+v, %v", m, e.ep.Stats(), e.ep.Err())
			}
		}
		if e.ep.Err() != nil && !e.closed && e.errors != 1 {
			w.Broken(ruleNoticed, "%v: %v, and OnError ran %d times", e, e.ep.Err(), e.errors)
		}
	}
	for _, e := range w.ends {
		if s, p := e.ep.Stats(), e.peer.ep.Stats(); e.mayFail() == "" && e.peer.mayFail() == "" {
			if most := w.plan.configs[e.peer.site.Index].MaxUnexpected; s.Window+p.Owed != most {
				w.Broken(ruleCredits, "%v has a window of %d of %d, and %d are to be given back", e, s.Window,
					most, p.Owed)
			}
			e.checkTraffic(s, p)
		}
	}
	for _, o := range w.sites {
		s, t := o.worker.Stats(), o.worker.Transport().Stats()
		if s.Requests != 0 || s.Posted != 0 || s.Leaked != 0 {
			w.Broken(ruleBalance, "%s when all is over: %+v", o.Name, s)
		}
		if t.BounceFree != t.BounceTotal || t.AMKept != 0 {
			w.Broken(ruleBalance, "%s when all is over: %+v", o.Name, t)
		}
		clean := true
		for _, e := range o.ends {
			clean = clean && e.mayFail() == "" && e.peer.mayFail() == ""
		}
		if clean && (s.Violations != 0 || s.Unexpected != 0 || s.UnexpectedBytes != 0) {
			w.Broken(ruleBalance, "%s keeps messages when all is over: %+v", o.Name, s)
		}
	}
}

// checkTraffic checks both ends' counts of the messages that an end has sent.
func (e *tagEnd) checkTraffic(s, peer tagged.EndpointStats) {
	var sent, sentBytes, received, receivedBytes uint64
	for _, m := range e.msgs {
		if m.cancelled {
			continue
		}
		sent++
		sentBytes += uint64(m.n)
		if !m.long || m.n <= m.match.dst.N {
			received++
			receivedBytes += uint64(m.n)
		}
	}
	if s.Sent != sent || s.SentBytes != sentBytes || peer.Received != received ||
		peer.ReceivedBytes != receivedBytes {
		e.w.Broken(ruleBalance, "%v has sent %d messages of %d bytes, and %d of %d were read: %+v, %+v", e,
			sent, sentBytes, received, receivedBytes, s, peer)
	}
}
