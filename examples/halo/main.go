// N processes compute how heat flows on a plate, each on some of its rows. In each step they put
// their outermost rows, the halo, into their neighbours' memory, with SHMEM. On this host:
//
//	go build -o halo ./examples/halo
//	go run ./cmd/ibverbx run -n 4 ./halo
//
// Like examples/allreduce it runs unchanged under srun, mpirun, torchrun, or as a Kubernetes job.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"

	"ibverbx"
	"ibverbx/job"
	"ibverbx/nics"
	"ibverbx/shmem"
)

const (
	width = 500 // cells of a row
	rows  = 100 // of each process
	steps = 300
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	j, err := job.Join(ctx, job.Config{}) // finds this process's rank in the environment
	if err != nil {
		log.Fatal(err)
	}
	working, cancel := j.Context(ctx) // ends when one of the processes dies
	defer cancel()
	if err = run(working, j); err == nil {
		err = j.Barrier(ctx)
	}
	if err != nil {
		before := j.Err() // another process has failed before this one
		j.Fail(err)       // tells the others why
		log.Fatal(errors.Join(err, before))
	}
	if err := j.Close(); err != nil {
		log.Fatal(err)
	}
}

// run makes this process a PE over the NICs that reach the others.
func run(ctx context.Context, j *job.Job) error {
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
	cfg := shmem.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather}
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceFabric // the job reports who has died
	pe, err := shmem.Join(ctx, dom, cfg)
	if err != nil {
		return err
	}
	if err := diffuse(ctx, pe); err != nil {
		return err
	}
	return errors.Join(pe.Close(ctx), dom.Close(), host.Close())
}

// diffuse computes this PE's rows, and compares them with those of a single process.
func diffuse(ctx context.Context, pe *shmem.PE) error {
	// The neighbours' rows arrive here, from above and from below. Odd and even steps use different
	// places: a neighbour may be one step ahead, but not two, because it needs a row of this PE.
	halo, err := shmem.Alloc[float64](ctx, pe, 4*width)
	if err != nil {
		return err
	}
	signals, err := shmem.Alloc[uint64](ctx, pe, 2) // the last step whose row has come, from each side
	if err != nil {
		return err
	}
	above, below := (pe.Rank()+pe.Size()-1)%pe.Size(), (pe.Rank()+1)%pe.Size() // the plate is a tube
	place := func(step uint64, side int) int { return (2*int(step%2) + side) * width }
	plate, next := make([]float64, (rows+2)*width), make([]float64, (rows+2)*width)
	copy(plate[width:], initial(pe.Size())[pe.Rank()*rows*width:][:rows*width])

	for step := uint64(1); step <= steps; step++ {
		up, down := place(step, 1), place(step, 0) // the first row is the one below the upper neighbour's
		if err := errors.Join(
			shmem.PutSignal(ctx, pe, halo.Slice(up, up+width), plate[width:2*width],
				signals.At(1), step, shmem.SignalSet, above),
			shmem.PutSignal(ctx, pe, halo.Slice(down, down+width), plate[rows*width:(rows+1)*width],
				signals.At(0), step, shmem.SignalSet, below),
		); err != nil {
			return err
		}
		if err := shmem.WaitUntilAll(ctx, pe, signals, shmem.GE, step); err != nil {
			return err
		}
		copy(plate[:width], halo.Local(pe)[place(step, 0):])
		copy(plate[(rows+1)*width:], halo.Local(pe)[place(step, 1):][:width])
		flow(next, plate)
		plate, next = next, plate
	}
	if !slices.Equal(plate[width:(rows+1)*width], serial(pe.Size())[pe.Rank()*rows*width:][:rows*width]) {
		return errors.New("the PEs and one process disagree")
	}
	fmt.Printf("rank %d of %d: %d steps, %d cells as one process computes them\n", pe.Rank(), pe.Size(),
		steps, rows*width)
	return nil
}

// flow computes a step: every cell except the outermost takes heat from its neighbours.
func flow(dst, src []float64) {
	for i := width; i < len(src)-width; i++ {
		if x := i % width; x > 0 && x < width-1 {
			dst[i] = src[i] + 0.2*(src[i-1]+src[i+1]+src[i-width]+src[i+width]-4*src[i])
		}
	}
}

// initial is the plate before the first step, hot in the middle of where two processes meet.
func initial(pes int) []float64 {
	plate := make([]float64, pes*rows*width)
	for y := rows - 20; y < rows+20; y++ {
		for x := 200; x < 300; x++ {
			plate[y%(pes*rows)*width+x] = 100
		}
	}
	return plate
}

// serial computes everything without PEs.
func serial(pes int) []float64 {
	size := pes * rows * width
	plate, next := make([]float64, size+2*width), make([]float64, size+2*width)
	copy(plate[width:], initial(pes))
	for range steps {
		copy(plate[:width], plate[size:])
		copy(plate[size+width:], plate[width:2*width])
		flow(next, plate)
		plate, next = next, plate
	}
	return plate[width : size+width]
}
