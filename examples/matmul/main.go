// N processes multiply two matrices, each of which has one block of each, on a grid of processes.
// In each step those of a row of the grid get a part of the first matrix from one of them, and
// those of a column a part of the second (the algorithm SUMMA), as an MPI program would with two
// communicators. On this host:
//
//	go build -o matmul ./examples/matmul
//	go run ./cmd/ibverbx run -n 6 ./matmul
//
// Like examples/allreduce it runs unchanged under srun, mpirun, torchrun, or as a Kubernetes job.
// docs/FROM-MPI.md has MPI's name for each call.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"ibverbx"
	"ibverbx/job"
	"ibverbx/nics"
	"ibverbx/tagged"
)

// strip is how many columns of the first matrix, and rows of the second, a step multiplies. Both
// matrices have as many strips as there are processes.
const strip = 24

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	j, err := job.Join(ctx, job.Config{}) // finds this process's rank in the environment
	if err != nil {
		log.Fatal(err)
	}
	working, cancel := j.Context(ctx) // ends when one of the processes dies
	defer cancel()
	if err := run(working, j); err != nil {
		before := j.Err() // another process has failed before this one
		j.Fail(err)       // tells the others why
		log.Fatal(errors.Join(err, before))
	}
	if err := j.Close(); err != nil {
		log.Fatal(err)
	}
}

// run makes this process a rank over the NICs that reach the others.
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
	cfg := tagged.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather, OnDemand: true}
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceFabric // the job reports who has died
	w, err := tagged.Join(ctx, dom, cfg)
	if err != nil {
		return err
	}
	if err := multiply(ctx, w.World()); err != nil {
		return err
	}
	if err := j.Barrier(ctx); err != nil { // nobody leaves before all have what they need of it
		return err
	}
	return errors.Join(w.Close(), dom.Close(), host.Close())
}

// multiply computes this rank's block of the product, and compares it with one computed alone.
func multiply(ctx context.Context, world *tagged.Team) error {
	rows := 1 // of the grid, which is as square as the number of processes allows
	for r := 1; r*r <= world.Size(); r++ {
		if world.Size()%r == 0 {
			rows = r
		}
	}
	columns := world.Size() / rows
	row, err := world.Split(ctx, world.Rank()/columns, world.Rank())
	if err != nil {
		return err
	}
	column, err := world.Split(ctx, world.Rank()%columns, world.Rank())
	if err != nil {
		return err
	}
	n := strip * world.Size()
	height, width := n/rows, n/columns // of a block
	top, left := column.Rank()*height, row.Rank()*width
	a := block(first, top, left, height, width)
	b := block(second, top, left, height, width)
	c := make([]float64, height*width)
	tall, wide := make([]float64, height*strip), make([]float64, strip*width)
	for k := 0; k < n; k += strip {
		if from := k / width; from == row.Rank() {
			for i := range height { // the columns of the strip
				copy(tall[i*strip:][:strip], a[i*width+k-left:])
			}
		}
		if from := k / height; from == column.Rank() {
			copy(wide, b[(k-top)*width:]) // its rows
		}
		// Both are under way at once.
		across, err := tagged.StartBroadcast(row, tall, k/width)
		if err != nil {
			return err
		}
		along, err := tagged.StartBroadcast(column, wide, k/height)
		if err != nil {
			return err
		}
		if err := tagged.WaitAll(ctx, across, along); err != nil {
			return err
		}
		across.Free()
		along.Free()
		add(c, tall, wide, width)
	}
	for i, got := range c {
		if want := product(top+i/width, left+i%width, n); got != want {
			return fmt.Errorf("row %d, column %d: %v, want %v", top+i/width, left+i%width, got, want)
		}
	}
	if err := world.Barrier(ctx); err != nil { // all have compared
		return err
	}
	fmt.Printf("rank %d of %d: block %d, %d of %d by %d: %d products as one process computes them\n",
		world.Rank(), world.Size(), column.Rank(), row.Rank(), rows, columns, len(c))
	return errors.Join(row.Close(), column.Close())
}

// add adds the product of two strips to c, whose rows have so many elements.
func add(c, tall, wide []float64, width int) {
	for i := range len(c) / width {
		to := c[i*width:][:width]
		for k, x := range tall[i*strip:][:strip] {
			for j, y := range wide[k*width:][:width] {
				to[j] += x * y
			}
		}
	}
}

// first and second are the elements of the matrices: small integers, so that sums are exact.
func first(i, j int) float64  { return float64((i*7+j*3)%11 - 5) }
func second(i, j int) float64 { return float64((i*5+j)%13 - 6) }

// block returns a block of a matrix, row by row.
func block(of func(i, j int) float64, top, left, height, width int) []float64 {
	b := make([]float64, 0, height*width)
	for i := range height {
		for j := range width {
			b = append(b, of(top+i, left+j))
		}
	}
	return b
}

// product is an element of the product of matrices of n rows and columns.
func product(i, j, n int) (sum float64) {
	for k := range n {
		sum += first(i, k) * second(k, j)
	}
	return sum
}
