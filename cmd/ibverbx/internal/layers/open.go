package layers

import (
	"context"
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// closers are what an end has to close, in the order in which it was opened.
type closers struct {
	list []func(ctx context.Context) error
}

// onClose has close call f before what it was told earlier.
func (c *closers) onClose(f func() error) {
	c.list = append(c.list, func(context.Context) error { return f() })
}

// close drops the errors that only say that the peer has closed first.
func (c *closers) close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(c.list) {
		err := f(ctx)
		if !slices.ContainsFunc([]error{transport.ErrPeerClosed, transport.ErrPeerFailed,
			transport.ErrCanceled, context.Canceled, context.DeadlineExceeded},
			func(of error) bool { return errors.Is(err, of) }) {
			errs = append(errs, err)
		}
	}
	c.list = nil
	return errors.Join(errs...)
}

// open makes a domain of the end's NICs, and with rest what else the end is made of.
func (c *closers) open(cfg *Config, rest func(cfg *Config, dom *ibverbx.Domain) error) error {
	dom, err := ibverbx.NewDomain(cfg.Devices...)
	if err != nil {
		return err
	}
	c.onClose(dom.Close)
	if err = rest(cfg, dom); err != nil {
		err = errors.Join(err, c.close(context.Background()))
	}
	return err
}

// one is what post returns of an operation that was called once.
func one(err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// register makes the memory of an end known to its NICs.
func register(dom *ibverbx.Domain, cfg *Config) (src, dst *ibverbx.MR, err error) {
	if len(cfg.Src) > 0 {
		if src, err = dom.Register(cfg.Src, verbs.AccessLocalWrite|verbs.AccessRemoteRead); err != nil {
			return nil, nil, err
		}
	}
	if dst, err = dom.Register(cfg.Dst, verbs.AccessAll); err != nil && src != nil {
		err = errors.Join(err, src.Close())
		src = nil
	}
	return src, dst, err
}

// remoteOf is an end's memory as the other one names it.
func remoteOf(card *Card, src, dst *ibverbx.MR) {
	if src != nil {
		card.Src = src.Remote()
	}
	card.Dst = dst.Remote()
}
