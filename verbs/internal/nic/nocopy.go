package nic

// noCopy makes go vet refuse copies of the structure whose first field it is. It has no size.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
