// Package guard detects misuse of types that one goroutine owns: reliably in builds with the race
// detector or with the tag invariants, which also check invariants, and in other builds nearly
// always and for a nanosecond a call.
package guard

// NoCopy makes go vet report copies of a struct that has it as a field, because it has the methods
// of a lock. Put it first: a field without a size at the end of a struct takes up room.
type NoCopy struct{}

// Lock makes NoCopy a lock to go vet. It does nothing.
func (*NoCopy) Lock() {}

// Unlock makes NoCopy a lock to go vet. It does nothing.
func (*NoCopy) Unlock() {}

// Owner detects that a second goroutine enters while the first is still inside. The zero value is
// ready for use.
type Owner struct{ inside flag }

// Enter panics with the message if a goroutine is inside. Pass a constant that begins with the name
// of the package, so that entering computes nothing.
func (o *Owner) Enter(message string) {
	if o.inside.Swap(true) {
		panic(message)
	}
}

// Exit ends what Enter began.
func (o *Owner) Exit() {
	o.inside.Store(false)
}

// Inside reports whether a goroutine is inside.
func (o *Owner) Inside() bool { return o.inside.Load() }
