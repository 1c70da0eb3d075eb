package job

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// These are the variables of this package. `ibverbx run` sets all of them. EnvAddress and EnvJob
// may be set beside those of any launcher, and override it.
const (
	EnvRank    = "IBVERBX_RANK"    // from 0 on
	EnvSize    = "IBVERBX_SIZE"    // how many processes
	EnvAddress = "IBVERBX_ADDRESS" // where rank 0 listens, HOST:PORT
	EnvJob     = "IBVERBX_JOB"     // which job, any text
	// EnvReport is where `ibverbx run` receives which process has ended the job, or is waited for,
	// HOST:PORT of UDP.
	EnvReport = "IBVERBX_REPORT"
)

// Place is this process's place in a job.
type Place struct {
	// Rank is from 0 on. In a Place from Find, Size is 0 if only PMIx knows it.
	Rank, Size int
	// Address is where rank 0 listens. It is empty in a job of one process, and while only a Store
	// or PMIx knows it.
	Address string
	Job     string // distinguishes the job from others
	Source  string // the source of all this and what was found there, for errors and logs

	secret string // given by a launcher beside the name of the job
	// incarnation identifies, with a Store, the right rank 0 among those that have left an address
	// there.
	incarnation string
	pmix        bool // PMIx knows this process: Join asks it for whatever is not decided otherwise
}

// Find returns what Join would take for this process's place in a job. An error says what was found
// and what is missing. Find does not ask PMIx: it returns what is known without it, which is no
// size if only PMIx knows that, and the Address at which Join looks for rank 0 if PMIx does not
// answer.
func Find(cfg Config) (Place, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Place{}, err
	}
	return find(&cfg, os.LookupEnv)
}

// find looks at the configuration first, and then at the environment.
func find(cfg *Config, lookup func(string) (string, bool)) (p Place, err error) {
	env := environment(lookup)
	if cfg.Size > 0 {
		p = Place{Rank: cfg.Rank, Size: cfg.Size, Source: "job.Config"}
	} else if p, err = env.find(); err != nil {
		return p, err
	}
	from := p.Source
	if cfg.Store != nil {
		p.Address = "" // rank 0 knows better than a launcher
	}
	if v := env.value(EnvAddress); v != "" && cfg.Size == 0 {
		p.Address, from = v, EnvAddress
	}
	if v := env.value(EnvJob); v != "" && cfg.Size == 0 {
		p.Job = v
	}
	if cfg.Address != "" {
		p.Address, from = cfg.Address, "Address"
	}
	if cfg.Job != "" {
		p.Job = cfg.Job
	}
	if from != p.Source || cfg.Store != nil {
		p.pmix = p.Size == 0 // only for the size
	}
	switch {
	case p.Size == 1:
		p.Address, p.pmix = "", false
		return p, nil
	case cfg.Store != nil:
		return p, checkStored(&p, from)
	case p.pmix && from == p.Source:
		return p, nil
	case p.Address == "":
		return p, fmt.Errorf("job: %w: %s: the address of rank 0 is missing: set %s=HOST:PORT for all %d "+
			"processes, or Config.Address", ErrNoJob, p.Source, EnvAddress, p.Size)
	}
	return p, checkAddress(p.Address, from)
}

// environment reads variables.
type environment func(string) (string, bool)

// value returns a variable without space around it; empty if there is none.
func (env environment) value(name string) string {
	v, _ := env(name)
	return strings.TrimSpace(v)
}

// found lists the variables that are set, with their values.
func (env environment) found(names ...string) string {
	var set []string
	for _, name := range names {
		if v, ok := env(name); ok {
			set = append(set, fmt.Sprintf("%s=%.100s", name, strconv.QuoteToASCII(v)))
		}
	}
	return strings.ReplaceAll(strings.Join(set, " "), `"`, "")
}

// find goes through the launchers. Of several that give this process a place the first one counts.
func (env environment) find() (Place, error) {
	var chosen Place
	var by *launcher
	var incomplete []error
	all := launchers()
	for i := range all {
		l := &all[i]
		p, set, err := env.placeBy(l)
		switch {
		case err != nil && set == 2:
			if by == nil {
				return p, err // its numbers make no sense
			}
		case err != nil:
			incomplete = append(incomplete, err)
		case set == 0:
		case by == nil:
			chosen, by = p, l
		case chosen.Size == 1 && p.Size > 1 && by.rank != EnvRank:
			return p, fmt.Errorf("job: %w: a job of one process (%s), and one of %d (%s): the launcher that "+
				"started %d processes is not the one that gave them their ranks; set %s and %s to decide",
				ErrNoJob, chosen.Source, p.Size, p.Source, p.Size, EnvRank, EnvSize)
		case chosen.Address == "" && chosen.Rank == p.Rank && chosen.Size == p.Size:
			// These are other variables of the same launcher, which give rank 0's address: srun
			// --mpi=pmi2 sets PMI's variables beside its own.
			p.Source = chosen.Source + ", " + p.Source
			chosen = p
		}
	}
	if p, ok := env.pmixAlone(); ok && (by == nil || by.inherited && !env.pmixOfSlurm()) {
		return p, nil
	}
	if by != nil {
		return chosen, nil
	}
	if incomplete != nil {
		return chosen, fmt.Errorf("job: %w: %w", ErrNoJob, errors.Join(incomplete...))
	}
	if env.found(EnvSize) != "" {
		return chosen, fmt.Errorf("job: %w: %s, and no rank: %s is missing", ErrNoJob, env.found(EnvSize),
			EnvRank)
	}
	pmix := "PMIx"
	if half := env.found(envNamespace, envPMIxRank); half != "" {
		pmix = fmt.Sprintf("PMIx (%s, where it sets %s, and %s from 0 on)", half, envNamespace, envPMIxRank)
	}
	return chosen, fmt.Errorf("job: %w: the environment has no variables of ibverbx run, Open MPI's mpirun, "+
		"MPICH's or Intel's mpiexec, torchrun, a Kubernetes indexed job, Slurm's srun, or %s: start the "+
		"program with one of them, as with `ibverbx run -n 4 PROGRAM`, or set Config.Rank, Size and Address",
		ErrNoJob, pmix)
}

// placeBy returns the place that a launcher gives this process, and how many of its two numbers are
// set.
func (env environment) placeBy(l *launcher) (p Place, set int, err error) {
	rank, hasRank := env(l.rank)
	size, hasSize := env(l.size)
	p.Source = fmt.Sprintf("%s (%s)", l.name, env.found(append([]string{l.rank, l.size}, l.more...)...))
	switch {
	case !hasRank && (!hasSize || l.sizeShared):
		return p, 0, nil
	case !hasRank:
		return p, 1, fmt.Errorf("%s: %s is missing", p.Source, l.rank)
	case !hasSize:
		return p, 1, fmt.Errorf("%s: %s is missing%s", p.Source, l.size, l.hint)
	}
	var errRank, errSize error
	p.Rank, errRank = strconv.Atoi(strings.TrimSpace(rank))
	p.Size, errSize = strconv.Atoi(strings.TrimSpace(size))
	if errRank != nil || errSize != nil || p.Size < 1 || p.Size > maxSize || p.Rank < 0 || p.Rank >= p.Size {
		return p, 2, fmt.Errorf("job: %w: %s: %s must be 1 to %d, and %s less than it", ErrNoJob, p.Source,
			l.size, maxSize, l.rank)
	}
	if l.where != nil {
		p.Address, p.Job = l.where(env, p.Size)
		if l.secret != "" {
			p.secret = env.value(l.secret)
		}
	}
	p.pmix = l.pmix && env.knownToPMIx(p.Rank)
	return p, 2, nil
}

// port returns a port for a number, in a range that systems leave alone, above those that Linux
// gives to connections (net.ipv4.ip_local_port_range, 32768 to 60999).
func port(n uint64) string { return strconv.FormatUint(61000+n%4000, 10) }

// hash returns a number for a text, the same in every process: FNV-1a.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(s) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// onThisHost returns the address of rank 0 if all ranks are on one host.
func onThisHost(job string) string { return net.JoinHostPort("127.0.0.1", port(hash(job))) }

// firstHost returns the first host of a list in Slurm's form: "node[07-09,12],other" begins with
// node07, "rack[1-2]n[3,5]" with rack1n3. It is empty if the list cannot be read.
func firstHost(list string) string {
	var host strings.Builder
	for list != "" && list[0] != ',' {
		if list[0] != '[' {
			host.WriteByte(list[0])
			list = list[1:]
			continue
		}
		inside, rest, closed := strings.Cut(list[1:], "]")
		first := inside[:len(inside)-len(strings.TrimLeft(inside, "0123456789"))]
		if !closed || first == "" {
			return ""
		}
		host.WriteString(first)
		list = rest
	}
	if strings.ContainsAny(host.String(), "] \t") {
		return ""
	}
	return host.String()
}
