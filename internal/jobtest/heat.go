//go:build unix

package jobtest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"ibverbx/shmem"
)

// Heat flows on a plate of edge by edge cells; each of 2 by 2 processes has a block of them. The
// plate is periodic: what leaves it on one side enters on the other.
const (
	across = 2
	block  = 24
	edge   = across * block
	steps  = 60
)

// The sides of a block. They also number the signals, and the places where a neighbour's cells
// arrive.
const (
	top = iota
	bottom
	left
	right
	sides
)

// heat computes how heat flows. In each step the processes exchange the borders of their blocks.
// The result must equal that of a single process to the last bit.
func (m *member) heat(ctx context.Context, pe *shmem.PE) error {
	// Odd and even steps use different places: a neighbour may be one step ahead, and not two.
	halo, err1 := shmem.Alloc[float64](ctx, pe, 2*sides*block)
	signals, err2 := shmem.Alloc[uint64](ctx, pe, sides)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	row, column := pe.Rank()/across, pe.Rank()%across
	neighbour := func(down, aside int) int {
		return (row+down+across)%across*across + (column+aside+across)%across
	}
	mine, next := newPlate(block), newPlate(block)
	for i := range block {
		for j := range block {
			*mine.at(i, j) = initial(row*block+i, column*block+j)
		}
	}
	for step := range uint64(steps) {
		if step == steps/2 {
			m.die(pe.Rank(), InHeat)
		}
		place := int(step%2) * sides * block
		for _, to := range []struct{ from, side, pe int }{{top, bottom, neighbour(-1, 0)},
			{bottom, top, neighbour(1, 0)}, {left, right, neighbour(0, -1)}, {right, left, neighbour(0, 1)}} {
			there := place + to.side*block
			if err := shmem.PutSignal(ctx, pe, halo.Slice(there, there+block), mine.border(to.from),
				signals.At(to.side), step+1, shmem.SignalSet, to.pe); err != nil {
				return err
			}
		}
		if err := shmem.WaitUntilAll(ctx, pe, signals, shmem.GE, step+1); err != nil {
			return err
		}
		for side := range sides {
			mine.surround(side, halo.Local(pe)[place+side*block:][:block])
		}
		next.flow(mine)
		mine, next = next, mine
	}
	whole := serial()
	for i := range block {
		for j := range block {
			got, want := *mine.at(i, j), *whole.at(row*block+i, column*block+j)
			if math.Float64bits(got) != math.Float64bits(want) {
				return fmt.Errorf("cell %d, %d of block %d is %v, not %v", i, j, pe.Rank(), got, want)
			}
		}
	}
	return nil
}

// serial returns the plate after all steps, computed by one process.
func serial() *plate {
	whole, next := newPlate(edge), newPlate(edge)
	for i := range edge {
		for j := range edge {
			*whole.at(i, j) = initial(i, j)
		}
	}
	for range steps {
		for side, opposite := range []int{bottom, top, right, left} {
			whole.surround(side, whole.border(opposite))
		}
		next.flow(whole)
		whole, next = next, whole
	}
	return whole
}

// initial returns the value of a cell before the first step.
func initial(i, j int) float64 { return float64((i*31+j*17)%101) / 7 }

// plate is a square of cells with a border of others around it.
type plate struct {
	n     int
	cells []float64 // n+2 by n+2
}

func newPlate(n int) *plate { return &plate{n, make([]float64, (n+2)*(n+2))} }

// at returns a cell; the border around the plate has the indices -1 and n.
func (p *plate) at(i, j int) *float64 { return &p.cells[(i+1)*(p.n+2)+j+1] }

// border returns the outermost cells of a side.
func (p *plate) border(side int) []float64 {
	cells := make([]float64, p.n)
	for k := range cells {
		cells[k] = *p.along(side, 0, k)
	}
	return cells
}

// surround sets the border cells on a side.
func (p *plate) surround(side int, cells []float64) {
	for k, c := range cells {
		*p.along(side, 1, k) = c
	}
}

// along returns a cell on a side: an outermost cell of the plate or, with outside 1, a border cell.
func (p *plate) along(side, outside, k int) *float64 {
	first, last := -outside, p.n-1+outside
	switch side {
	case top:
		return p.at(first, k)
	case bottom:
		return p.at(last, k)
	case left:
		return p.at(k, first)
	default:
		return p.at(k, last)
	}
}

// flow sets the plate to the next step of another.
func (p *plate) flow(from *plate) {
	for i := range p.n {
		for j := range p.n {
			c := *from.at(i, j)
			*p.at(i, j) = c + 0.2*(*from.at(i-1, j)+*from.at(i+1, j)+*from.at(i, j-1)+*from.at(i, j+1)-4*c)
		}
	}
}
