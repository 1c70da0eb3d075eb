//go:build linux && (amd64 || arm64) && !softonly

package pmix

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// load opens libpmix. It stays loaded for the life of the process.
func load(file string) (*library, error) {
	runtime.LockOSThread() // dlerror's text belongs to the thread
	// Components that the library opens itself may expect its symbols to be global.
	handle, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	runtime.UnlockOSThread()
	if err != nil {
		return nil, fmt.Errorf("%w: install it (Debian and Ubuntu: libpmix2; Fedora and RHEL: pmix), or "+
			"name its directory in LD_LIBRARY_PATH: %w", ErrNoLibrary, err)
	}
	l := &library{call: func(fn uintptr, args ...uintptr) uintptr {
		r, _, _ := purego.SyscallN(fn, args...)
		return r
	}}
	for _, s := range []struct {
		name string
		addr *uintptr
	}{
		{"PMIx_Init", &l.init}, {"PMIx_Finalize", &l.finalize}, {"PMIx_Put", &l.put},
		{"PMIx_Commit", &l.commit}, {"PMIx_Get", &l.get}, {"PMIx_Error_string", &l.errorString},
		{"free", &l.free}, // of the C library that it is linked with
	} {
		if *s.addr, err = purego.Dlsym(handle, s.name); err != nil {
			return nil, fmt.Errorf("%w: %s has no %s: is it libpmix?", ErrNoLibrary, file, s.name)
		}
	}
	return l, nil
}
