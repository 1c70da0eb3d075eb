//go:build !softonly

package main

import (
	"errors"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// noRealNICs says whether an error of openReal means that the host has none.
func noRealNICs(err error) bool {
	return errors.Is(err, rdmacore.ErrNoLibrary) || errors.Is(err, rdmacore.ErrNoDevice)
}

// openReal opens the host's NICs.
func openReal(o nicOptions) (verbs.Provider, error) {
	p, err := rdmacore.Open(rdmacore.Config{Devices: o.filter, Library: o.library})
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return p, nil
}
