package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Users copy the examples: each must build, run, and print what it has verified.
func TestExamplesRun(t *testing.T) {
	prints := map[string]string{
		"twoends": "received 16 blocks of 1048576 bytes in order, every byte verified\n" +
			"sent 16 blocks, verified by the receiver: true\n",
		"scattergather": "write: 256 rows gathered into 65536 bytes\n" +
			"read: 65536 bytes scattered over 256 rows\n" +
			"send: 528 bytes received in two pieces\n",
		"tagged": "3 sums of 1048576 numbers each verified\n",
		"shmem":  "200 steps on 4 PEs: all 4000 cells are as one processor computes them\n",
	}
	bin := t.TempDir()
	for name, want := range prints {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(bin, name)
			build := exec.Command("go", "build", "-o", program, "./"+name)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, program).CombinedOutput()
			if err != nil || string(out) != want {
				t.Errorf("%v\n%swant\n%s", err, out, want)
			}
		})
	}

	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, known := prints[e.Name()]; e.IsDir() && !known {
			t.Errorf("%s: no expected output: every example is run by this test", e.Name())
		}
	}
}
