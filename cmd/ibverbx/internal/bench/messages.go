package bench

import (
	"fmt"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/internal/nicoffer"
	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// Protocol names the messages below and their version. Ends of different versions refuse each
// other. A golden file holds the messages as they are on the wire.
const Protocol = "ibverbx perf/11"

// The messages between the two processes of a run. End a leads, end b follows:
//
//	a                b
//	      offer  <-     which NICs there are
//	task  ->            what is measured, on how many of them
//	      accept <-
//
// then for each scheme, from both ends:
//
//	column              the cards of the layer, and memory
//	connected
//
// then for each size, in turns, and scheme:
//
//	cell  <->           what the counters of atomics hold
//	  round ->          receives are posted at a, and b may post its own
//	        ready <-    they are; the round begins
//	  done  <->         from each end that sends, as soon as all is reported
//	  verdict <->       what came has been compared, and how long the end has sent
//	  ... further rounds
//	over  ->
//	      stats <-      what b has counted
//	row   ->            the figures of a size
//
// and at the end bye from both. An end that fails sends the reason in place of its next message,
// which ends the conversation.
const (
	kindOffer     = "offer"
	kindTask      = "task"
	kindAccept    = "accept"
	kindColumn    = "column"
	kindConnected = "connected"
	kindCell      = "cell"
	kindRound     = "round"
	kindReady     = "ready"
	kindDone      = "done"
	kindVerdict   = "verdict"
	kindOver      = "over"
	kindStats     = "stats"
	kindRow       = "row"
	kindBye       = "bye"
)

// selfBody is how a process describes itself.
type selfBody struct {
	Version        string  `json:"version"`
	Machine        Machine `json:"machine"`
	nicoffer.Offer         // all NICs that it may use
}

// check bounds the peer's description of itself, and makes it printable.
func (b *selfBody) check() error {
	if err := b.Check(); err != nil {
		return err
	}
	if c := b.Machine.Clock; c < 0 || c > int64(time.Second) {
		return fmt.Errorf("%w: the peer's clock takes %d ns", rendezvous.ErrProtocol, c)
	}
	for _, s := range []*string{&b.Version, &b.Machine.CPU, &b.Machine.OS, &b.Machine.Arch, &b.Machine.Go} {
		*s = oneLine(*s)
	}
	return nil
}

// oneLine makes text of the peer printable in a line of a table.
func oneLine(s string) string { return peertext.Line(s, 100) }

type taskBody struct {
	Self   selfBody `json:"self"`
	Params *Params  `json:"parameters"`
}

// Limits of what a process measures for another one, which it does not trust.
const (
	maxServedSizes    = 256
	maxServedDuration = Seconds(time.Hour) // of a cell
	maxServedMessages = 1 << 40            // of a cell
	// maxServedRun bounds the whole. All else is bounded by the parameters' own limits: memory by
	// three times 1 GiB.
	maxServedRun = 24 * time.Hour
)

// check says why this process refuses what another one asks for. What only two ends in one process
// can have is refused too.
func (b *taskBody) check() error {
	if err := b.Self.check(); err != nil {
		return err
	}
	p := b.Params
	switch {
	case p == nil:
		return fmt.Errorf("%w: a task without parameters", rendezvous.ErrProtocol)
	case len(p.Sizes) > maxServedSizes:
		return usage("%d sizes: a listening end measures at most %d", len(p.Sizes), maxServedSizes)
	case p.Duration > maxServedDuration:
		return usage("--duration %v: a listening end measures at most %v", time.Duration(p.Duration),
			time.Duration(maxServedDuration))
	case p.Iterations > maxServedMessages:
		return usage("--iters %d: a listening end takes at most %d messages", p.Iterations, maxServedMessages)
	case !slices.Contains([]Wait{Adaptive, Poll, Events}, p.Wait):
		return fmt.Errorf("%w: no way to wait is called %.20q", rendezvous.ErrProtocol, p.Wait)
	}
	if err := p.checkApart(); err != nil {
		return err
	}
	return p.Validate()
}

// ValidateApart says, as a [*UsageError], what is not possible between two processes, as far as
// that is known before they connect: NICs 0 stands for as many as both have. It changes nothing.
func (p Params) ValidateApart() error {
	if err := p.checkApart(); err != nil {
		return err
	}
	if p.NICs == 0 {
		p.NICs = 1
		if 2*p.QPs <= ibverbx.MaxRails {
			p.NICs = 2
		}
	}
	return p.Validate()
}

// checkApart says what ends in two processes cannot have.
func (p *Params) checkApart() error {
	for _, flag := range []struct {
		name  string
		given bool
	}{{"--fault", len(p.Faults) > 0}, {"--nic-speed", len(p.Speeds) > 0},
		{"--nic-latency", len(p.Latencies) > 0}} {
		if flag.given {
			return usage("%s is of software NICs, which live inside one process: drop it, or drop --connect",
				flag.name)
		}
	}
	if p.Layer == layers.SHMEM {
		return usage("--layer shmem is measured between PEs of one process: drop --connect, or use --layer " +
			"transport or --layer tagged")
	}
	return nil
}

// columnBody connects the ends of a scheme.
type columnBody struct {
	Scheme Scheme `json:"scheme"`
	layers.Card
}

// check says whether the memory is what the rounds will name.
func (b *columnBody) check(p *Params, scheme Scheme, window, end int) error {
	if b.Scheme != scheme {
		return fmt.Errorf("%w: the peer connects column %.20q, this end %q", rendezvous.ErrProtocol, b.Scheme,
			scheme)
	}
	src, dst := p.bufferSizes(end, window)
	if p.Layer == layers.Tagged {
		src = 0 // nothing names it
	}
	for _, m := range []struct {
		name string
		have uint64
		want int
	}{{"source", b.Src.Len(), src}, {"target", b.Dst.Len(), dst}} {
		if m.have < uint64(m.want) {
			return fmt.Errorf("%w: the peer's %s has %d bytes, and %d will be named", rendezvous.ErrProtocol,
				m.name, m.have, m.want)
		}
	}
	if at := b.Dst.Addr(); at%8 != 0 && p.Op.Atomic() {
		return fmt.Errorf("%w: the peer's target begins at %#x: atomics need a multiple of 8",
			rendezvous.ErrProtocol, at)
	}
	return nil
}

type cellBody struct {
	Size    units.Size `json:"size_bytes"`
	Scheme  Scheme     `json:"scheme"`
	Counter uint64     `json:"counter,string"` // of atomics, at the end that sends the message
}

type roundBody struct {
	Messages int  `json:"messages"` // of each direction
	WarmUp   bool `json:"warm_up,omitempty"`
}

type verdictBody struct {
	Verified int    `json:"verified"`
	Counter  uint64 `json:"counter,string"`
	Took     int64  `json:"took_ns"` // until what the end sends was reported
}

// statsBody is what the following end's queue pair has counted.
type statsBody struct {
	Stats QPStats `json:"stats,omitzero"`
}

// maxRailStats is how many rails a virtual queue pair has at most: beside those for data up to two
// on each NIC.
const maxRailStats = ibverbx.MaxRails + 2*verbs.MaxDevices

// clean makes names in statistics printable.
func clean(s *QPStats) {
	s.Rails = s.Rails[:min(len(s.Rails), maxRailStats)]
	for i := range s.Rails {
		s.Rails[i].Device = oneLine(s.Rails[i].Device)
	}
}

type rowBody struct {
	Results []Result `json:"results"`
}

// check makes a row printable, and says what is impossible in it.
func (b *rowBody) check(p *Params) error {
	if len(b.Results) == 0 || len(b.Results) > len(p.Schemes) {
		return fmt.Errorf("%w: a row of %d cells", rendezvous.ErrProtocol, len(b.Results))
	}
	for i := range b.Results {
		r := &b.Results[i]
		if !slices.Contains(p.Schemes, r.Scheme) || !slices.Contains(p.Sizes, r.Size) {
			return fmt.Errorf("%w: figures of %.20q, %v, which nobody measured", rendezvous.ErrProtocol,
				r.Scheme, r.Size)
		}
		r.Layer, r.Op, r.Mode, r.Faults, r.Failed, r.Error = p.Layer, p.Op, p.Mode, nil, false, ""
		r.Timeline, r.Losses = nil, nil
		clean(&r.Stats.A)
		clean(&r.Stats.B)
		if !p.Layered() {
			r.Stats.A.Scheme, r.Stats.B.Scheme = r.Scheme, r.Scheme
		}
	}
	return nil
}

type byeBody struct {
	Interrupted bool `json:"interrupted,omitempty"`
}
