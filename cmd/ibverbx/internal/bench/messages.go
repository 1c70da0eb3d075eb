package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/nicoffer"
	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// Protocol names the messages below and their version. Ends of different versions refuse each
// other. A golden file holds the messages as they are on the wire.
const Protocol = "ibverbx perf/19"

// These are the messages between the two processes of a run. End a leads, end b follows:
//
//	a                b
//	      offer  <-     which NICs there are
//	task  ->            what is measured, on how many of them
//	      accept <-
//
// From then on both ends go through the same steps. For each scheme:
//
//	column    <->       the cards of the layer, and memory
//	connected <->
//
// then for each size, in turns, and scheme:
//
//	cell      ->        whether it is measured
//	  round   ->        receives are posted at a, and b may post its own
//	    ready <-        they are; the round begins
//	  done    <->       from each end that sends, as soon as all is reported
//	  verdict <->       what came has been compared, and how long the end has sent
//	  ... further rounds; one of no messages says that there is none
//	row       <->       the figures of a size, and from a whether the run ends behind them
//
// then, for each scheme, the messages of [trace.Exchange] if traces are asked for, and at the end
// bye from both. An end that fails sends the reason in place of its next message, which ends the
// conversation.
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
	kindRow       = "row"
	kindTrace     = "trace"
	kindBye       = "bye"
)

// selfBody is how a process describes itself.
type selfBody struct {
	Version        string  `json:"version"`
	Machine        Machine `json:"machine"`
	nicoffer.Offer         // all NICs available to it
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

// UnmarshalJSON reads a task. Unknown fields are an error.
func (b *taskBody) UnmarshalJSON(text []byte) error {
	type plain taskBody // without this method
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(b))
}

// These limit what a process measures for another one, which it does not trust. The parameters' own
// limits bound everything else: memory by three times 1 GiB.
const (
	maxServedSizes    = 256
	maxServedDuration = Seconds(time.Hour) // of a cell
	maxServedMessages = 1 << 40            // of a cell
)

// check returns why this process refuses the task of another. It also refuses parameters that need
// both ends in one process.
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
		return usage("--duration %v: a listening end measures at most %v", p.Duration, maxServedDuration)
	case p.Iterations > maxServedMessages:
		return usage("--iters %d: a listening end takes at most %d messages", p.Iterations, maxServedMessages)
	case !slices.Contains([]Wait{Adaptive, Poll, Events}, p.Wait):
		return fmt.Errorf("%w: no way to wait is called %.20q", rendezvous.ErrProtocol, p.Wait)
	}
	return p.completeApart()
}

// ValidateApart returns, as a [*UsageError], what is not possible between two processes, as far as
// that is known before they connect: NICs 0 stands for as many as both have. It changes nothing.
func (p Params) ValidateApart() error {
	if p.NICs == 0 {
		p.NICs = max(1, min(2, ibverbx.MaxRails/max(1, p.QPs)))
	}
	return p.completeApart()
}

// completeApart is Complete for a measurement between two processes.
func (p *Params) completeApart() error {
	if len(p.Faults)+len(p.Speeds)+len(p.Latencies) > 0 {
		return usage("--fault, --nic-speed and --nic-latency are of software NICs, which live inside one " +
			"process: drop them, or drop --connect")
	}
	if p.Layer == layers.SHMEM {
		return usage("--layer shmem is measured between PEs of one process: drop --connect, or use --layer " +
			"transport or --layer tagged")
	}
	return p.Complete()
}

// checkCard returns an error if the memory of an end does not match the rounds.
func checkCard(card *layers.Card, p *Params, window, end int) error {
	src, dst := p.bufferSizes(end, window)
	if p.Layer == layers.Tagged {
		src = 0 // no request names it
	}
	for _, m := range []struct {
		name string
		have uint64
		want int
	}{{"source", card.Src.Len(), src}, {"target", card.Dst.Len(), dst}} {
		if m.have < uint64(m.want) {
			return fmt.Errorf("%w: the peer's %s has %d bytes, and %d will be named", rendezvous.ErrProtocol,
				m.name, m.have, m.want)
		}
	}
	if at := card.Dst.Addr(); at%8 != 0 && p.Op.Atomic() {
		return fmt.Errorf("%w: the peer's target begins at %#x: atomics need a multiple of 8",
			rendezvous.ErrProtocol, at)
	}
	return nil
}

type cellBody struct {
	Stop bool `json:"stop,omitempty"` // nothing more is measured
}

type roundBody struct {
	Messages int  `json:"messages"` // of each direction; 0: the sample is taken
	WarmUp   bool `json:"warm_up,omitempty"`
}

type verdictBody struct {
	Verified int   `json:"verified"`
	Took     int64 `json:"took_ns"` // until the end's sends were reported
}

// maxRailStats is the most rails of a virtual queue pair: beside those for data up to two on each
// NIC.
const maxRailStats = ibverbx.MaxRails + 2*verbs.MaxDevices

// cleanStats makes statistics of the peer printable; the scheme in them is known.
func (r *Result) cleanStats() {
	for _, s := range []*QPStats{&r.Stats.A, &r.Stats.B} {
		s.Rails = s.Rails[:min(len(s.Rails), maxRailStats)]
		for i := range s.Rails {
			s.Rails[i].Device = oneLine(s.Rails[i].Device)
		}
		if s.Scheme = r.Scheme; r.Layer != QP {
			s.Scheme = ""
		}
	}
}

type rowBody struct {
	Results []Result `json:"results"`
	Stop    bool     `json:"stop,omitempty"` // nothing more is measured
}

// check makes a row printable, and returns what is impossible in it, given mine, this end's row.
func (b *rowBody) check(mine []Result) error {
	if len(b.Results) != len(mine) {
		return fmt.Errorf("%w: a row of %d cells, measured were %d", rendezvous.ErrProtocol, len(b.Results),
			len(mine))
	}
	for i := range b.Results {
		r, own := &b.Results[i], &mine[i]
		if r.Scheme != own.Scheme || r.Size != own.Size {
			return fmt.Errorf("%w: figures of %.20q, %v, which nobody measured", rendezvous.ErrProtocol,
				r.Scheme, r.Size)
		}
		r.Layer, r.Op, r.Mode, r.Faults, r.Failed, r.Error = own.Layer, own.Op, own.Mode, nil, false, ""
		r.Timeline, r.Losses = nil, nil
		r.cleanStats()
	}
	return nil
}
