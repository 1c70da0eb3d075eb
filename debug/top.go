package debug

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"ibverbx/internal/peertext"
)

// TopConfig configures [Top].
type TopConfig struct {
	// Interval is the time between two looks, 10 ms at least; 0 means 1 s.
	Interval time.Duration
	// Looks is how many looks there are; 0 means until the context ends, and with JSON 1.
	Looks int
	// JSON writes each [Look] as a line for programs in place of a page.
	JSON bool
	// Rows is how many lines of peers and rails a page has; 0 means 40.
	Rows int

	color bool // marks what is sick, and clears the terminal before each page
}

// samples is how many snapshots a look takes: queues that are long in all of them stand.
const samples = 4

// Top shows what processes do, again and again: their peers and rails, what is sick first. Targets
// are numbers of processes of this user, which have called [Server.Listen], and addresses HOST:PORT
// at which a [Server] handles /debug/ibverbx. Without targets it shows all processes of this user.
// A process that does not answer is named; if none answers, the error says why. On a terminal, what
// is sick is red, unless NO_COLOR is set in the environment.
func Top(ctx context.Context, w io.Writer, targets []string, cfg TopConfig) error {
	if cfg.Interval == 0 {
		cfg.Interval = time.Second
	}
	if cfg.JSON {
		cfg.Looks = max(cfg.Looks, 1)
	}
	if cfg.Rows == 0 {
		cfg.Rows = 40
	}
	if out, ok := w.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		info, err := out.Stat()
		cfg.color = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	cfg.Interval = max(cfg.Interval, 10*time.Millisecond)
	before, err := collect(ctx, targets)
	for n := 0; cfg.Looks == 0 || n < cfg.Looks; n++ {
		if len(before) == 0 {
			return cmp.Or(err, errors.New("top: no process of this user can be watched: start one that "+
				"calls debug.Server.Listen, such as ibverbx perf"))
		}
		shots := [][]Process{before}
		for range samples {
			select {
			case <-ctx.Done():
				return nil //nolint:nilerr // whoever ends it wants it to end
			case <-time.After(cfg.Interval / samples):
			}
			var shot []Process
			if shot, err = collect(ctx, targets); ctx.Err() != nil {
				return nil //nolint:nilerr // as above
			}
			shots = append(shots, shot)
		}
		look := compare(shots...)
		if err != nil {
			look.Missing = line(err.Error())
		}
		if err := look.write(w, cfg); err != nil {
			return err
		}
		before = shots[samples]
	}
	return nil
}

// write writes a look.
func (l *Look) write(w io.Writer, cfg TopConfig) error {
	if cfg.JSON {
		return json.NewEncoder(w).Encode(l)
	}
	var page strings.Builder
	if cfg.color {
		page.WriteString("\x1b[H\x1b[2J")
	}
	if l.Missing != "" {
		page.WriteString("no answer: " + l.Missing + "\n")
	}
	cells := tabwriter.NewWriter(&page, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprint(
		cells,
		"OUT GB/s\tIN GB/s\tFLIGHT\tWAIT\tLOST\tBACK\tRNR\tERRORS\t  PEER AND RAIL\n",
	) // no disk
	marked, rows := map[int]bool{}, 1
	add := func(r *PeerRow, name string) {
		if rows > cfg.Rows {
			return
		}
		in := fmt.Sprintf("%.3f", r.In/1e9)
		if r.In < 0 {
			in = "-"
		}
		if r.Sick != "" {
			name += ": " + r.Sick
		}
		marked[rows] = r.sickness != well
		rows++
		_, _ = fmt.Fprintf(
			cells,
			"%.3f\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t  %s\n",
			r.Out/1e9,
			in,
			r.Outstanding,
			r.Waiting,
			r.Lost,
			r.Back,
			r.NotReady,
			r.Errors,
			name,
		)
	}
	for i := range l.Peers {
		p := &l.Peers[i]
		add(p, fmt.Sprintf("%s %s: %s", who(p.PID, p.Target), p.Process, p.Name))
		for k := range p.Rails {
			if p.sickness == well && p.Out == 0 && p.In <= 0 {
				break // it rests
			}
			add(&p.Rails[k], "  "+p.Rails[k].Name)
		}
	}
	_ = cells.Flush() // to memory
	text := l.color(page.String(), marked, cfg)
	for _, n := range l.NICs {
		text += n.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

// color marks lines, which count from the heading on.
func (l *Look) color(page string, marked map[int]bool, cfg TopConfig) string {
	if !cfg.color {
		return page
	}
	lines := strings.Split(page, "\n")
	head := 0
	if l.Missing != "" {
		head = 1
	}
	for n, sick := range marked {
		if at := head + n; sick && at < len(lines) {
			lines[at] = "\x1b[31m" + lines[at] + "\x1b[0m"
		}
	}
	return strings.Join(lines, "\n")
}

// who names a process: by its number, or by the address at which it was asked, since processes of
// several containers have the same number.
func who(pid int, target string) string {
	if _, err := strconv.Atoi(target); target == "" || err == nil {
		return strconv.Itoa(pid)
	}
	return target
}

// String returns a line that says which counters have grown; empty if none has.
func (r *NICRow) String() string {
	if len(r.Grown) == 0 {
		return ""
	}
	var counted []string
	for _, name := range slices.Sorted(maps.Keys(r.Grown)) {
		counted = append(counted, fmt.Sprintf("%s +%d", name, r.Grown[name]))
	}
	return fmt.Sprintf("%s: nic %s port %d: %s: %s\n", who(r.PID, r.Target), r.Device, r.Port, r.Sick,
		line(strings.Join(counted, ", ")))
}

// maxText is how many characters of text from a process are shown.
const maxText = 160

// line makes text from another process fit to be shown.
func line(text string) string { return peertext.Line(text, maxText) }
