package bench

// column is what is measured at every size: two connected ends, or this process's one.
type column interface {
	name() Scheme
	spent() bool // nothing more can be measured
	cell(r *runner, size int) measurement
	close() error
}

// measurement is one measured shape: an operation at one size in one column.
type measurement interface {
	open() error // agrees with the other process on it
	measure()
	outcome() Result

	// Where another process leads:
	counter() uint64                     // what the counter of atomics at this end holds
	startCounters(theirs cellBody) error // takes in what the other one holds
	follow() error                       // does the rounds that the leading end asks for
}

func (r *rig) name() Scheme                           { return r.scheme }
func (r *rig) spent() bool                            { return r.failed }
func (r *rig) cell(run *runner, size int) measurement { return newCell(run, r, size) }

func (c *cell) outcome() Result { return c.result }
