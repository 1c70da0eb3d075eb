//go:build softonly

package nics

import (
	"fmt"

	"ibverbx/verbs"
)

// openReal returns an error: this build has no real NICs.
func openReal(Config) (verbs.Provider, error) {
	return nil, fmt.Errorf("built with -tags softonly: %w: build it without the tag for real NICs",
		verbs.ErrNotSupported)
}
