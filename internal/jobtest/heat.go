//go:build unix

package jobtest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"ibverbx/shmem"
)

// The plate on which heat flows has edge by edge cells, of which each of 2 by 2 processes has a
// block. What leaves it on one side comes in on the other.
const (
	across = 2
	block  = 24
	edge   = across * block
	steps  = 60
)

// The sides of a block: also those of a signal, and of the place where cells of a neighbour arrive.
const (
	top = iota
	bottom
	left
	right
	sides
)

// heat computes how heat flows, with an exchange of the blocks' borders in each step, and compares
// with what one process computes, to the last bit.
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

// serial computes everything by itself.
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

// initial is a cell before the first step.
func initial(i, j int) float64 { return float64((i*31+j*17)%101) / 7 }

// plate is a square of cells with a border of others around it.
type plate struct {
	n     int
	cells []float64 // n+2 by n+2
}

func newPlate(n int) *plate { return &plate{n, make([]float64, (n+2)*(n+2))} }

// at is a cell; -1 and n are those around.
func (p *plate) at(i, j int) *float64 { return &p.cells[(i+1)*(p.n+2)+j+1] }

// border returns the outermost cells of a side.
func (p *plate) border(side int) []float64 {
	cells := make([]float64, p.n)
	for k := range cells {
		cells[k] = *p.along(side, 0, k)
	}
	return cells
}

// surround sets the cells around a side.
func (p *plate) surround(side int, cells []float64) {
	for k, c := range cells {
		*p.along(side, 1, k) = c
	}
}

// along is a cell of a side, the outermost ones or, with 1, those around.
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

// flow computes a step.
func (p *plate) flow(from *plate) {
	for i := range p.n {
		for j := range p.n {
			c := *from.at(i, j)
			*p.at(i, j) = c + 0.2*(*from.at(i-1, j)+*from.at(i+1, j)+*from.at(i, j-1)+*from.at(i, j+1)-4*c)
		}
	}
}
