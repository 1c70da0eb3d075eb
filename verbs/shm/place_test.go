//go:build linux

package shm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// In a directory, the sockets of processes that were killed are removed by the next one that comes,
// those of processes that live or have just begun stay.
func TestStaleSockets(t *testing.T) {
	dir := shortDir(t)
	alive := openNICs(t, Config{Dir: dir}).Device(0).gid
	stale, young := newGID(placeOf(dir)), newGID(placeOf(dir))
	for _, gid := range []verbs.GID{stale, young} {
		fd, err := socket()
		if err == nil {
			err = unix.Bind(fd, meetingPlace(dir, gid))
		}
		if err != nil {
			t.Fatal(err)
		}
		closeFD(fd) // as a process does that is killed
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-2 * youngPlace)
	for _, path := range []string{meetingPlace(dir, stale).Name, meetingPlace(dir, alive).Name, other} {
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	openNICs(t, Config{Dir: dir})
	for path, stays := range map[string]bool{meetingPlace(dir, stale).Name: false, other: true,
		meetingPlace(dir, young).Name: true, meetingPlace(dir, alive).Name: true} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: stays %t: %v", path, !stays, err)
		}
	}
}

// shortDir makes a directory with a name that leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A directory in which no socket can be made is named, with the longest name that is possible.
func TestDirectories(t *testing.T) {
	base := shortDir(t)
	long := filepath.Join(base, strings.Repeat("x", maxDir-len(base)-1))
	for dir, fits := range map[string]bool{long: true, long + "x": false, base + "/none": false} {
		if dir != base+"/none" {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Open(Config{Dir: dir})
		switch {
		case fits && err != nil:
			t.Errorf("%d bytes: %v", len(dir), err)
		case fits:
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		case err == nil || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "Dir: "+dir):
			t.Errorf("%s: %v", dir, err)
		}
	}
}
