package programs

import (
	"context"
	"fmt"
	"math"

	"ibverbx/shmem"
)

// Grid is the size of a Jacobi iteration, which computes the temperature of a plate whose edges
// keep theirs.
type Grid struct {
	Rows, Cols int // without the edges
	Steps      int
}

// edge returns the temperature of a point on the edge, which varies along it.
func edge(row, col int) float64 { return math.Sin(float64(3*row+1)) + math.Cos(float64(5*col+2)) }

// relax computes a row from the previous step's values of it and its neighbours.
func relax(dst, above, row, below []float64) {
	for c := 1; c < len(row)-1; c++ {
		dst[c] = 0.25 * (above[c] + below[c] + row[c-1] + row[c+1])
	}
}

// Jacobi computes the plate on all PEs, a band of rows each, and returns all of it, without the
// edges, on every PE. Before each step a PE puts its first and last row into its neighbours' heaps,
// with a signal.
//
// There are two plates, of even and of odd steps. A neighbour is at most one step ahead, since it
// waits for this PE's rows, so it never writes to the plate that this PE reads.
func Jacobi(ctx context.Context, pe *shmem.PE, g Grid) ([]float64, error) {
	if g.Rows < pe.Size() {
		return nil, fmt.Errorf("%d rows: each of %d PEs needs one", g.Rows, pe.Size())
	}
	b, err := newBand(ctx, pe, g)
	if err != nil {
		return nil, err
	}
	for step := range g.Steps {
		if err := b.swapRows(ctx, step); err != nil {
			return nil, err
		}
		from, to := b.plate(step), b.plate(step+1)
		for r := 1; r <= b.rows; r++ {
			relax(b.row(to, r), b.row(from, r-1), b.row(from, r), b.row(from, r+1))
		}
	}
	return b.collect(ctx)
}

// band is the rows of one PE, with one more above and below, and one more column on both sides.
type band struct {
	pe          *shmem.PE
	g           Grid
	width       int // of a row with its edges
	most        int // rows of the largest band
	first, rows int
	plates      shmem.Sym[float64]
	signals     shmem.Sym[uint64] // from above, from below
}

// share returns where the band of a PE begins and how many rows it has.
func (b *band) share(id int) (first, rows int) {
	n := b.pe.Size()
	first = b.g.Rows * id / n
	return first, b.g.Rows*(id+1)/n - first
}

func newBand(ctx context.Context, pe *shmem.PE, g Grid) (*band, error) {
	b := &band{pe: pe, g: g, width: g.Cols + 2, most: (g.Rows + pe.Size() - 1) / pe.Size()}
	b.first, b.rows = b.share(pe.Rank())
	var err error
	if b.plates, err = shmem.Alloc[float64](ctx, pe, 2*b.height()*b.width); err != nil {
		return nil, err
	}
	if b.signals, err = shmem.Alloc[uint64](ctx, pe, 2); err != nil {
		return nil, err
	}
	for step := range 2 {
		for r := range b.rows + 2 {
			row, at := b.row(b.plate(step), r), b.first+r
			if at == 0 || at == g.Rows+1 {
				for c := range row {
					row[c] = edge(at, c)
				}
			}
			row[0], row[b.width-1] = edge(at, 0), edge(at, b.width-1)
		}
	}
	return b, pe.Barrier(ctx) // from here on neighbours may send rows
}

func (b *band) height() int { return b.most + 2 }

// plate returns the plate of a step.
func (b *band) plate(step int) shmem.Sym[float64] {
	size := b.height() * b.width
	return b.plates.Slice(step%2*size, (step%2+1)*size)
}

func (b *band) row(plate shmem.Sym[float64], r int) []float64 { return b.at(plate, r).Local(b.pe) }

func (b *band) at(plate shmem.Sym[float64], r int) shmem.Sym[float64] {
	return plate.Slice(r*b.width, (r+1)*b.width)
}

// swapRows sends this PE's outer rows to its neighbours and waits for theirs.
func (b *band) swapRows(ctx context.Context, step int) error {
	pe, plate := b.pe, b.plate(step)
	above, below := pe.Rank()-1, pe.Rank()+1
	if above >= 0 {
		_, rows := b.share(above)
		err := shmem.PutSignal(ctx, pe, b.at(plate, rows+1), b.row(plate, 1), b.signals.At(1), 1,
			shmem.SignalAdd, above)
		if err != nil {
			return err
		}
	}
	if below < pe.Size() {
		err := shmem.PutSignal(ctx, pe, b.at(plate, 0), b.row(plate, b.rows), b.signals.At(0), 1,
			shmem.SignalAdd, below)
		if err != nil {
			return err
		}
	}
	if above >= 0 {
		if err := shmem.WaitUntil(ctx, pe, b.signals.At(0), shmem.GE, uint64(step+1)); err != nil {
			return err
		}
	}
	if below < pe.Size() {
		return shmem.WaitUntil(ctx, pe, b.signals.At(1), shmem.GE, uint64(step+1))
	}
	return nil
}

// collect puts the bands together and frees the memory.
func (b *band) collect(ctx context.Context) ([]float64, error) {
	mine := make([]float64, b.most*b.g.Cols)
	for r := range b.rows {
		copy(mine[r*b.g.Cols:], b.row(b.plate(b.g.Steps), r+1)[1:b.width-1])
	}
	all := make([]float64, len(mine)*b.pe.Size())
	if err := shmem.AllGather(ctx, b.pe, all, mine); err != nil {
		return nil, err
	}
	whole := make([]float64, 0, b.g.Rows*b.g.Cols)
	for id := range b.pe.Size() {
		_, rows := b.share(id)
		whole = append(whole, all[id*len(mine):id*len(mine)+rows*b.g.Cols]...)
	}
	if err := shmem.Free(ctx, b.pe, b.signals); err != nil {
		return nil, err
	}
	return whole, shmem.Free(ctx, b.pe, b.plates)
}

// SerialJacobi returns what Jacobi returns, bit for bit.
func SerialJacobi(g Grid) []float64 {
	width := g.Cols + 2
	var plates [2][][]float64
	for i := range plates {
		for r := range g.Rows + 2 {
			row := make([]float64, width)
			for c := range row {
				if r == 0 || r == g.Rows+1 || c == 0 || c == width-1 {
					row[c] = edge(r, c)
				}
			}
			plates[i] = append(plates[i], row)
		}
	}
	for step := range g.Steps {
		from, to := plates[step%2], plates[(step+1)%2]
		for r := 1; r <= g.Rows; r++ {
			relax(to[r], from[r-1], from[r], from[r+1])
		}
	}
	var whole []float64
	for r := 1; r <= g.Rows; r++ {
		whole = append(whole, plates[g.Steps%2][r][1:width-1]...)
	}
	return whole
}
