//go:build !race && !invariants

package guard

// Checked reports whether this build checks invariants after each call.
const Checked = false

// flag is a plain word, like that of Go's maps: it costs a fraction of an atomic one, which would
// detect more. What it misses is still a data race of the program.
type flag struct{ set bool }

func (f *flag) Swap(v bool) bool {
	was := f.set
	f.set = v
	return was
}

func (f *flag) Store(v bool) { f.set = v }
func (f *flag) Load() bool   { return f.set }
