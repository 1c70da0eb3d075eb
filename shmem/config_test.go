package shmem_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// An impossible configuration is refused before anything is created.
func TestBadConfigurations(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	exchange := func(_ context.Context, mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }
	for says, cfg := range map[string]shmem.Config{
		"Size -1":          {Size: -1},
		"Rank 2":           {Rank: 2, Size: 2, Exchange: exchange},
		"Rank -1":          {Rank: -1},
		"HeapSize -5":      {HeapSize: -5},
		"Exchange is nil":  {Size: 2},
		"returned 1 entry": {Size: 2, Exchange: exchange},
	} {
		pe, err := shmem.Join(l.ctx, l.doms[0], cfg)
		if pe != nil || err == nil ||
			!strings.Contains(err.Error(), strings.ReplaceAll(says, "1 entry", "1 entries")) ||
			!errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := shmem.NewLocal(l.ctx, shmem.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no domains: %v", err)
	}
}
