package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"ibverbx/job/internal/pmix"
)

// Environment variables by which PMIx describes a process (PMIx Standard, PMIx_server_setup_fork).
const (
	envNamespace = "PMIX_NAMESPACE" // the job
	envPMIxRank  = "PMIX_RANK"
)

// knownToPMIx reports whether PMIx knows this process under this rank. It does not know processes
// that one of its processes has started by other means.
func (env environment) knownToPMIx(rank int) bool {
	return env.value(envNamespace) != "" && env.value(envPMIxRank) == strconv.Itoa(rank)
}

// pmixOfSlurm reports whether srun itself offers PMIx (src/plugins/mpi/pmix/pmixp_info.c), and not
// a launcher inside one of its jobs.
func (env environment) pmixOfSlurm() bool {
	return strings.HasPrefix(env.value(envNamespace), "slurm.")
}

// pmixAlone returns the place of a process whose launcher only tells it how to ask PMIx, such as
// PRRTE's prterun.
func (env environment) pmixAlone() (Place, bool) {
	rank, err := strconv.Atoi(env.value(envPMIxRank))
	if err != nil || rank < 0 || !env.knownToPMIx(rank) {
		return Place{}, false
	}
	return Place{Rank: rank, Job: env.value(envNamespace), pmix: true,
		Source: fmt.Sprintf("PMIx (%s)", env.found(envNamespace, envPMIxRank))}, true
}

// askPMIx asks PMIx for the number of processes, and makes it the store by which they find rank 0,
// unless these are decided already. If PMIx cannot answer, the launcher's variables must suffice.
// The caller calls done once the processes are connected.
func (p *Place) askPMIx(ctx context.Context, cfg *Config) (done func(), err error) {
	if !p.pmix {
		return func() {}, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, cfg.Wait, errWaited(cfg.Wait))
	defer cancel()
	client, err := pmix.Open(limited)
	if err == nil {
		if err = p.adopt(client, cfg); err != nil {
			_ = client.Close() // err has the reason
		}
	}
	switch {
	case err == nil:
		return func() {
			if err := client.Close(); err != nil {
				cfg.Logger.Warn("ibverbx: job: PMIx is not left as it should be", "because", err)
			}
		}, nil
	case ctx.Err() != nil: // that ends Join, whatever the library returns
		if cause := context.Cause(ctx); !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, fmt.Errorf("job: %s: %w", p.Source, err)
	case p.Size > 0 && p.Address != "":
		log := cfg.Logger.Warn
		if errors.Is(err, pmix.ErrNoLibrary) {
			log = cfg.Logger.Debug
		}
		log("ibverbx: job: rank 0 is looked for without PMIx", "address", p.Address, "because", err)
		return func() {}, nil
	case p.Size > 0:
		return nil, fmt.Errorf("job: %w: %s: the address of rank 0 is missing: set %s=HOST:PORT for all %d "+
			"processes, or Config.Address, or have PMIx tell it: %w", ErrNoJob, p.Source, EnvAddress, p.Size,
			err)
	}
	return nil, fmt.Errorf("job: %w: %s: only PMIx knows how many processes there are: %w: set %s and %s to "+
		"do without", ErrNoJob, p.Source, err, EnvRank, EnvSize)
}

// adopt uses the answers of PMIx.
func (p *Place) adopt(client *pmix.Client, cfg *Config) error {
	rank, size := client.Rank(), client.Size()
	if rank != p.Rank || p.Size > 0 && size != p.Size || size > maxSize {
		return fmt.Errorf("PMIx has this process be rank %d of %d", rank, size)
	}
	decided := p.Address != "" && p.Size == 0 || cfg.Store != nil
	p.Size = size
	if decided || size == 1 {
		return nil
	}
	p.Address, cfg.Store = "", client
	if p.Job == "" {
		p.Job = client.Namespace()
	}
	return nil
}
