package processes_test

import "testing"

// Shapes of connections: how many NICs each member has, and how many queue pairs a NIC.
var shapes = []struct {
	name      string
	nics, qps int
}{
	{"one queue pair", 1, 1},
	{"two queue pairs", 1, 2},
	{"two NICs of two queue pairs", 2, 2},
}

// eachShape runs a team once in every shape.
func eachShape(t *testing.T, c team) {
	t.Helper()
	for i := range shapes {
		c.inShape(t, i, testing.Short() && i == 1)
	}
}

// outerShapes is eachShape for teams of many members: without the shape between the other two.
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
		c.nics, c.qps = shapes[i].nics, shapes[i].qps
		c.run(t)
	})
}
