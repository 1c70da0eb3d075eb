package processes_test

import "testing"

// Shapes of connections: NICs of each member, and queue pairs of each NIC.
var shapes = []struct {
	name      string
	nics, qps int
}{
	{"one queue pair", 1, 1},
	{"two queue pairs", 1, 2},
	{"two NICs of two queue pairs", 2, 2},
}

// eachShape runs a team in every shape.
func eachShape(t *testing.T, c team) {
	t.Helper()
	for i := range shapes {
		c.inShape(t, i, testing.Short() && i == 1)
	}
}

// outerShapes runs a team of many members in the smallest and largest shape.
func outerShapes(t *testing.T, c team) {
	t.Helper()
	for i := range shapes {
		c.inShape(t, i, i == 1)
	}
}

func (c team) inShape(t *testing.T, i int, skip bool) {
	t.Helper()
	if skip {
		return
	}
	t.Run(shapes[i].name, func(t *testing.T) {
		t.Helper()
		if c.victim {
			t.Parallel() // it mostly waits until a member is taken for dead
		}
		c.nics, c.qps = shapes[i].nics, shapes[i].qps
		c.run(t)
	})
}
