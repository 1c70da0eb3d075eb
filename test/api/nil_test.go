package api_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Nil arguments are refused at once, without effect.
func TestNilArguments(t *testing.T) {
	var none context.Context
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		cq := l.A.CQ().CQs()[0]
		for name, call := range map[string]func() error{
			"wait":           func() error { return l.A.CQ().Wait(none) },
			"drain":          func() error { return l.A.Drain(none) },
			"shutdown":       func() error { return l.A.Shutdown(none) },
			"channel":        func() error { return verbs.NewCompChannel().Wait(none) },
			"no physical cq": func() error { _, err := ibverbx.NewVirtualCQ(nil); return err },
			"one of two":     func() error { _, err := ibverbx.NewVirtualCQ(cq, nil); return err },
		} {
			if err := call(); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)) // it serves as before
		l.A.Wait(t, 1)
	})
}
