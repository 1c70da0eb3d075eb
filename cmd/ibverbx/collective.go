package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/alecthomas/kong"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/collperf"
	"ibverbx/internal/units"
	"ibverbx/job"
	"ibverbx/shmem"
)

// collectiveReport is what --json prints of collective calls.
type collectiveReport struct {
	bench.Document
	Layer   layers.Layer      `json:"layer"`
	Op      bench.Op          `json:"op"`
	PEs     int               `json:"pes"`
	Results []collperf.Figure `json:"results"`
}

// runCollective measures a collective call: as a process of a job, if this one is, and otherwise
// between PEs of this process.
func (f *perfCmd) runCollective(c *console, k *kong.Context) (err error) {
	defer func() { err = interruptedOr(c, err) }()
	_, err = job.Find(job.Config{})
	inJob := !errors.Is(err, job.ErrNoJob)
	if err := f.checkCollective(k, inJob); err != nil {
		return err
	}
	if inJob {
		return f.runInJob(c)
	}
	provider, err := f.openHere(c, softNICs, f.PEs, ibverbx.ConnConfig{}, &f.outcome)
	if err != nil {
		return err
	}
	devices, err := provider.Devices()
	var domains []*ibverbx.Domain
	for i := 0; err == nil && i < len(devices); i++ {
		var dom *ibverbx.Domain
		if dom, err = ibverbx.NewDomain(devices[i]); err == nil {
			domains = append(domains, dom)
		}
	}
	if err == nil {
		err = f.runWorld(c, domains)
	}
	for _, dom := range domains {
		err = errors.Join(err, dom.Close())
	}
	return errors.Join(err, provider.Close())
}

// checkCollective refuses flags that change nothing.
func (f *perfCmd) checkCollective(k *kong.Context, inJob bool) error {
	if f.Params.Layer != layers.SHMEM {
		return usage("--op %s is of --layer %s", f.Params.Op, layers.SHMEM)
	}
	always := []string{"layer", "op", "size", "duration", "iters", "pes", "json"}
	ofNICs := []string{"provider", "device", "library", "udp-port", "rate-limit"}
	for _, el := range k.Path {
		switch {
		case el.Flag == nil:
		case inJob && el.Flag.Name == "pes":
			return usage("--pes: the job has its own number of processes")
		case slices.Contains(always, el.Flag.Name):
		case !slices.Contains(ofNICs, el.Flag.Name):
			return usage("--%s does not go with --op %s", el.Flag.Name, f.Params.Op)
		case !inJob && f.Provider != softNICs:
			return usage("--%s with --op %s is for the processes of a job: ibverbx run -n 4 ibverbx perf ...",
				el.Flag.Name, f.Params.Op)
		}
	}
	if f.Host != "" {
		return usage("--op %s takes no HOST: start a job, ibverbx run -n 4 ibverbx perf ...", f.Params.Op)
	}
	return cmp.Or(checkGiven(k), f.check(f.Provider))
}

// runWorld measures between PEs of this process.
func (f *perfCmd) runWorld(c *console, domains []*ibverbx.Domain) error {
	w, err := shmem.NewLocal(c.ctx, shmem.Config{HeapSize: 1 << 20}, domains...)
	if err != nil {
		return err
	}
	return errors.Join(w.Run(c.ctx, func(ctx context.Context, pe *shmem.PE) error {
		return f.collective(ctx, c, pe, "in this process, over software NICs")
	}), w.Close(c.ctx))
}

// runInJob measures between the processes of a job.
func (f *perfCmd) runInJob(c *console) error {
	j, err := job.Join(c.ctx, job.Config{})
	if err != nil {
		return err
	}
	f.outcome.document = f.JSON && j.Rank() != 0
	ctx, cancel := j.Context(c.ctx)
	defer cancel()
	if err := f.member(ctx, c, j); err != nil {
		before := j.Err()
		j.Fail(err)
		return errors.Join(err, before)
	}
	return j.Close()
}

// member is a process of a job.
func (f *perfCmd) member(ctx context.Context, c *console, j *job.Job) error {
	host, err := openNICs(f.config(f.Provider))
	if err != nil {
		return err
	}
	devices, err := host.ReachingAll(ctx, j)
	if err != nil {
		return errors.Join(err, host.Close())
	}
	dom, err := ibverbx.NewDomain(devices...)
	if err != nil {
		return errors.Join(err, host.Close())
	}
	cfg := shmem.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather, HeapSize: 1 << 20}
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceFabric // the job reports who has died
	pe, err := shmem.Join(ctx, dom, cfg)
	if err == nil {
		where := fmt.Sprintf("of a job, over %s", host)
		err = errors.Join(f.collective(ctx, c, pe, where), pe.Close(ctx))
	}
	return errors.Join(err, dom.Close(), host.Close())
}

// collective measures at one PE. PE 0 prints.
func (f *perfCmd) collective(ctx context.Context, c *console, pe *shmem.PE, where string) error {
	p := &f.Params
	cfg := collperf.Config{Op: collperf.Op(p.Op), Calls: p.Iterations,
		Duration: time.Duration(cmp.Or(p.Duration, units.Seconds(time.Second/4)))}
	sizes := p.Sizes
	if sizes == nil {
		sizes, _ = units.ParseRange("1K..16M/4")
	}
	for _, size := range sizes {
		cfg.Sizes = append(cfg.Sizes, int(size))
	}
	out := io.Discard
	if pe.Rank() == 0 && !f.JSON {
		out = c.out
	}
	table := printer{w: out}
	table.printf("shmem: %s of float32 between %d PEs %s\n\n%10s%10s%16s%14s%14s\n", p.Op, pe.Size(), where,
		"size", "calls", "time of a call", "algorithm", "bus")
	report := collectiveReport{Document: document(perfTool, f.outcome.note), Layer: p.Layer, Op: p.Op,
		PEs: pe.Size(), Results: []collperf.Figure{}}
	began := time.Now()
	err := collperf.Run(ctx, pe, cfg, func(g collperf.Figure) error {
		report.Results = append(report.Results, g)
		table.printf("%10v%10d%13.1f µs%9.3f GB/s%9.3f GB/s\n", units.Size(g.Bytes), g.Calls, g.Seconds*1e6,
			g.Alg, g.Bus)
		return table.err
	})
	err = interruptedOr(c, err)
	if report.End(began, err); f.JSON && pe.Rank() == 0 {
		f.outcome.document = true
		err = errors.Join(err, writeJSON(c.out, &report))
	}
	return err
}

// interruptedOr returns what an interrupt makes of an error.
func interruptedOr(c *console, err error) error {
	if err != nil && c.ctx.Err() != nil {
		return bench.ErrInterrupted
	}
	return err
}
