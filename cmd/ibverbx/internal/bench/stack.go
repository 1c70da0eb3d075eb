package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
)

// stack is a column through a layer above queue pairs: two connected ends of it, or this process's
// one.
type stack struct {
	scheme   Scheme
	provider verbs.Provider // nil when it is not the stack's to close
	devices  [2][]verbs.Device
	ends     [2]*layers.End // nil: another process drives it
	failed   bool           // nothing more can be measured
}

// closePatience is how long the ends may take to part well.
const closePatience = 2 * time.Second

func (s *stack) name() Scheme                         { return s.scheme }
func (s *stack) spent() bool                          { return s.failed }
func (s *stack) cell(r *runner, size int) measurement { return newLayerCell(r, s, size) }
func (s *stack) here() (end *layers.End, other int) {
	if s.ends[0] != nil {
		return s.ends[0], 1
	}
	return s.ends[1], 0
}

func newStack(p *Params, open OpenFunc, scheme Scheme, m *memory) (s *stack, err error) {
	s = &stack{scheme: scheme}
	if s.provider, err = open(p.NICs); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.devices[0], s.devices[1], err = p.share(s.provider); err != nil {
		return s, err
	}
	if err := p.setSpeeds(s.provider, s.devices[:]...); err != nil {
		return s, err
	}
	cfgs := [2]layers.Config{p.endConfig(scheme, s.devices[0], m, 0), p.endConfig(scheme, s.devices[1], m, 1)}
	if s.ends, err = layers.NewPair(&cfgs); err != nil {
		return s, fmt.Errorf("%s: %w", scheme, err)
	}
	return s, p.checkLongest(s.ends[0])
}

// checkLongest says whether every size goes in the kind that was asked for.
func (p *Params) checkLongest(e *layers.End) error {
	longest := e.Longest()
	for _, z := range p.Sizes {
		if longest > 0 && int(z) > longest {
			return usage("--size %v: --kind %s takes at most %v over these NICs; use --kind auto, or "+
				"smaller sizes", z, p.Kind, units.Size(longest))
		}
	}
	return nil
}

// endConfig says what end 0 or 1 is made of.
func (p *Params) endConfig(scheme Scheme, devices []verbs.Device, m *memory, end int) layers.Config {
	if scheme == Single {
		devices = devices[:1]
	}
	largest := 0
	for _, z := range p.Sizes {
		largest = max(largest, int(z))
	}
	return layers.Config{
		Shape: p.Shape(), Kind: p.Kind, Endpoints: p.Endpoints, Window: max(p.TxDepth, leastLayerWindow),
		Largest: largest,
		QP:      p.config(scheme), Spin: p.spin(), Devices: devices, Src: m.ends[end].src,
		Dst:  m.ends[end].dst,
		Tail: p.wordsAt(m, end),
	}
}

// wordsAt is where the words of the layers lie in an end's target: behind the slots, if it has any.
func (p *Params) wordsAt(m *memory, end int) int {
	if len(m.ends[end].dst) <= tail {
		return 0
	}
	return m.behind()
}

// spin is how long an end polls in vain before it sleeps, as transport.Config.Spin.
func (p *Params) spin() time.Duration {
	switch {
	case p.Wait == Poll:
		return time.Hour
	case p.Wait == Events:
		return -1
	case p.unknownSpeed() && p.Mode == Latency:
		return latencySpin
	}
	return patientSpin
}

// close ends both ends and the provider, which must have nothing left open.
func (s *stack) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if s.failed {
		cancel()
	}
	var errs []error
	for _, e := range s.ends {
		if e != nil {
			errs = append(errs, e.Close(ctx))
		}
	}
	if s.provider != nil {
		errs = append(errs, s.provider.Close())
	}
	return errors.Join(errs...)
}

// run plays the round that both ends have begun. It returns when both are over. What one end fails
// of ends the other one's part.
func (s *stack) run(ctx context.Context, tasks *[2]layers.Task) error {
	a, b := s.ends[0], s.ends[1]
	if tasks[1].Send+tasks[1].Take == 0 {
		return cause(ctx, a.Run(ctx, always))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan error, 1)
	go func() { over <- s.part("b", b.Run(ctx, a.Over), cancel) }()
	err := s.part("a", a.Run(ctx, b.Over), cancel)
	return errors.Join(cause(ctx, err), cause(ctx, <-over))
}

// part ends the other end's part too when this one has failed.
func (s *stack) part(end string, err error, cancel context.CancelCauseFunc) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("end %s: %w", end, err)
		cancel(errOver)
	}
	return err
}

func always() bool { return true }

// cause is why ctx ended where err says only that it has.
func cause(ctx context.Context, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	if why := context.Cause(ctx); !errors.Is(why, errOver) {
		return why
	}
	return nil // the other end has said it
}
