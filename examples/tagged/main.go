// N processes compute how heat flows round a ring of wire, each on some of its cells, as an MPI
// program would: the cells at the borders travel as tagged messages between neighbours, and
// collective calls find the largest change, and put the ring together. On this host:
//
//	go build -o ring ./examples/tagged
//	go run ./cmd/ibverbx run -n 4 ./ring
//
// Like examples/allreduce it runs unchanged under srun, mpirun, torchrun, or as a Kubernetes job.
// docs/FROM-MPI.md has MPI's name for each call.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"slices"

	"ibverbx"
	"ibverbx/job"
	"ibverbx/nics"
	"ibverbx/tagged"
)

const (
	cells = 1000 // of each process
	steps = 100
)

// The tags of a cell say which way it travels.
const (
	down uint64 = iota
	up
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
	cfg := tagged.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather}
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceFabric // the job reports who has died
	w, err := tagged.Join(ctx, dom, cfg)
	if err != nil {
		return err
	}
	if err := diffuse(ctx, w, j.Rank(), j.Size()); err != nil {
		return err
	}
	if err := j.Barrier(ctx); err != nil { // nobody leaves before all have what they need of it
		return err
	}
	return errors.Join(w.Close(), dom.Close(), host.Close())
}

// diffuse computes this rank's cells. Rank 0 compares the ring with that of a single process.
func diffuse(ctx context.Context, w *tagged.Worker, rank, size int) error {
	lower, err := w.Peer((rank + size - 1) % size)
	if err != nil {
		return err
	}
	upper, err := w.Peer((rank + 1) % size)
	if err != nil {
		return err
	}
	wire := make([]float64, cells+2) // one more cell at each end: the neighbour's
	next := make([]float64, cells+2)
	copy(wire[1:], initial(size)[rank*cells:][:cells])
	change := make([]float64, 1)
	for range steps {
		if err := errors.Join(
			pass(ctx, lower, upper, down, wire[1], &wire[cells+1]),
			pass(ctx, upper, lower, up, wire[cells], &wire[0]),
		); err != nil {
			return err
		}
		change[0] = flow(next, wire)
		wire, next = next, wire
	}
	if err := tagged.AllReduce(ctx, w, change, change, tagged.OpMax); err != nil {
		return err
	}
	var ring []float64
	if rank == 0 {
		ring = make([]float64, size*cells)
	}
	if err := tagged.Gather(ctx, w, ring, wire[1:cells+1], 0); err != nil {
		return err
	}
	if rank == 0 {
		if want, last := serial(size); !slices.Equal(ring, want) || change[0] != last {
			return errors.New("the ranks and one process disagree")
		}
	}
	if err := w.Barrier(ctx); err != nil { // rank 0 has compared
		return err
	}
	fmt.Printf("rank %d of %d: %d steps, %d cells as one process computes them\n", rank, size, steps, cells)
	return nil
}

// pass sends a cell to one neighbour, and receives that of the other, which travels the same way.
func pass(ctx context.Context, to, from *tagged.Endpoint, way uint64, cell float64, in *float64) error {
	var got [8]byte
	out := binary.LittleEndian.AppendUint64(nil, math.Float64bits(cell))
	_, err := to.SendRecv(ctx, way, out, from, way, got[:])
	*in = math.Float64frombits(binary.LittleEndian.Uint64(got[:]))
	return err
}

// flow computes a step of the cells between the outermost, and returns the largest change.
func flow(dst, src []float64) (change float64) {
	for i := 1; i < len(src)-1; i++ {
		dst[i] = src[i] + 0.25*(src[i-1]+src[i+1]-2*src[i])
		change = max(change, math.Abs(dst[i]-src[i]))
	}
	return change
}

// initial is the ring before the first step, hot where the last process meets the first.
func initial(size int) []float64 {
	ring := make([]float64, size*cells)
	for i := range 20 {
		ring[i], ring[len(ring)-1-i] = 100, 100
	}
	return ring
}

// serial computes everything without messages. It returns the ring and the last change.
func serial(size int) (ring []float64, change float64) {
	n := size * cells
	wire, next := make([]float64, n+2), make([]float64, n+2)
	copy(wire[1:], initial(size))
	for range steps {
		wire[0], wire[n+1] = wire[n], wire[1]
		change = flow(next, wire)
		wire, next = next, wire
	}
	return wire[1 : n+1], change
}
