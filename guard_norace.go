//go:build !race

package ibverbx

// ownerGuard detects concurrent use in builds with the race detector; in others it is nothing.
type ownerGuard struct{}

func (*ownerGuard) enter() {}
func (*ownerGuard) exit()  {}
