package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/rendezvous"
)

// taken explains which program has the port at which this rank 0 cannot listen (inUse is the
// error). Another rank 0 of the same job learns of this one.
func taken(ctx context.Context, p *Place, cfg *Config, inUse error) error {
	ctx, cancel := context.WithTimeout(ctx, lateness)
	defer cancel()
	probe := challenge(ctx, p, cfg)
	for errors.Is(probe, rendezvous.ErrVersion) && cfg.Store != nil {
		// It may be another run or this one: its rank 0 shows that in the store as soon as it
		// listens.
		other := *p
		e, err := findEntry(ctx, p, cfg.Store)
		if err != nil || e.Address != p.Address {
			break
		}
		other.incarnation = e.Incarnation
		if probe = challenge(ctx, &other, cfg); probe == nil {
			break
		}
		select {
		case <-time.After(pause(0)):
			continue
		case <-ctx.Done():
		}
		break
	}
	switch {
	case probe == nil:
		perhaps := ""
		if p.Job == "" {
			perhaps = ", or is it another job that has no name either (set " + EnvJob + ")"
		}
		return fmt.Errorf("%w: another process is rank 0 of this job already: do all have rank 0%s? This "+
			"one has it from %s: %w", ErrMismatch, perhaps, p.Source, inUse)
	case errors.Is(probe, rendezvous.ErrVersion):
		return fmt.Errorf("%w: another job has the port: give one of them another in %s: %w", ErrMismatch,
			EnvAddress, probe)
	}
	return fmt.Errorf("%w: another program has the port: choose another in %s", inUse, EnvAddress)
}

// challenge tells the rank 0 at an address that this process has rank 0 as well: a job that is not
// complete ends there too. The error says why it could not be told.
func challenge(ctx context.Context, p *Place, cfg *Config) error {
	c, err := rendezvous.Dial(ctx, p.Address, conversation(p, cfg))
	if err != nil {
		return err
	}
	if c.Send(ctx, kindJoin, newHello(p)) == nil {
		var v verdict
		_ = c.Receive(ctx, kindEnd, &v) // whatever it says, it has been told
	}
	return c.Close()
}

// errTwoFirst is the error of a second rank 0.
func errTwoFirst(p *Place) error {
	perhaps := ""
	if p.Job == "" {
		perhaps = ", or have two jobs no name (set " + EnvJob + ")"
	}
	return fmt.Errorf("%w: two processes have this rank, the other one is %v: do all have rank 0%s? That "+
		"one has it from %s", ErrMismatch, self(0), perhaps, p.Source)
}
