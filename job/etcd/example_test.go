package etcd_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"ibverbx/job"
	"ibverbx/job/etcd"
)

// Four processes, which nobody has numbered, become a job. Here they are goroutines, and etcd a
// server that the test has started.
func Example() {
	endpoint := exampleServer()
	process := func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		store, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{endpoint}})
		if err != nil {
			return "", err
		}
		defer store.Close()
		rank, err := store.Rank(ctx, "example", 4)
		if err != nil {
			return "", err
		}
		j, err := job.Join(ctx, job.Config{Rank: rank, Size: 4, Job: "example", Store: store})
		if err != nil {
			return "", err
		}
		defer j.Close()
		all, err := j.AllGather(ctx, fmt.Appendf(nil, "%d", rank))
		return fmt.Sprintf("rank %d of %d, with %s", j.Rank(), j.Size(), all), err
	}

	said := make([]string, 4)
	var processes sync.WaitGroup
	for i := range said {
		processes.Go(func() {
			var err error
			if said[i], err = process(); err != nil {
				log.Print(err)
			}
		})
	}
	processes.Wait()
	slices.Sort(said)
	for _, s := range said {
		fmt.Println(s)
	}
	// Output:
	// rank 0 of 4, with [0 1 2 3]
	// rank 1 of 4, with [0 1 2 3]
	// rank 2 of 4, with [0 1 2 3]
	// rank 3 of 4, with [0 1 2 3]
}
