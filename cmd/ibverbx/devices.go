package main

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/nics"
	"ibverbx/verbs"
)

type devicesCmd struct {
	Provider string `placeholder:"NAME" predictor:"provider"`
	Device   string `short:"d" placeholder:"LIST"`
	Library  string `placeholder:"PATH" predictor:"file"`
	NICs     *int   `name:"nics" placeholder:"N"`
	JSON     bool   `name:"json"`
	Verbose  bool   `short:"v"`
}

// Help is shown below the flags.
func (devicesCmd) Help() string {
	return `Examples:
  ibverbx devices                    the host's NICs, their ports and GIDs
  ibverbx devices -v -d mlx5_0       all that one of them can
  ibverbx devices --provider roce    the addresses that can be NICs made of UDP sockets
  ibverbx devices --provider soft    the software NICs that are built in

Where the host has no RDMA NIC and no flag asks for one, those of roce are listed, and stderr says so.

The exit code is 0 when all NICs were listed. Where there is none, or not all could be opened or asked, it is
1, and the reason is on stderr; with --json the document has the reason too.`
}

// deviceList is what --json writes.
type deviceList struct {
	Provider string       `json:"provider"`
	Note     string       `json:"note,omitempty"` // why this provider, where none was named
	Devices  []deviceInfo `json:"devices"`
	Reason   string       `json:"reason,omitempty"` // why there are none, or not all
}

// deviceInfo is a device with its ports.
type deviceInfo struct {
	Name     string           `json:"name"`
	ID       verbs.DeviceID   `json:"id"`
	Provider string           `json:"provider"`
	Attr     verbs.DeviceAttr `json:"attributes"`
	Ports    []portInfo       `json:"ports"`
}

// portInfo is a port with its GIDs, in words.
type portInfo struct {
	Port       int       `json:"port"`
	State      string    `json:"state"`
	LinkLayer  string    `json:"link_layer"`
	ActiveMTU  int       `json:"active_mtu"`
	MaxMTU     int       `json:"max_mtu"`
	Speed      uint64    `json:"bits_per_second"` // 0 when unknown or unlimited
	MaxMsgSize uint32    `json:"max_message_bytes"`
	LID        uint16    `json:"lid"`
	GIDs       []gidInfo `json:"gids"`
}

type gidInfo struct {
	Index  int       `json:"index"`
	GID    verbs.GID `json:"gid"`
	Type   string    `json:"type"`
	NetDev string    `json:"netdev,omitempty"`
}

// Run lists the devices.
func (f *devicesCmd) Run(c *console) error {
	from := nicFlags{Provider: f.Provider, Device: f.Device, Library: f.Library}
	name, count := from.asked(), 4
	if err := checkNICFlags(name, f.Device, f.Library); err != nil {
		return err
	}
	switch {
	case f.NICs == nil:
	case name != softNICs:
		return &bench.UsageError{Reason: "--nics is a number of software NICs: use --provider soft"}
	case *f.NICs < 1 || *f.NICs > verbs.MaxDevices:
		return &bench.UsageError{Reason: fmt.Sprintf("--nics %d: must be 1 to %d", *f.NICs, verbs.MaxDevices)}
	default:
		count = *f.NICs
	}
	note := ""
	list, failed := f.list(from.configHere(name, count, ibverbx.ConnConfig{}))
	if failed != nil && len(list) == 0 && f.Provider == "" {
		if host, err := openNICs(from.config("", ibverbx.ConnConfig{})); err != nil {
			failed = err
		} else if failed = host.Close(); failed == nil && host.Instead() != nil {
			name, note = roceNICs, noteOf(host)
			c.complain("ibverbx: %s\n", note)
			list, failed = f.list(from.config(roceNICs, ibverbx.ConnConfig{}))
		}
	}
	var err error
	switch {
	case f.JSON:
		doc := deviceList{Provider: name, Note: note, Devices: list}
		if failed != nil {
			doc.Reason = failed.Error()
		}
		err = writeJSON(c.out, doc)
	case len(list) == 0:
	case f.Verbose:
		err = writeAttributes(c, list)
	default:
		err = writeDevices(c, list)
	}
	return errors.Join(failed, err)
}

// list opens NICs and queries them. With an error it returns what could be queried.
func (f *devicesCmd) list(cfg nics.Config) ([]deviceInfo, error) {
	list := []deviceInfo{}
	if cfg.Provider == roceNICs {
		cfg.RoCE.Addresses = nil // all that there can be
	}
	host, err := openNICs(cfg)
	if err != nil {
		return list, err
	}
	devices, err := host.Devices()
	errs := []error{err, host.Unopened()}
	for _, d := range devices {
		info, err := inspect(host.Name(), d)
		errs = append(errs, err)
		if info.Name != "" {
			list = append(list, info)
		}
	}
	return list, errors.Join(append(errs, host.Close())...)
}

// inspect queries everything about a device. With an error it returns what could be queried:
// nothing of a device that cannot be queried at all.
func inspect(provider string, d verbs.Device) (deviceInfo, error) {
	attr, err := d.Query()
	if err != nil {
		return deviceInfo{}, err
	}
	info := deviceInfo{Name: d.Name(), ID: d.ID(), Provider: provider, Attr: attr, Ports: []portInfo{}}
	var errs []error
	for n := 1; n <= attr.Ports; n++ {
		port, err := inspectPort(d, n)
		errs = append(errs, err)
		if port.Port != 0 {
			info.Ports = append(info.Ports, port)
		}
	}
	return info, errors.Join(errs...)
}

// inspectPort queries a port of a device, likewise.
func inspectPort(d verbs.Device, n int) (portInfo, error) {
	attr, err := d.QueryPort(n)
	if err != nil {
		return portInfo{}, err
	}
	port := portInfo{
		Port: n, State: attr.State.String(), LinkLayer: attr.LinkLayer.String(),
		ActiveMTU: attr.ActiveMTU.Bytes(),
		MaxMTU:    attr.MaxMTU.Bytes(), Speed: attr.Speed, MaxMsgSize: attr.MaxMsgSize, LID: attr.LID,
		GIDs: []gidInfo{},
	}
	var failed error // the first: a table may have hundreds of entries
	for i := range attr.GIDTableLen {
		g, err := d.QueryGID(n, i)
		switch {
		case err != nil && failed == nil:
			failed = err
		case err == nil && !g.GID.IsZero(): // tables have holes
			port.GIDs = append(port.GIDs, gidInfo{Index: g.Index, GID: g.GID, Type: g.Type.String(),
				NetDev: g.NetDev})
		}
	}
	return port, failed
}

// writeDevices writes a line for each GID.
func writeDevices(c *console, list []deviceInfo) error {
	out := printer{w: c.out}
	out.columns(0, func(w *printer) {
		w.printf("DEVICE\tPORT\tSTATE\tLINK\tMTU\tSPEED\tINDEX\tTYPE\tNETDEV\tGID\n")
		for i := range list {
			d := &list[i]
			if len(d.Ports) == 0 {
				w.printf("%s\t-\t\t\t\t\t\t\t\t\n", d.Name)
			}
			for _, port := range d.Ports {
				line := fmt.Sprintf("%s\t%d\t%s\t%s\t%d\t%s", d.Name, port.Port, port.State, port.LinkLayer,
					port.ActiveMTU, speedOf(port.Speed))
				if len(port.GIDs) == 0 {
					w.printf("%s\t\t\t\t\n", line)
				}
				for _, g := range port.GIDs {
					w.printf("%s\t%d\t%s\t%s\t%v\n", line, g.Index, g.Type, orDash(g.NetDev), g.GID)
					line = "\t\t\t\t\t" // stands once
				}
			}
		}
	})
	return out.err
}

// writeAttributes writes everything, in the way of ibv_devinfo.
func writeAttributes(c *console, list []deviceInfo) error {
	out := printer{w: c.out}
	out.columns(0, func(w *printer) {
		for i := range list {
			d, a := &list[i], &list[i].Attr
			if i > 0 {
				w.printf("\n")
			}
			w.printf("%s\n", d.Name)
			for _, row := range []struct {
				name  string
				value any
			}{
				{"provider", d.Provider}, {"device id", d.ID}, {"firmware", a.Firmware},
				{"node GUID", fmt.Sprintf("%016x", a.NodeGUID)},
				{"vendor id", fmt.Sprintf("%#06x", a.VendorID)}, {"part id", a.PartID},
				{"hardware version", a.HWVersion},
				{"ports", a.Ports}, {"max QPs", a.MaxQP}, {"max work requests a QP", a.MaxQPWR},
				{"max scatter-gather elements", a.MaxSGE},
				{"max CQs", a.MaxCQ}, {"max CQ entries", a.MaxCQE}, {"max regions", a.MaxMR},
				{"max region bytes", a.MaxMRSize},
				{"max PDs", a.MaxPD}, {"max reads and atomics a QP", a.MaxRDAtomic},
				{"max inline bytes", a.MaxInline},
			} {
				w.printf("  %s\t%v\n", row.name, row.value)
			}
			for _, port := range d.Ports {
				w.printf("  port %d\t\n", port.Port)
				w.printf("    state\t%s\n    link layer\t%s\n    active MTU\t%d\n    max MTU\t%d\n    "+
					"speed\t%s\n    max message bytes\t%d\n    LID\t%d\n",
					port.State, port.LinkLayer, port.ActiveMTU, port.MaxMTU, speedOf(port.Speed),
					port.MaxMsgSize, port.LID)
				for _, g := range port.GIDs {
					w.printf("    GID %d\t%v (%s, %s)\n", g.Index, g.GID, g.Type, orDash(g.NetDev))
				}
			}
		}
	})
	return out.err
}

// orDash stands in for a name that is not known.
func orDash(name string) string {
	if name == "" {
		return "-"
	}
	return name
}

// speedOf writes a port's speed; software NICs without one are as fast as memory.
func speedOf(bits uint64) string {
	if bits == 0 {
		return "-"
	}
	return units.Rate(bits / 8).String()
}
