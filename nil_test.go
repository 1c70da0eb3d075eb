package ibverbx_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Nil arguments are refused at once, without effect.
func TestNilArguments(t *testing.T) {
	var none context.Context
	eachMode(t, 1000, func(t *testing.T, l *link) {
		cq := l.a.cq.CQs()[0]
		for name, call := range map[string]func() error{
			"wait":           func() error { return l.a.cq.Wait(none) },
			"drain":          func() error { return l.a.Drain(none) },
			"shutdown":       func() error { return l.a.Shutdown(none) },
			"channel":        func() error { return verbs.NewCompChannel().Wait(none) },
			"no physical cq": func() error { _, err := ibverbx.NewVirtualCQ(nil); return err },
			"one of two":     func() error { _, err := ibverbx.NewVirtualCQ(cq, nil); return err },
		} {
			if err := call(); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 8)) // it serves as before
		l.a.wait(t, 1)
	})
}
