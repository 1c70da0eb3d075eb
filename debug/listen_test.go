package debug

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"ibverbx/verbs"
)

// The second part of a program that listens is told that there is one, and what to do. Sockets of
// processes that were killed go.
func TestListenTwice(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	l, err := New(Config{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := New(Config{}).Listen(); !errors.Is(err, verbs.ErrBusy) {
		t.Error(err)
	}
	killed := exec.Command("true")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, ownDir(), strconv.Itoa(killed.Process.Pid)+".sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	if list, err := collect(t.Context(), nil); err != nil || len(list) != 1 {
		t.Errorf("%d processes, %v", len(list), err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// ownDir is what the directory of this user's sockets is called.
func ownDir() string { return "ibverbx-" + strconv.Itoa(os.Getuid()) }

// Where XDG_RUNTIME_DIR is another user's, or names nothing, the directory for temporary files has
// the socket, and nothing is left in the other user's.
func TestNoRuntimeDir(t *testing.T) {
	temp, others := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	dirs := []string{filepath.Join(temp, "missing")}
	if os.Getuid() == 0 { // nobody else can give a directory away
		if err := os.Chown(others, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, others)
	}
	for _, dir := range dirs {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		l, err := New(Config{}).Listen()
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		if list, err := collect(t.Context(), nil); err != nil || len(list) != 1 {
			t.Errorf("%s: %d processes, %v", dir, len(list), err)
		}
		if _, err := os.Stat(filepath.Join(temp, ownDir())); err != nil {
			t.Error(err)
		}
		_ = l.Close()
	}
	if left, err := os.ReadDir(others); err != nil || len(left) != 0 {
		t.Errorf("in the other user's: %v, %v", left, err)
	}
}

// Only this host is answered, unless the program says otherwise, and a bad request is told why.
func TestWhoMayLook(t *testing.T) {
	for name, c := range map[string]struct {
		from, host, method, query string
		anyone                    bool
		code                      int
	}{
		"this host":         {"127.0.0.1:999", "127.0.0.1:6060", "GET", "", false, 200},
		"by name":           {"[::1]:999", "localhost:6060", "GET", "", false, 200},
		"another host":      {"192.0.2.7:999", "192.0.2.1:6060", "GET", "", false, 403},
		"another, let in":   {"192.0.2.7:999", "192.0.2.1:6060", "GET", "", true, 200},
		"a browser's page":  {"127.0.0.1:999", "evil.example:6060", "GET", "", false, 403},
		"a write":           {"127.0.0.1:999", "localhost", "POST", "", false, 405},
		"too often":         {"127.0.0.1:999", "localhost", "GET", "?every=1ns", false, 400},
		"at no time at all": {"127.0.0.1:999", "localhost", "GET", "?every=soon", false, 400},
	} {
		r := httptest.NewRequest(c.method, "/debug/ibverbx"+c.query, nil)
		r.RemoteAddr, r.Host = c.from, c.host
		w := httptest.NewRecorder()
		New(Config{Anyone: c.anyone}).ServeHTTP(w, r)
		var p Process
		if err := json.Unmarshal(w.Body.Bytes(), &p); w.Code != c.code ||
			(err == nil) != (c.code == 200) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if err := os.Mkdir(filepath.Join(dir, ownDir()), 0o755); err != nil { //nolint:gosec // that is the case
		t.Fatal(err)
	}
	if l, err := New(Config{}).Listen(); !errors.Is(err, os.ErrPermission) {
		t.Errorf("%v, %v", l, err)
	}
}
