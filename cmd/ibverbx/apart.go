package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/rendezvous"
)

// ownFlagNames are the flags that each of two processes chooses for itself; all others are the
// connecting end's.
var ownFlagNames = slices.Concat([]string{"listen", "help", "port", "timeout", "provider", "device",
	"library", "udp-port", "rate-limit", "json", "verbose", "report-gbits", "CPU-freq", "noPeak",
	"connection"},
	connFlagNames)

// softFlagNames are the flags of software NICs, which neither of two processes can have.
var softFlagNames = []string{"fault", "nic-speed", "nic-latency"}

// checkListen says which flags a listening end cannot have.
func checkListen(k *kong.Context) error {
	for _, el := range k.Path {
		if el.Flag != nil && !slices.Contains(ownFlagNames, el.Flag.Name) {
			if slices.Contains(softFlagNames, el.Flag.Name) {
				return &bench.UsageError{Reason: fmt.Sprintf(
					"--%s is of software NICs, which live inside one process: drop it, or drop --listen",
					el.Flag.Name)}
			}
			return &bench.UsageError{Reason: fmt.Sprintf("--%s is for the connecting end to decide: give "+
				"it there. Each end has its own NICs, connection, --timeout and output",
				el.Flag.Name)}
		}
	}
	return nil
}

// given says whether a flag is on the command line.
func given(k *kong.Context, name string) bool {
	return slices.ContainsFunc(k.Path, func(p *kong.Path) bool {
		return p.Flag != nil &&
			p.Flag.Name == name
	})
}

// apart says whether another process drives the other end.
func (f *perfCmd) apart() bool { return f.Listen.given || f.Connect != "" || f.Host != "" }

// meeting settles where the two processes meet: HOST is another way to say --connect, and --port
// completes an address.
func (f *perfCmd) meeting() error {
	if f.Port != nil && !f.apart() {
		return &bench.UsageError{Reason: "--port is where the two processes meet: it goes with --listen, " +
			"--connect or HOST"}
	}
	return f.meet(f.Host)
}

// meet settles where the two processes meet. host is HOST, if it was given.
func (f *meetFlags) meet(host connectFlag) error {
	switch {
	case f.Listen.given && (f.Connect != "" || host != ""):
		return &bench.UsageError{Reason: "--listen and --connect, or HOST, exclude each other: one end " +
			"listens, the other connects to it"}
	case f.Connect != "" && host != "":
		return &bench.UsageError{Reason: fmt.Sprintf(
			"%s and --connect %s: that names the listening end twice",
			host, f.Connect)}
	case host != "":
		f.Connect = host
	}
	if f.Port == nil {
		return nil
	}
	if n := *f.Port; n < 1 || n > 65535 {
		return &bench.UsageError{Reason: fmt.Sprintf("--port %d: must be 1 to 65535", n)}
	}
	port := strconv.Itoa(*f.Port)
	for _, address := range []*string{&f.Listen.address, (*string)(&f.Connect)} {
		if *address == "" {
			continue
		}
		host, named, err := net.SplitHostPort(*address)
		switch {
		case err != nil:
			return err
		case named != defaultPort && named != port:
			return &bench.UsageError{Reason: fmt.Sprintf(
				"--port %s with address %s: that names the port twice",
				port, *address)}
		}
		*address = net.JoinHostPort(host, port)
	}
	return nil
}

// runApart drives one end, and another process the other.
func (f *perfCmd) runApart(c *console, k *kong.Context) error {
	if f.Timeout <= 0 {
		return &bench.UsageError{Reason: "--timeout 0: the other process needs some time for a step, such " +
			"as 30s"}
	}
	if f.Listen.given {
		if err := checkListen(k); err != nil {
			return err
		}
	}
	provider := f.provider()
	if err := checkNICFlags(provider, f.Device, f.Library); err != nil {
		return err
	}
	if err := f.checkRoCE(provider); err != nil {
		return err
	}
	if provider == softNICs {
		return &bench.UsageError{Reason: "--provider soft: software NICs live inside one process, and two " +
			"cannot share them; drop --listen or --connect, or use --provider roce, or real NICs"}
	}
	p, err := f.params(k)
	if err != nil {
		return err
	}
	if !f.Listen.given {
		if err := p.ValidateApart(); err != nil {
			return err
		}
	}
	end, err := f.openEnd(c, p)
	if err != nil {
		return err
	}
	err = f.measureApart(c, p, end)
	if closing := end.Close(); err == nil {
		err = closing
	}
	return err
}

// measureApart opens the conversation, measures, and prints.
func (f *perfCmd) measureApart(c *console, p *bench.Params, end *endNICs) error {
	if f.Listen.given {
		return f.serve(c, end)
	}
	conn, err := f.dial(c)
	if c.ctx.Err() != nil {
		if err == nil {
			_ = conn.Close()
		}
		return bench.ErrInterrupted // that is what ended the wait for the other process
	}
	if err != nil {
		return err
	}
	half, err := end.half(conn)
	if err != nil {
		conn.Fail(err)
		return err
	}
	return f.show(c, func(o bench.Observer) (*bench.Report, error) {
		report, err := bench.Lead(c.ctx, p, half, o)
		return explainSilence(report, err, half)
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
	case errors.As(err, &dialing) && dialing.Op == "dial" && !errors.Is(err, syscall.ECONNREFUSED):
		return nil, doubt(string(f.Connect), dialing)
	case errors.As(err, &dialing) && dialing.Op == "dial":
		return nil, fmt.Errorf("%w: is \"ibverbx perf --listen\" running there?",
			doubt(string(f.Connect), dialing))
	case errors.As(err, &step):
		return nil, fmt.Errorf("%s: %w", step.Addr, step.Err)
	}
	return conn, err
}
