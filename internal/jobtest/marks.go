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

// A process reports its progress by an empty file for each mark and rank. So the victim dies only
// once the others have reached the phase under test, however slow the machine is.
const (
	started = "started" // the process knows its rank
	joined  = "joined"  // it has joined the job
	dying   = "dying"   // it kills itself next
	ended   = "ended"   // it has finished with the job
	named   = "named"   // the job has named the victim to it
)

// mark sets a mark.
func (m *member) mark(mark string, rank int) {
	path := m.markOf(mark, rank)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err) // the others wait for it, and fail
	}
}

// marked reports whether the process of a rank has set a mark.
func (m *member) marked(word string, rank int) bool {
	_, err := os.Stat(m.markOf(word, rank))
	return err == nil
}

// await waits until some processes have set a mark.
func (m *member) await(ctx context.Context, word string, ranks ...int) error {
	for _, rank := range ranks {
		for !m.marked(word, rank) {
			if ctx.Err() != nil {
				return fmt.Errorf("rank %d is not marked as %s: %w", rank, word, ctx.Err())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

func (m *member) markOf(word string, rank int) string {
	return filepath.Join(m.marks, fmt.Sprintf("%s.%d", word, rank))
}

// whenMet is a log handler that calls a function once rank 0 knows this process.
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
