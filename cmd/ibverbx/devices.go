package main

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/alecthomas/kong"

	"ibverbx/debug"
	"ibverbx/internal/units"
	"ibverbx/nics"
	"ibverbx/nics/doctor"
	"ibverbx/nics/selftest"
	"ibverbx/verbs"
)

// examFlags say whose NICs are examined.
type examFlags struct {
	Host   connectFlag `arg:"" optional:""`
	Listen listenFlag  `placeholder:"[ADDR]"`
	nicFlags
	JSON bool `name:"json"`
}

// oneEnd refuses a host to call together with a wait for calls.
func (f *examFlags) oneEnd() error {
	if f.Host != "" && f.Listen.given {
		return usage("HOST and --listen: one end listens, and the other gives its address")
	}
	return nil
}

type doctorCmd struct {
	examFlags
	Memory   units.Size
	NeedRDMA bool   `name:"need-rdma"`
	Root     string `default:"/" hidden:""`
}

// Run checks this host.
func (f *doctorCmd) Run(c *console) error {
	if err := f.oneEnd(); err != nil {
		return err
	}
	if f.Listen.given {
		return doctor.Serve(c.ctx, f.Listen.address, f.config(f.Provider), c.complain)
	}
	if _, err := os.ReadDir(f.Root); err != nil {
		return usage("--root: %v", err)
	}
	r := doctor.Check(os.DirFS(f.Root), doctor.Config{Memory: uint64(f.Memory), NeedRDMA: f.NeedRDMA})
	if f.Host != "" {
		r.Visit(c.ctx, string(f.Host), f.config(f.Provider))
	}
	return c.report(r.WriteText, r.WriteJSON, f.JSON, r.Failed())
}

// report writes a report, which says why its exit code is what it is.
func (c *console) report(text, json func(io.Writer) error, asJSON, failed bool) error {
	if err := map[bool]func(io.Writer) error{false: text, true: json}[asJSON](c.out); err != nil || !failed {
		return err
	}
	return &exitError{code: exitFailed}
}

type selftestCmd struct {
	examFlags
	Probe       time.Duration `default:"2s" range:"1ms..10s"`
	Conformance bool          `default:"true" negatable:""`
}

// Run tries NICs.
func (f *selftestCmd) Run(c *console) error {
	if err := f.oneEnd(); err != nil {
		return err
	}
	cfg := selftest.Config{NICs: f.config(f.Provider), Probe: f.Probe, Conformance: f.Conformance}
	if f.Listen.given {
		return selftest.Serve(c.ctx, f.Listen.address, cfg, c.complain)
	}
	r, err := selftest.Run(c.ctx, string(f.Host), cfg)
	if r == nil {
		return interruptedOr(c, err)
	}
	return errors.Join(interruptedOr(c, err), c.report(r.WriteText, r.WriteJSON, f.JSON, r.Failed()))
}

type topCmd struct {
	Targets  []string      `arg:"" optional:"" placeholder:"PID|ADDR"`
	Interval time.Duration `short:"i" default:"1s" range:"10ms.."`
	Looks    int           `short:"n" range:"0.."`
	JSON     bool          `name:"json"`
}

// Run shows what programs do.
func (f *topCmd) Run(c *console) error {
	for _, target := range f.Targets {
		_, pid := strconv.ParseUint(target, 10, 32)
		if _, _, err := net.SplitHostPort(target); err != nil && pid != nil {
			return usage("%q: neither the number of a process nor HOST:PORT", target)
		}
	}
	cfg := debug.TopConfig{Interval: f.Interval, Looks: f.Looks, JSON: f.JSON}
	return debug.Top(c.ctx, c.out, f.Targets, cfg)
}

type devicesCmd struct {
	Provider string `predictor:"provider"`
	Device   string `short:"d" placeholder:"LIST"`
	Library  string `placeholder:"PATH" predictor:"file"`
	NICs     int    `name:"nics" range:"1..64"`
	JSON     bool   `name:"json"`
}

// deviceList is the document of --json.
type deviceList struct {
	Provider string       `json:"provider"`
	Note     string       `json:"note,omitempty"` // why this provider, if none was named
	Devices  []deviceInfo `json:"devices"`
	Reason   string       `json:"reason,omitempty"` // why there are none, or not all
}

// deviceInfo is a device and what drives it.
type deviceInfo struct {
	verbs.DeviceInfo
	Provider string `json:"provider"`
}

// Run lists the devices.
func (f *devicesCmd) Run(c *console, k *kong.Context) error {
	from := nicFlags{Provider: f.Provider, Device: f.Device, Library: f.Library}
	provider := from.asked()
	if err := from.check(provider); err != nil {
		return err
	}
	if given(k, "nics") && provider != softNICs {
		return usage("--nics is a number of software NICs: use --provider soft")
	}
	if err := checkGiven(k); err != nil {
		return err
	}
	cfg := from.config(provider)
	cfg.Soft.Devices = cmp.Or(f.NICs, 4)
	doc := deviceList{Provider: provider}
	list, err := listDevices(cfg)
	if err != nil && len(list) == 0 && f.Provider == "" {
		cfg.Provider = "" // chooses roce if the host has no NIC
		var host *nics.Host
		if host, err = openNICs(cfg); err == nil {
			err = host.Close()
			if host.Instead() != nil {
				doc.Provider, doc.Note = roceNICs, host.Note()
				c.complain("ibverbx: %s\n", doc.Note)
				cfg.Provider = roceNICs
				list, err = listDevices(cfg)
			}
		}
	}
	doc.Devices = list
	out := printer{w: c.out}
	switch {
	case f.JSON:
		if err != nil {
			doc.Reason = err.Error()
		}
		return errors.Join(err, writeJSON(c.out, doc))
	case len(list) > 0:
		out.columns(0, func(cells *printer) { cells.err = deviceTable.Execute(cells.w, list) })
	}
	return errors.Join(err, out.err)
}

// listDevices opens NICs and queries them. With an error it returns the partial result.
func listDevices(cfg nics.Config) ([]deviceInfo, error) {
	list := []deviceInfo{}
	host, err := openNICs(cfg)
	if err != nil {
		return list, err
	}
	devices, err := host.Devices()
	errs := []error{err, host.Unopened()}
	for _, d := range devices {
		info, err := verbs.Describe(d)
		errs = append(errs, err)
		if info.Name != "" {
			list = append(list, deviceInfo{info, host.Name()})
		}
	}
	return list, errors.Join(append(errs, host.Close())...)
}

// deviceTable has a line for each GID. Its cells end in bars.
var deviceTable = template.Must(template.New("").Funcs(template.FuncMap{
	"speed": func(bits uint64) string { // software NICs without one are as fast as memory
		if bits == 0 {
			return "-"
		}
		return units.Rate(bits / 8).String()
	},
	"dash": func(name string) string { return cmp.Or(name, "-") },
}).Parse(strings.ReplaceAll(deviceLines, "|", "\t")))

const deviceLines = `DEVICE|PORT|STATE|LINK|MTU|SPEED|INDEX|TYPE|NETDEV|GID
{{range $d := .}}{{range .Ports -}}
{{$d.Name}}|{{.Port}}|{{.State}}|{{.LinkLayer}}|{{.ActiveMTU}}|{{speed .Speed}}
{{- range $i, $g := .GIDs}}{{if $i}}|||||{{end}}|{{.Index}}|{{.Type}}|{{dash .NetDev}}|{{.GID}}
{{else}}||||
{{end}}{{else}}{{.Name}}|-||||||||
{{end}}{{end}}`
