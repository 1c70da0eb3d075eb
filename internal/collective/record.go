package collective

// Record is a summary of the calls that a rank has made, of which T describes one. Ranks that are
// in the same call compare their records, and so find out when they are out of step.
//
// Invariant: ranks that have made the same calls have the same Step, Hash and descriptions.
type Record[T any] struct {
	Step  uint64 // calls so far
	Hash  uint64 // of all of them
	calls [remembered]T
}

// remembered is how many calls a record describes. A rank can be ahead of one that waits for it by
// no more than the depth of a tree, two calls for each level. A chain is deeper, but its calls have
// many messages, of which there are two on each level.
const remembered = 64

// Add records a call, by all that ranks must agree on.
func (r *Record[T]) Add(args ...int) {
	r.Step++
	for _, v := range args {
		r.Hash = Mix(r.Hash, uint64(v))
	}
}

// Describe describes the last call.
func (r *Record[T]) Describe(call T) { r.calls[r.Step%remembered] = call }

// Last returns the description of the last call.
func (r *Record[T]) Last() T { return r.calls[r.Step%remembered] }

// At describes the call at a step; ok is false if it has not been made or is too long ago.
func (r *Record[T]) At(step uint64) (call T, ok bool) {
	return r.calls[step%remembered], step != 0 && step <= r.Step && r.Step-step < remembered
}

// Mix adds a value to a hash.
func Mix(hash, v uint64) uint64 {
	hash = (hash ^ v ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return hash ^ hash>>29
}
