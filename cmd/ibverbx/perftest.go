package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/perftest"
	"ibverbx/internal/nicoffer"
	"ibverbx/internal/units"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// perftestCmd is one end of a test whose other end is a tool of perftest. Its flags have perftest's
// meaning.
type perftestCmd struct {
	Test string      `arg:"" placeholder:"TEST" predictor:"perftest"`
	Host connectFlag `arg:"" optional:"" placeholder:"HOST"`

	perftestFlags
	nicFlags
	connFlags
	meetFlags
	JSON        bool `group:"out" name:"json"`
	ReportGbits bool `group:"out" name:"report-gbits"`
	habits

	said outcome
}

// perftestFlags are the parameters of the test.
type perftestFlags struct {
	Size    *units.Size `group:"what" short:"s" placeholder:"SIZE"`
	Iters   int         `group:"what" short:"n" placeholder:"N" range:"1..100000000"`
	QPs     int         `group:"what" name:"qp" aliases:"qps" short:"q" range:"1..16384"`
	TxDepth int         `group:"how" short:"t" placeholder:"N" range:"1..16384"`
	RxDepth int         `group:"how" short:"r" placeholder:"N" range:"1..16384"`
}

// Run is one end of a test.
func (f *perftestCmd) Run(c *console, k *kong.Context) error {
	began := time.Now()
	report, err := f.run(c, k)
	if c.ctx.Err() != nil && err != nil {
		err = bench.ErrInterrupted
	}
	if !f.JSON {
		return err
	}
	doc := struct {
		bench.Document
		*perftest.Report
	}{document("ibverbx perftest", f.said.note), report}
	if report == nil {
		doc.Report = &perftest.Report{Kind: perftest.Kind(f.Test), Results: []perftest.Result{}}
	}
	doc.End(began, err)
	return errors.Join(err, writeJSON(c.out, doc))
}

func (f *perftestCmd) run(c *console, k *kong.Context) (*perftest.Report, error) {
	cfg, err := f.config(k)
	if err != nil {
		return nil, err
	}
	end, err := f.openEnd(c, cfg.Conn, 1, &f.said)
	if err != nil {
		return nil, err
	}
	var report *perftest.Report
	nc, err := f.connection(c, end)
	if err == nil {
		report, err = f.measure(c, nc, end, cfg)
	}
	if report != nil && !f.JSON {
		err = errors.Join(err, showPerftest(c.out, report, unitOf(f.ReportGbits)))
	}
	return report, errors.Join(err, end.Close())
}

// config returns the configuration of the flags. It opens nothing.
func (f *perftestCmd) config(k *kong.Context) (cfg *perftest.Config, err error) {
	cfg = &perftest.Config{Kind: perftest.Kind(f.Test), QPs: f.QPs, Messages: f.Iters, TxDepth: f.TxDepth,
		RxDepth: f.RxDepth, Gbits: f.ReportGbits, Timeout: time.Duration(f.Timeout)}
	switch {
	case f.Size != nil && *f.Size == 0:
		return nil, usage("--size 0: a message of no bytes cannot be measured; use --size 1 or more")
	case f.Size != nil:
		cfg.Size = int(min(*f.Size, 1<<62))
	}
	if err = f.meet(f.Host); err != nil {
		return nil, err
	}
	if err = checkGiven(k); err != nil {
		return nil, err
	}
	provider := f.asked()
	if provider == softNICs {
		return nil, usage("--provider soft: software NICs live inside one process, where perftest is not: " +
			"use --provider roce, or real NICs")
	}
	if err = f.check(provider); err != nil {
		return nil, err
	}
	cfg.Conn = f.conn(k)
	if err = cfg.Validate(); err != nil {
		return nil, usage("%v", err)
	}
	return cfg, nil
}

// connection returns the one with the peer: the first that arrives, or the one to the named host.
// perftest knows only IPv4.
func (f *perftestCmd) connection(c *console, end *endNICs) (net.Conn, error) {
	if f.Connect != "" {
		d := net.Dialer{Timeout: time.Duration(f.Timeout)}
		nc, err := d.DialContext(c.ctx, "tcp4", string(f.Connect))
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: is %s running there, and waiting for its client?", err, f.Test)
		}
		return nc, err
	}
	if !f.Listen.given {
		f.Listen.address = fmt.Sprintf(":%d", cmp.Or(f.Port, 18515))
	}
	var lc net.ListenConfig
	l, err := lc.Listen(c.ctx, "tcp4", f.Listen.address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	defer context.AfterFunc(c.ctx, func() { _ = l.Close() })()
	c.complain("ibverbx: listening on %v with %s, for %s\n", l.Addr(), end, f.Test)
	nc, err := l.Accept()
	if err != nil && c.ctx.Err() != nil {
		return nil, bench.ErrInterrupted
	}
	return nc, err
}

// measure runs the test itself.
func (f *perftestCmd) measure(c *console, nc net.Conn, end *endNICs, cfg *perftest.Config) (
	*perftest.Report, error) {
	dev, err := f.nic(c, nc, end)
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	if end.Name() == roceNICs && f.Device == "" {
		cfg.Peer = nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}
	report, err := perftest.Run(c.ctx, nc, f.Connect != "", dev, cfg)
	if failed, ok := errors.AsType[*perftest.FailedError](err); ok && failed.First {
		err = explainSilence(err, end.Name(), dev)
	}
	return report, err
}

// nic returns the NIC that reaches the peer: perftest uses one.
func (f *perftestCmd) nic(c *console, nc net.Conn, end *endNICs) (verbs.Device, error) {
	devices, err := end.Reaching(nc)
	if err != nil {
		return nil, err
	}
	end.explain()
	if len(devices) > 1 {
		c.complain("ibverbx: using %s, the first of %s; --device names another one\n", devices[0].Name(),
			count(len(devices), "NIC"))
	}
	if r, ok := devices[0].(*roce.Device); ok && r.Addr().Port() != roce.Port {
		c.complain("ibverbx: %s has UDP port %d, so that only another ibverbx finds it: port %d is taken by "+
			"another process or by rdma_rxe, or --udp-port names another one\n", nicoffer.NameOf(r),
			r.Addr().Port(), roce.Port)
	}
	return devices[0], nil
}

// showPerftest writes a test with perftest for people.
func showPerftest(w io.Writer, r *perftest.Report, unit unit) error {
	t := printer{w: w}
	role := "server"
	if r.Client {
		role = "client"
	}
	t.wrap("", "%s, %s of %s, which is perftest %s", r.Kind, role, r.Peer.Address, r.Peer.Version)
	t.wrap("", "here: %s, GID %v; there: GID %v", r.NIC, r.GID, r.Peer.GID)
	how := fmt.Sprintf("up to %s outstanding on each", count(r.TxDepth, "message"))
	switch {
	case r.Kind == perftest.ReadLat:
		how = "from one message to the next"
	case r.Kind.Latency():
		how = "half of the time from one message to the next"
	}
	t.printf("%s, path MTU %d, %s, NOT verified\n\n", count(r.QPs, "queue pair"), r.PathMTU, how)
	if r.Kind.Latency() {
		t.printf("%9s %9s %10s %10s %10s %10s %10s\n", "size", "messages", "min µs", "median µs", "p99 µs",
			"p99.9 µs", "max µs")
	} else {
		t.printf("%9s %9s %12s %10s\n", "size", "messages", unit.name, "Mmsg/s")
	}
	for i := range r.Results {
		res := &r.Results[i]
		t.printf("%9v %9d", units.Size(res.Size), res.Messages)
		if l := res.Latency; l != nil {
			for _, ns := range []int64{l.Min, l.P50, l.P99, l.P999, l.Max} {
				t.printf(" %10.2f", float64(ns)/1e3)
			}
		} else {
			t.printf(" %12s %10s", digits(unit.of(res.GBPerSecond)), digits(res.MsgPerSecond/1e6))
		}
		if res.Seconds == 0 {
			t.printf("  as the client says")
		}
		t.printf("\n")
	}
	return t.err
}
