package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A copy of the repository gets a path, then another, then that one again. That it builds under
// another path, and passes its tests, takes CI longer than everything else here: .ci/run.
func TestMakeModule(t *testing.T) {
	if testing.Short() {
		t.Skip("copies and builds the module")
	}
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not here")
	}
	root := t.TempDir()
	copyRepository(t, root)
	command := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range []string{"", "PATH=nodots", "PATH=https://example.org/x", "PATH=go.etcd.io/etcd"} {
		if out, err := command("make", strings.Fields("module "+args)...); err == nil {
			t.Errorf("make module %s succeeds:\n%s", args, out)
		}
	}
	for _, c := range []struct{ path, says string }{
		{"example.org/you/ibverbx", "was ibverbx and is example.org/you/ibverbx"},
		{"github.com/them/rdma", "was example.org/you/ibverbx and is github.com/them/rdma"},
		{"github.com/them/rdma", "nothing to do"},
	} {
		out, err := command("make", "module", "PATH="+c.path)
		if err != nil || !strings.Contains(out, c.says) {
			t.Fatalf("make module PATH=%s: %v\n%s; want %q", c.path, err, out, c.says)
		}
		if out, err := command("gofmt", "-l", "."); err != nil || out != "" {
			t.Errorf("as %s: not formatted: %v\n%s", c.path, err, out)
		}
		if out, err := command("go", "list", "-deps", "-test", "./..."); err != nil { // every import is there
			t.Errorf("as %s: %v\n%s", c.path, err, out)
		}
		// The module below has dependencies that may not be on this host: CI builds it renamed.
		below, err := os.ReadFile(filepath.Join(root, "job/etcd/go.mod"))
		for _, want := range []string{"module " + c.path + "/job/etcd\n", c.path + " v0.0.0-",
			"replace " + c.path + " => ../..\n"} {
			if err != nil || !strings.Contains(string(below), want) {
				t.Errorf("as %s: %v, no %q in\n%s", c.path, err, want, below)
			}
		}
	}
	const before = `"(example\.org/you/)?ibverbx/|^(module|replace) (example.*|ibverbx)`
	old, err := exec.Command("grep", "-rlE", before, root, "--include=*.go", "--include=*.yml",
		"--include=go.mod", "--exclude-dir=modpath").Output()
	if len(old) > 0 || err == nil { // grep fails when it finds nothing
		t.Errorf("an earlier path is left in\n%s", old)
	}
}

// copyRepository copies everything but the history to a directory.
func copyRepository(t *testing.T, to string) {
	t.Helper()
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		from, dst := filepath.Join("../..", e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.Name() == ".git":
			continue
		case e.IsDir():
			err = os.CopyFS(dst, os.DirFS(from))
		default:
			var content []byte
			if content, err = os.ReadFile(from); err == nil {
				err = os.WriteFile(dst, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
