//go:build !linux || !(amd64 || arm64) || softonly

package pmix

import (
	"fmt"
	"runtime"
)

// load returns the error that libpmix needs Linux on amd64 or arm64, and a build that may open it.
func load(string) (*library, error) {
	return nil, fmt.Errorf("%w: it is opened on Linux on amd64 or arm64, and not by a build with the tag "+
		"softonly; this is one on %s/%s", ErrNoLibrary, runtime.GOOS, runtime.GOARCH)
}
