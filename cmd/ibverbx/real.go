//go:build !softonly

package main

import (
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// openReal opens the host's NICs.
func openReal(o nicOptions) (verbs.Provider, error) {
	p, err := rdmacore.Open(rdmacore.Config{Devices: o.filter, Library: o.library})
	if err != nil {
		return nil, err // and no nil pointer in an interface
	}
	return p, nil
}
