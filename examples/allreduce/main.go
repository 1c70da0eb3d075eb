// N processes add up a vector, each over its own NICs, with SHMEM. On this host:
//
//	go build -o allreduce ./examples/allreduce
//	go run ./cmd/ibverbx run -n 4 ./allreduce
//
// It runs unchanged under srun, mpirun, torchrun, or as a Kubernetes job (allreduce.yaml): package
// job finds out which process it is. The processes use the hosts' RDMA NICs, or UDP sockets if
// there are none.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"ibverbx"
	"ibverbx/job"
	"ibverbx/nics"
	"ibverbx/shmem"
)

func main() {
	length := flag.Uint("len", 100_000, "numbers in the vector")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, int(*length)); err != nil {
		log.Fatal(err)
	}
}

// run joins the job, does this process's part, and leaves when all are done.
func run(ctx context.Context, length int) error {
	j, err := job.Join(ctx, job.Config{}) // finds this process's rank in the environment
	if err != nil {
		return err
	}
	working, cancel := j.Context(ctx) // ends when one of the processes dies
	defer cancel()
	err = reduce(working, j, length)
	if err == nil {
		err = j.Barrier(ctx)
	}
	if err != nil {
		before := j.Err() // another process has failed before this one
		j.Fail(err)       // tells the others why
		return errors.Join(err, before)
	}
	return j.Close()
}

// reduce makes this process a PE, adds up the vectors of all, and compares the sums.
func reduce(ctx context.Context, j *job.Job, length int) error {
	host, err := nics.Open(nics.Config{})
	if err != nil {
		return err
	}
	devices, err := host.ReachingAll(ctx, j)
	if err != nil {
		return err
	}
	dom, err := ibverbx.NewDomain(devices...)
	if err != nil {
		return err
	}
	cfg := shmem.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather, HeapSize: 1 << 20}
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceFabric // the job reports who has died
	pe, err := shmem.Join(ctx, dom, cfg)
	if err != nil {
		return err
	}
	mine, sums := make([]int64, length), make([]int64, length)
	for i := range mine {
		mine[i] = int64(i) * int64(j.Rank()+1)
	}
	if err := shmem.Reduce(ctx, pe, sums, mine, shmem.OpSum); err != nil {
		return err
	}
	ranks := int64(j.Size()) * int64(j.Size()+1) / 2 // 1 + 2 + ... + N
	for i, sum := range sums {
		if sum != int64(i)*ranks {
			return fmt.Errorf("sum %d is %d, not %d", i, sum, int64(i)*ranks)
		}
	}
	fmt.Printf("rank %d of %d: %d sums verified\n", j.Rank(), j.Size(), length)
	return errors.Join(pe.Close(ctx), dom.Close(), host.Close())
}
