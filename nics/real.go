//go:build !softonly

package nics

import (
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// openReal opens the host's NICs.
func openReal(c Config) (verbs.Provider, error) {
	p, err := rdmacore.Open(rdmacore.Config{Devices: c.Devices, Library: c.Library})
	if err != nil {
		return nil, err // not p: a nil pointer in an interface is not nil
	}
	return p, nil
}
