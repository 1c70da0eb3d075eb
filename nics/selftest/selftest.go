// Package selftest tries the NICs of a host, or of two hosts, and reports whether they do what this
// module needs: what the conformance suite of package verbs/verbstest demands, virtual queue pairs
// in both schemes, failover, the assumptions that failover makes (docs/FAILOVER.md), limits, and
// how fast they are.
//
//	report, err := selftest.Run(ctx, "", selftest.Config{})     // both ends on this host
//	report, err := selftest.Run(ctx, "host", selftest.Config{}) // selftest.Serve runs there
//	report.WriteText(os.Stdout)
//
// # What a verdict means
//
// "pass" means that nothing was seen that contradicts an assumption: a NIC that places data late
// once in a million times may pass. "fail" is a fact. "unknown" was not tried, or not often enough
// to say anything.
//
// # What it costs
//
// It takes a minute or two, and at most [Config].Limit. It registers 20 MiB at each end, and loads
// the processors and the network. It brings queue pairs of its own into ERR; it changes no port, no
// link and no setting of the host. The conformance suite runs in a process of its own, so a driver
// that crashes there is in the report.
package selftest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"ibverbx"
	"ibverbx/internal/peertext"
	"ibverbx/nics"
	"ibverbx/nics/doctor"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// Config configures a self-test. The zero value works.
type Config struct {
	// NICs chooses the NICs. Without a provider Run takes real NICs if the host has some, and
	// otherwise UDP sockets.
	NICs nics.Config
	// Limit is how long all may take; 0 means 5 minutes.
	Limit time.Duration
	// Probe is how long each of some 20 probes goes on; 0 means 2 seconds, and 10 is the most. Of
	// two hosts that of the visitor counts.
	Probe time.Duration
	// Conformance runs the conformance suite, over the NICs of this host, in a process of its own:
	// this program with the same arguments, in which Run is called with the same Config and does
	// not return.
	Conformance bool

	pause func(time.Duration) // takes the place of time.Sleep in a test
}

func (cfg Config) withDefaults() Config {
	cfg.Limit = cmp.Or(cfg.Limit, 5*time.Minute)
	cfg.Probe = min(cmp.Or(cfg.Probe, 2*time.Second), 10*time.Second)
	return cfg
}

// Result is the result of a check.
type Result string

// The results.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Unknown Result = "unknown"
)

// Check is one thing that was tried.
type Check struct {
	Result  Result  `json:"result"`
	Name    string  `json:"name"`
	Seen    string  `json:"seen"`
	Seconds float64 `json:"seconds"`
}

// NIC is a NIC of one of the ends.
type NIC struct {
	verbs.DeviceInfo
	Driver string `json:"driver,omitempty"` // of the kernel; empty for software
}

// Report is the result of a self-test.
type Report struct {
	At     time.Time      `json:"at"`
	Kernel string         `json:"kernel"`
	Go     string         `json:"go"`
	Here   []NIC          `json:"here"`
	There  []NIC          `json:"there"` // of the other end
	Checks []Check        `json:"checks"`
	Host   *doctor.Report `json:"host"` // what package nics/doctor says of this host
}

// Failed reports whether a check has failed.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Result == Fail })
}

// protocol names the conversation of two self-tests.
const protocol = "ibverbx-selftest/1"

// stepLimit is how long an end waits for a step of the other.
const stepLimit = time.Minute

// Run tries the NICs of this host: against those of another, on which [Serve] listens at addr; or
// without an address the first half of them against the second, and a single one against itself. An
// error says why there is no report, which is then nil, or only a part of one.
func Run(ctx context.Context, addr string, cfg Config) (r *Report, err error) {
	cfg = cfg.withDefaults()
	if os.Getenv(childVariable) != "" {
		conformanceChild(cfg)
	}
	ctx, stop := context.WithTimeout(ctx, cfg.Limit)
	defer stop()
	if addr != "" {
		r, err = visit(ctx, addr, cfg)
	} else {
		r, err = alone(ctx, cfg)
	}
	if r != nil {
		r.Checks = append(r.Checks, conformance(ctx, cfg))
	}
	return r, err
}

// alone has both ends.
func alone(ctx context.Context, cfg Config) (*Report, error) {
	host, err := open(cfg.NICs)
	if err != nil {
		return nil, err
	}
	devices, err := host.Devices()
	if err == nil && len(devices) == 0 {
		err = errors.New("selftest: there is no NIC")
	}
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	mine, theirs := devices, devices
	if half := len(devices) / 2; half != 0 {
		mine, theirs = devices[:half], devices[half:2*half]
	}
	near, far := net.Pipe()
	over := make(chan error, 1)
	go func() {
		c, err := rendezvous.Start(ctx, far, rendezvous.Config{Protocol: protocol, Timeout: stepLimit})
		if err == nil {
			_, err = examine(ctx, c, theirs, cfg, false)
		}
		over <- errors.Join(err, far.Close())
	}()
	report := newReport()
	c, err := rendezvous.Start(ctx, near, rendezvous.Config{Protocol: protocol, Timeout: stepLimit})
	if err == nil {
		report, err = examine(ctx, c, mine, cfg, true)
	}
	_ = near.Close() // the other end may have closed it
	return report, errors.Join(err, <-over, host.Close())
}

// open opens the NICs of this host.
func open(cfg nics.Config) (*nics.Host, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Soft.Devices = cmp.Or(cfg.Soft.Devices, 4) // two for each end
	if cfg.Provider != "" {
		return nics.Open(cfg)
	}
	cfg.Provider = nics.Real
	host, err := nics.Open(cfg)
	if err != nil {
		cfg.Provider = nics.RoCE
		host, err = nics.Open(cfg)
	}
	return host, err
}

// visit has the first end.
func visit(ctx context.Context, addr string, cfg Config) (*Report, error) {
	host, err := nics.Open(cfg.NICs)
	if err != nil {
		return nil, err
	}
	c, err := rendezvous.Dial(ctx, addr, rendezvous.Config{Protocol: protocol, Timeout: stepLimit})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	devices, err := host.Agree(ctx, c)
	report := newReport()
	if err == nil {
		report, err = examine(ctx, c, devices, cfg, true)
	}
	_ = c.Close() // the other end may have closed it
	return report, errors.Join(err, host.Close())
}

// Serve takes part in the self-tests of those who visit, one after the other, until ctx ends.
// Whoever reaches addr may visit, and load the host for [Config.Limit]. say gets lines: the address
// at which it listens, and how each visit has ended.
func Serve(ctx context.Context, addr string, cfg Config, say func(format string, args ...any)) error {
	cfg = cfg.withDefaults()
	host, err := nics.Open(cfg.NICs)
	if err != nil {
		return err
	}
	l, err := rendezvous.Listen(ctx, addr, rendezvous.Config{Protocol: protocol, Timeout: stepLimit})
	if err != nil {
		return errors.Join(err, host.Close())
	}
	say("listening on %v with %v\n", l.Addr(), host)
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return errors.Join(err, l.Close(), host.Close())
		}
		limited, stop := context.WithTimeout(ctx, cfg.Limit)
		devices, err := host.Agree(limited, c)
		report := newReport()
		if err == nil {
			report, err = examine(limited, c, devices, cfg, false)
		}
		stop()
		_ = c.Close() // the visitor may have closed it
		say("%v: %d checks%s\n", c.RemoteAddr(), len(report.Checks), because(err))
	}
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + line(err.Error())
}

func newReport() *Report {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return &Report{At: time.Now(), Kernel: strings.TrimSpace(string(kernel)), Go: runtime.Version() + " " +
		runtime.GOARCH, Here: []NIC{}, There: []NIC{}, Checks: []Check{},
		Host: doctor.Check(os.DirFS("/"), doctor.Config{})}
}

// describe describes NICs.
func describe(devices []verbs.Device) ([]NIC, error) {
	list, errs := []NIC{}, []error(nil)
	for _, d := range devices {
		info, err := verbs.Describe(d)
		errs = append(errs, err)
		driver, _ := os.Readlink(
			filepath.Join("/sys/class/infiniband", filepath.Base(d.Name()), "device/driver"))
		if driver != "" {
			driver = filepath.Base(driver)
		}
		list = append(list, NIC{DeviceInfo: info, Driver: driver})
	}
	return list, errors.Join(errs...)
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people: a page.
func (r *Report) WriteText(w io.Writer) error {
	cells := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(cells, "ibverbx selftest of %s, Linux %s, %s\n\n", r.At.Format(time.DateTime),
		line(r.Kernel), r.Go) // Flush reports errors
	for k, list := range [][]NIC{r.Here, r.There} {
		for i := range list {
			where, n := [...]string{"here", "there"}[k], &list[i]
			port := "no port"
			if len(n.Ports) != 0 {
				p := &n.Ports[0]
				port = fmt.Sprintf("%s %s, %.4g Gbit/s, MTU %d", p.LinkLayer, p.State, float64(p.Speed)/1e9,
					p.ActiveMTU)
			}
			_, _ = fmt.Fprintf(
				cells,
				"%s\t%s\t%s\n",
				where,
				line(n.Name),
				line(
					fmt.Sprintf("firmware %s, driver %s, vendor %#x part %d, %s",
						cmp.Or(n.Attr.Firmware, "-"), cmp.Or(n.Driver, "-"), n.Attr.VendorID,
						n.Attr.PartID, port),
				),
			)
		}
	}
	counts := map[Result]int{}
	for _, c := range r.Checks {
		counts[c.Result]++
	}
	_, _ = fmt.Fprintf(cells, "\n%d passed, %d failed, %d unknown\n\n", counts[Pass], counts[Fail],
		counts[Unknown])
	for _, c := range r.Checks {
		_, _ = fmt.Fprintf(cells, "%s\t%s\t%s\n", strings.ToUpper(string(c.Result)), c.Name, line(c.Seen))
	}
	return cells.Flush()
}

// maxSeen is how many characters of what was seen are kept.
const maxSeen = 400

// line makes text from the other end, a driver or a test fit to be shown.
func line(text string) string { return peertext.Line(text, maxSeen) }

// childVariable is set in the environment of the process in which the conformance suite runs.
const childVariable = "IBVERBX_SELFTEST_CONFORMANCE"

// conformance runs the suite in a process of its own.
func conformance(ctx context.Context, cfg Config) Check {
	began := time.Now()
	c := Check{Result: Unknown, Name: "conformance of verbs"}
	self, err := os.Executable()
	if !cfg.Conformance || err != nil {
		c.Seen = "not run" + because(err)
		return c
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.WaitDelay = 5 * time.Second
	tail := &lastLine{}
	cmd.Stderr = tail
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.Seen = "not run: " + err.Error()
		return c
	}
	c.Result, c.Seen = verdict(out)
	switch err := cmd.Wait(); {
	case ctx.Err() != nil:
		c.Result, c.Seen = Unknown, c.Seen+"; then the time was over"
	case err != nil && c.Result == Pass:
		c.Result, c.Seen = Fail, fmt.Sprintf("the suite has ended: %v: %s", err, tail.text)
	}
	c.Seconds = time.Since(began).Seconds()
	return c
}

// lastLine keeps the last line that is written to it.
type lastLine struct{ text string }

func (l *lastLine) Write(p []byte) (int, error) {
	if lines := strings.Split(strings.TrimSpace(string(p)), "\n"); lines[len(lines)-1] != "" {
		l.text = line(lines[len(lines)-1])
	}
	return len(p), nil
}

// outcomes match what package testing writes of a test: its indentation, outcome and name.
var outcomes = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): conformance/(\S+)`)

// verdict reads what the suite writes.
func verdict(out io.Reader) (Result, string) {
	counts, failed := map[string]int{}, []string(nil)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := outcomes.FindStringSubmatch(lines.Text()); m != nil {
			counts[m[1]]++
			if m[1] == "FAIL" {
				failed = append(failed, m[2])
			}
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line was too long: let the process go on
	seen := fmt.Sprintf("%d subtests passed, %d skipped", counts["PASS"], counts["SKIP"])
	switch {
	case len(failed) != 0:
		failed = slices.DeleteFunc(failed, func(outer string) bool { // its subtests say more
			return slices.ContainsFunc(failed, func(f string) bool { return strings.HasPrefix(f, outer+"/") })
		})
		return Fail, fmt.Sprintf("%s, %d failed: %s", seen, len(failed), strings.Join(failed, ", "))
	case counts["PASS"] == 0:
		return Unknown, "no subtest has run"
	}
	return Pass, seen
}

// conformanceChild runs the suite in this process, as go test would, and ends it.
func conformanceChild(cfg Config) {
	os.Args = []string{os.Args[0], "-test.v", "-test.parallel=16"} // where package testing reads its flags
	suite := testing.InternalTest{Name: "conformance", F: func(t *testing.T) {
		verbstest.Run(t, verbstest.Env{
			GIDIndexOf: func(d verbs.Device) int {
				attr, _ := d.QueryPort(d.DefaultPort())
				conn := ibverbx.ConnConfig{}
				g, _ := conn.GID(d, attr)
				return g.Index
			},
			Open: func(t *testing.T) (a, b verbs.Device) {
				host, err := open(cfg.NICs)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := host.Close(); err != nil {
						t.Error(err)
					}
				})
				devices, err := host.Devices()
				if err != nil || len(devices) == 0 {
					t.Fatalf("no NIC: %v", err)
				}
				return devices[0], devices[len(devices)/2]
			}})
	}}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{suite},
		nil, nil)
}
