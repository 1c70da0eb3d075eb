//go:build !linux

package shm

import (
	"runtime"
	"time"

	"ibverbx/verbs"
)

// On this system there is no memory that its maker can seal and pass on, so Open fails, and nothing
// else here is reached.

func notSupported() error {
	return &verbs.OpError{Op: "shm: open", Err: verbs.ErrNotSupported,
		Detail: "sealed memory (memfd_create) needs Linux, this is " + runtime.GOOS + "/" + runtime.GOARCH}
}

type conn struct{}

func words([]byte) []uint64                               { return nil }
func yieldThread()                                        {}
func newMemory(int, int, bool) ([]byte, int, error)       { return nil, -1, notSupported() }
func mapMemory(int, int, bool) ([]byte, error)            { return nil, notSupported() }
func newArena(int) (mem, alias []byte, fd int, err error) { return nil, nil, -1, notSupported() }
func unshare([]byte, int) error                           { return notSupported() }
func privatise([]byte, int) error                         { return notSupported() }
func addressOf([]byte) uint64                             { return 0 }
func dupFD(int) (int, error)                              { return -1, notSupported() }
func unmapMemory([]byte)                                  {}
func checkPassing(int) error                              { return notSupported() }
func closeFD(int)                                         {}
func listen(string, verbs.GID) (*conn, error)             { return nil, notSupported() }
func leave(string, verbs.GID)                             {}
func dial(string, verbs.GID) (*conn, error)               { return nil, notSupported() }
func userID() uint32                                      { return 0 }
func (*conn) accept() (*conn, error)                      { return nil, notSupported() }
func (*conn) peerUID() (uint32, error)                    { return 0, notSupported() }
func (*conn) setDeadline(time.Time)                       {}
func (*conn) recv() (message []byte, fd int, err error)   { return nil, -1, notSupported() }
func (*conn) send([]byte, int) error                      { return notSupported() }
func (*conn) bell()                                       {}
func (*conn) close()                                      {}
