package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/job/etcd"
)

// Etcd hands out each rank once, the lowest first, and again when it is given back.
func TestRank(t *testing.T) {
	server := running(t)
	const size = 5
	var stores [size]*etcd.Store
	var ranks [size]int
	var all sync.WaitGroup
	for i := range stores {
		stores[i] = open(t, in(t, server))
		all.Go(func() {
			var err error
			if ranks[i], err = stores[i].Rank(t.Context(), "a/b c", size); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := slices.Sorted(slices.Values(ranks[:])); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Fatalf("ranks %v", got)
	}
	late := open(t, in(t, server))
	if rank, err := late.Rank(t.Context(), "a", 1); err != nil || rank != 0 {
		t.Errorf("in another job: rank %d, %v", rank, err)
	}
	var err error
	for wait := 100 * time.Millisecond; wait < 10*time.Second; wait *= 2 { // until it knows who has them
		short, cancel := context.WithTimeout(t.Context(), wait)
		_, err = late.Rank(short, "a/b c", size)
		cancel()
		if err == nil || strings.Contains(err.Error(), "all are taken") {
			break
		}
	}
	for _, want := range []string{`rank in job "a/b c" of 5 processes`, "all are taken: 0 by ", ", pid ",
		"less than 2s ago"} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	got := make(chan int, 1)
	go func() {
		rank, err := late.Rank(t.Context(), "a/b c", size)
		if err != nil {
			t.Error(err)
		}
		got <- rank
	}()
	if err := stores[2].Close(); err != nil {
		t.Error(err)
	}
	if rank := <-got; rank != ranks[2] {
		t.Errorf("rank %d was given back, and %d handed out", ranks[2], rank)
	}
	for _, size := range []int{0, -1} {
		if _, err := late.Rank(t.Context(), "a", size); !errors.Is(err, etcd.ErrConfig) {
			t.Errorf("of %d processes: %v", size, err)
		}
	}
	if _, err := late.Rank(t.Context(), "", 1); !errors.Is(err, etcd.ErrConfig) {
		t.Errorf("of no job: %v", err)
	}
}
