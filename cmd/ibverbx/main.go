// Command ibverbx measures and shows RDMA devices, and starts jobs of several processes.
//
//	ibverbx perf      bandwidth, latency, message rate of virtual queue pairs and the layers above
//	ibverbx compare   what has changed between two results of perf
//	ibverbx perftest  a measurement whose other end is a tool of perftest, such as ib_write_bw
//	ibverbx devices   the devices, their ports and GIDs
//	ibverbx doctor    whether this host can use RDMA, and if not what is missing
//	ibverbx selftest  whether the NICs do what this module needs: a report
//	ibverbx top       what programs do now: peers and rails, what is sick first
//	ibverbx run       N processes of a job on this host
//	ibverbx serve     a directory that ibverbx cp copies to and from
//	ibverbx cp        files to and from such a directory
//
// Without real NICs everything runs over software NICs in this process, so "ibverbx perf" works
// anywhere. With --listen and --connect it measures between two processes: over shared memory, real
// NICs or, if the host has none, UDP sockets. The exit code is 0 when all went well, 1 when
// something failed, 2 when the flags make no sense, and 130 after Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/perftest"
	"ibverbx/internal/peertext"
)

// Exit codes, from 126 on those of shells.
const (
	exitOK            = 0
	exitFailed        = 1
	exitUsage         = 2
	exitNotExecutable = 126
	exitMissing       = 127      // there is no such program
	exitInterrupted   = 130      // by Ctrl-C
	exitBroken        = 128 + 13 // the reader of the output has gone
)

// cli is the commands and their flags.
type cli struct {
	Perf       perfCmd                   `cmd:"" help:"Measure between two ends, in one process or in two."`
	Compare    compareCmd                `cmd:"" help:"Compare two results of perf --json."`
	Perftest   perftestCmd               `cmd:"" help:"Measure against a tool of perftest: ib_write_bw ..."`
	Devices    devicesCmd                `cmd:"" help:"List the devices, their ports and GIDs."`
	Doctor     doctorCmd                 `cmd:"" help:"Check whether this host can use RDMA, and what is missing."`
	Selftest   selftestCmd               `cmd:"" help:"Try the NICs of this host, or of two, and report."`
	Top        topCmd                    `cmd:"" help:"Show what programs do now, what is sick first."`
	Run        runCmd                    `cmd:"" help:"Start N processes of a job on this host."`
	Serve      serveCmd                  `cmd:"" help:"Serve a directory to ibverbx cp."`
	Cp         cpCmd                     `cmd:"" help:"Copy files to or from a directory that is served."`
	Help       helpCmd                   `cmd:"" help:"Show the help of a command."`
	Completion kongcompletion.Completion `cmd:"" help:"Print what makes a shell complete flags and values."`

	Version versionFlag `short:"V" help:"Print the version."`
}

// helpCmd is --help as a command.
type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command."`
}

// versionFlag is kong's, which does not notice that nobody gets the version.
type versionFlag bool

// BeforeReset prints the version, what it was built with and for, and ends the command.
func (versionFlag) BeforeReset(k *kong.Kong) error {
	_, err := fmt.Fprintln(k.Stdout, "ibverbx", version(), runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	if err == nil {
		k.Exit(exitOK)
	}
	return err
}

// console has a command's output, and the context that ends it.
type console struct {
	ctx context.Context // ends with Ctrl-C
	out io.Writer
	err io.Writer

	mu sync.Mutex // one line after another
}

// complain writes to stderr. If that fails, only the exit code shows the error. Control characters
// in text from elsewhere must not reach the terminal.
func (c *console) complain(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = io.WriteString(c.err, harmless(fmt.Sprintf(format, args...)))
}

// harmless returns a text without control characters other than line ends.
func harmless(text string) string { return peertext.Excerpt(text, len(text)) }

// habits are flags of perftest that change nothing here.
type habits struct {
	CPUFreq    bool   `name:"CPU-freq" short:"F" hidden:""` // perftest warns of a clock that changes
	NoPeak     bool   `name:"noPeak" short:"N" hidden:""`   // there is no peak figure
	Connection string `name:"connection" short:"c" default:"RC" enum:"RC" hidden:""`
}

// usage returns the error of flags that make no sense.
func usage(format string, args ...any) error {
	return &bench.UsageError{Reason: fmt.Sprintf(format, args...)}
}

// reason formats an error for stderr: it indents further lines, and drops the library's prefix,
// which equals the command's name.
func reason(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "ibverbx: "), "\n", "\n  ")
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process
	c := &console{ctx: ctx, out: os.Stdout, err: os.Stderr}
	os.Exit(run(c, os.Args[1:]))
}

// helpShown ends parsing after --help.
type helpShown struct{}

// run is the whole command without its process. It returns the exit code.
func run(c *console, args []string) (code int) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helpShown); !ok {
				panic(r)
			}
			code = exitOK
		}
	}()
	var flags cli
	parser, err := kong.New(&flags,
		kong.Name("ibverbx"),
		kong.Description("RDMA for Go: one reliable connection of many queue pairs. Without NICs it runs "+
			"over software NICs in this process, and two processes share memory or use UDP sockets."),
		kong.Writers(c.out, c.err),
		kong.Exit(func(int) { panic(helpShown{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.ExplicitGroups(groups()),
		kong.PostBuild(describeFlags),
	)
	if err != nil {
		panic(err) // the declarations above are wrong
	}
	// This answers a shell that asks for completions through the environment, and ends the command.
	kongcompletion.Register(parser, kongcompletion.WithPredictors(predictors()))
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help":
		args = append(args[1:], "--help")
	case len(args) > 1 && args[0] == "perf" && args[1] == "compare":
		args = args[1:] // a command that has arguments has no commands below it
	}
	parsed, err := parser.Parse(args)
	switch output := (*fs.PathError)(nil); {
	case errors.As(err, &output): // of --help or --version
		return c.fail(output)
	case err != nil:
		why, command := reason(err), "ibverbx"
		if strings.HasPrefix(why, "unknown flag -") && !strings.HasPrefix(why, "unknown flag --") {
			why, _, _ = strings.Cut(why, ", did you mean") // it would suggest any letter
		}
		for _, kind := range []string{"value", "string"} {
			why = strings.Replace(why, "expected "+kind+` value but got "EOL" (<EOL>)`, "missing value", 1)
		}
		why = instead(args[0], negative.ReplaceAllString(why, "$1 $2: must not be negative"))
		if wrong, ok := errors.AsType[*kong.ParseError](err); ok && wrong.Context.Selected() != nil {
			command = wrong.Context.Selected().FullPath()
		}
		c.complain("ibverbx: %s\nTry %s --help.\n", why, command)
		return exitUsage
	}
	if err := parsed.Run(c); err != nil {
		return c.fail(err)
	}
	return exitOK
}

// fail reports why the command failed, and returns its exit code.
func (c *console) fail(err error) (code int) {
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		code, err = exit.code, exit.why
	case errors.Is(err, bench.ErrInterrupted):
		code = exitInterrupted
	case errors.As(err, new(*bench.UsageError)):
		code = exitUsage
	default:
		code = exitFailed
	}
	if err != nil {
		c.complain("ibverbx: %s\n", reason(err))
	}
	return code
}

// instead returns what to type in place of a command of perftest; otherwise why.
func instead(first, why string) string {
	at := slices.Index(perftest.Kinds(), perftest.Kind(first))
	op, mode, _ := strings.Cut(strings.TrimPrefix(first, "ib_"), "_")
	if op == "atomic" {
		op = string(layers.FetchAdd)
	}
	perf := fmt.Sprintf("\"ibverbx perf --op %s --mode %s\"", op, mode)
	switch {
	case at >= 0:
		return fmt.Sprintf("%s is a test: type \"ibverbx perftest %s\" to meet perftest's tool, or %s to "+
			"meet ibverbx", first, first, perf)
	case op == string(layers.FetchAdd) && slices.Contains(bench.Modes(), bench.Mode(mode)):
		return first + " cannot be met: type " + perf + ", which meets ibverbx"
	}
	return why
}

// negative matches kong's error for a negative number, which kong takes for a flag.
var negative = regexp.MustCompile(`^(--[a-z-]+): expected .* value but got "(-[0-9][^"]*)".*`)

// version is the module's version, which names the commit if the binary knows it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
