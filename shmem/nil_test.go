package shmem_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// TestNilArguments: nil arguments are refused.
func TestNilArguments(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	var none context.Context
	for name, err := range map[string]error{
		"join": func() error { _, err := shmem.Join(l.ctx, nil, shmem.Config{}); return err }(),
		"new local": func() error {
			_, err := shmem.NewLocal(l.ctx, shmem.Config{}, l.doms[0],
				nil)
			return err
		}(),
		"join, no context": func() error {
			_, err := shmem.Join(none, l.doms[0], shmem.Config{})
			return err
		}(),
		"new local, no context": func() error {
			_, err := shmem.NewLocal(none, shmem.Config{}, l.doms[0])
			return err
		}(),
		"run, no context": l.world.Run(none, func(context.Context, *shmem.PE) error {
			t.Error("it ran")
			return nil
		}),
		"close, no context":    l.world.Close(none),
		"close PE, no context": l.world.PEs()[0].Close(none),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWorldOfNil: a world of a PE that is nil panics where it is made, and says which it is.
func TestWorldOfNil(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	defer func() {
		if got, want := recover(), "shmem: new world: PE 1 of 2 is nil"; got != want {
			t.Errorf("panics with %v, want %q", got, want)
		}
	}()
	shmem.NewWorld(l.world.PEs()[0], nil)
}
