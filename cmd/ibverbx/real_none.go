//go:build softonly

package main

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// noRealNICs says whether an error of openReal means that there are none.
func noRealNICs(err error) bool { return errors.Is(err, verbs.ErrNotSupported) }

// openReal says that this build has no real NICs.
func openReal(nicOptions) (verbs.Provider, error) {
	return nil, fmt.Errorf("built with -tags softonly: %w: build it without the tag for real NICs",
		verbs.ErrNotSupported)
}
