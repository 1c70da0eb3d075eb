package ibverbx

// noCopy makes go vet report a copy of the struct that it is in: its methods are those of a lock.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
