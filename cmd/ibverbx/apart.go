package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/rendezvous"
)

// ownFlagNames are the flags that each of two processes chooses for itself; the connecting end
// chooses all others.
var ownFlagNames = []string{"listen", "help", "port", "timeout", "json", "csv", "verbose", "report-gbits",
	"CPU-freq", "noPeak", "connection", "provider", "device", "library", "udp-port", "rate-limit",
	"gid-index", "ib-port", "mtu", "tclass", "sl", "qp-timeout", "retry-count", "rnr-retry", "outs"}

// checkListen reports which flags a listening end cannot have.
func checkListen(k *kong.Context) error {
	for _, el := range k.Path {
		switch {
		case el.Flag == nil || slices.Contains(ownFlagNames, el.Flag.Name):
		case slices.Contains([]string{"fault", "nic-speed", "nic-latency"}, el.Flag.Name):
			return usage("--%s is of software NICs, which live inside one process: drop it, or drop --listen",
				el.Flag.Name)
		default:
			return usage("--%s is for the connecting end to decide: give it there. Each end has its own "+
				"NICs, connection and --timeout, and of the output --json, --csv, --verbose and "+
				"--report-gbits", el.Flag.Name)
		}
	}
	return nil
}

// given reports whether a flag is on the command line.
func given(k *kong.Context, name string) bool { return times(k, name) > 0 }

// times returns how often a flag is on the command line.
func times(k *kong.Context, name string) (n int) {
	for _, el := range k.Path {
		if el.Flag != nil && el.Flag.Name == name {
			n++
		}
	}
	return n
}

// apart reports whether another process drives the other end.
func (f *perfCmd) apart() bool { return f.Listen.given || f.Connect != "" || f.Host != "" }

// runApart drives one end, and another process the other.
func (f *perfCmd) runApart(c *console, p *bench.Params) error {
	if f.provider() == softNICs {
		return usage("--provider soft: software NICs live inside one process, and two cannot share them; " +
			"drop --listen or --connect, or use --provider roce, or real NICs")
	}
	if !f.Listen.given {
		if err := p.ValidateApart(); err != nil {
			return err
		}
	}
	end, err := f.openEnd(c, p.Conn, p.NICs, &f.outcome)
	if err != nil {
		return err
	}
	p.Provider = end.Name()
	return errors.Join(f.measureApart(c, p, end), end.Close())
}

// measureApart opens the conversation, measures and prints.
func (f *perfCmd) measureApart(c *console, p *bench.Params, end *endNICs) error {
	if f.Listen.given {
		return f.serve(c, end)
	}
	conn, err := f.dial(c)
	if c.ctx.Err() != nil {
		if err == nil {
			_ = conn.Close()
		}
		return bench.ErrInterrupted // the interrupt ended the wait for the other process
	}
	if err != nil {
		return err
	}
	half, err := end.half(c.ctx, conn)
	if err != nil {
		return err
	}
	return f.show(c, func(o bench.Observer) (*bench.Report, error) {
		report, err := bench.Lead(c.ctx, p, half, o)
		if report != nil && report.Verified == 0 && err != nil {
			err = explainSilence(err, half.Provider, half.Devices[0])
			report.Error = err.Error()
		}
		return report, err
	})
}

// conversation configures how the two processes talk.
func (f *perfCmd) conversation() rendezvous.Config {
	return rendezvous.Config{Protocol: bench.Protocol, Timeout: time.Duration(f.Timeout)}
}

// dial connects to the listening end.
func (f *perfCmd) dial(c *console) (*rendezvous.Conn, error) {
	conn, err := rendezvous.Dial(c.ctx, string(f.Connect), f.conversation())
	var dialing *net.OpError
	var step *rendezvous.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &dialing):
		err = fmt.Errorf("%w: is \"ibverbx perf --listen\" running there?", dialing)
	case errors.As(err, &dialing) && dialing.Op == "dial":
		err = dialing // without the name of the package
	case errors.As(err, &step):
		err = fmt.Errorf("%s: %w", step.Addr, step.Err)
	}
	return conn, err
}
