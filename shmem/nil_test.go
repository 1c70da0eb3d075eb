package shmem_test

import (
	"errors"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// TestNilArguments: what is nil is refused.
func TestNilArguments(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	for name, err := range map[string]error{
		"join": func() error { _, err := shmem.Join(l.ctx, nil, shmem.Config{}); return err }(),
		"new local": func() error {
			_, err := shmem.NewLocal(l.ctx, shmem.Config{}, l.doms[0],
				nil)
			return err
		}(),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
