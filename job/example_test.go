package job_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"sync"

	"ibverbx/job"
)

// Three processes meet, tell each other their names, and pass a value around. Here they are
// goroutines; as processes of a launcher each would call Join with the zero Config.
func Example() {
	ctx := context.Background()
	process := func(rank int, address string) ([]string, error) {
		j, err := job.Join(ctx, job.Config{Rank: rank, Size: 3, Address: address, Job: "greet",
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		defer j.Close()
		rows, err := j.AllGather(ctx, fmt.Appendf(nil, "process %d", j.Rank()))
		if err != nil {
			return nil, err
		}
		names := make([]string, len(rows))
		for i, row := range rows {
			names[i] = string(row)
		}
		if j.Rank() == 1 { // Get waits for the value, wherever it is set
			if err := j.Put(ctx, "limit", []byte("64")); err != nil {
				return nil, err
			}
		}
		limit, err := j.Get(ctx, "limit")
		if err != nil {
			return nil, err
		}
		names = append(names, "limit "+string(limit))
		return names, j.Barrier(ctx) // rank 0, which has the store, leaves last
	}
	address := freeAddress()
	var heard [3][]string
	var all sync.WaitGroup
	for rank := range heard {
		all.Go(func() {
			var err error
			if heard[rank], err = process(rank, address); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	for rank, names := range heard {
		fmt.Println(rank, names)
	}
	// Output:
	// 0 [process 0 process 1 process 2 limit 64]
	// 1 [process 0 process 1 process 2 limit 64]
	// 2 [process 0 process 1 process 2 limit 64]
}

// When a process gives up, the calls of the others return who it was and why.
func ExampleJob_Fail() {
	ctx := context.Background()
	address := freeAddress()
	cfg := job.Config{Size: 2, Address: address, Logger: slog.New(slog.DiscardHandler)}
	var other sync.WaitGroup
	other.Go(func() {
		cfg := cfg
		cfg.Rank = 1
		j, err := job.Join(ctx, cfg)
		if err != nil {
			log.Fatal(err)
		}
		j.Fail(errors.New("no memory for the heap"))
		_ = j.Close() // the error is what Fail was given
	})
	j, err := job.Join(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	err = j.Barrier(ctx)
	var who *job.RankError
	if errors.As(err, &who) {
		fmt.Printf("rank %d gave up (%t): %v\n", who.Rank, errors.Is(err, job.ErrFailed), who.Err)
	}
	other.Wait()
	_ = j.Close() // the job has failed, as was said
	// Output:
	// rank 1 gave up (true): the process has given up: no memory for the heap
}

// Find says what Join would do, and by which variables.
func ExampleFind() {
	for name, value := range map[string]string{"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "node1",
		"MASTER_PORT": "29500"} { // as torchrun sets them
		os.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	place, err := job.Find(job.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rank %d of %d, rank 0 listens at %s\n", place.Rank, place.Size, place.Address)
	// Output:
	// rank 2 of 4, rank 0 listens at node1:29500
}

// freeAddress is an address of this host at which nobody listens.
func freeAddress() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
