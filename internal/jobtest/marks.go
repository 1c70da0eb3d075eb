//go:build unix

package jobtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// What a process tells the others of the test, by an empty file for each word and rank: a process
// is killed when they are where it is to find them, however slow the machine.
const (
	started = "started" // it knows its rank
	joined  = "joined"  // it has joined the job
	dying   = "dying"   // it kills itself next
	ended   = "ended"   // it has nothing more to do with the job
)

// mark says a word.
func (m *member) mark(word string, rank int) {
	path := m.markOf(word, rank)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err) // the others wait for it, and fail
	}
}

// marked reports whether a process has said a word.
func (m *member) marked(word string, rank int) bool {
	_, err := os.Stat(m.markOf(word, rank))
	return err == nil
}

// await waits until processes have said a word.
func (m *member) await(ctx context.Context, word string, ranks ...int) error {
	for _, rank := range ranks {
		for !m.marked(word, rank) {
			if ctx.Err() != nil {
				return fmt.Errorf("rank %d has not said that it is %s: %w", rank, word, ctx.Err())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

func (m *member) markOf(word string, rank int) string {
	return filepath.Join(m.marks, fmt.Sprintf("%s.%d", word, rank))
}

// whenMet is a handler for the logger of a job, which calls a function once rank 0 knows this
// process.
type whenMet struct{ call func() }

func (*whenMet) Enabled(context.Context, slog.Level) bool { return true }
func (w *whenMet) WithAttrs([]slog.Attr) slog.Handler     { return w }
func (w *whenMet) WithGroup(string) slog.Handler          { return w }

func (w *whenMet) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "ibverbx: job: rank 0 knows this process" {
		w.call()
	}
	return nil
}
