package main

import (
	"fmt"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
)

type devicesCmd struct {
	Provider string `default:"soft" help:"Where the NICs come from: soft. [${default}]" placeholder:"NAME"`
	NICs     int    `name:"nics" default:"4" help:"How many software NICs there are. [${default}]" placeholder:"N"`
	JSON     bool   `name:"json" help:"A JSON document in place of the table."`
	Verbose  bool   `short:"v" help:"All attributes."`
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
func (f *devicesCmd) Run(c *console) (err error) {
	if f.NICs < 1 || f.NICs > verbs.MaxDevices {
		return &bench.UsageError{Reason: fmt.Sprintf("--nics %d: must be 1 to %d", f.NICs, verbs.MaxDevices)}
	}
	p, err := openProvider(f.Provider, f.NICs)
	if err != nil {
		return err
	}
	defer func() {
		if closing := p.Close(); err == nil {
			err = closing
		}
	}()
	list, err := inspect(p)
	if err != nil {
		return err
	}
	switch {
	case f.JSON:
		return writeJSON(c.out, list)
	case len(list) == 0:
		_, err = fmt.Fprintf(c.out, "provider %s has no devices\n", p.Name())
		return err
	case f.Verbose:
		return writeAttributes(c, list)
	}
	return writeDevices(c, list)
}

// inspect asks every device for everything.
func inspect(p verbs.Provider) ([]deviceInfo, error) {
	devices, err := p.Devices()
	if err != nil {
		return nil, err
	}
	list := []deviceInfo{}
	for _, d := range devices {
		attr, err := d.Query()
		if err != nil {
			return nil, err
		}
		info := deviceInfo{Name: d.Name(), ID: d.ID(), Provider: p.Name(), Attr: attr, Ports: []portInfo{}}
		for n := 1; n <= attr.Ports; n++ {
			port, err := inspectPort(d, n)
			if err != nil {
				return nil, err
			}
			info.Ports = append(info.Ports, port)
		}
		list = append(list, info)
	}
	return list, nil
}

func inspectPort(d verbs.Device, n int) (portInfo, error) {
	attr, err := d.QueryPort(n)
	if err != nil {
		return portInfo{}, err
	}
	port := portInfo{
		Port: n, State: attr.State.String(), LinkLayer: attr.LinkLayer.String(), ActiveMTU: attr.ActiveMTU.Bytes(),
		MaxMTU: attr.MaxMTU.Bytes(), Speed: attr.Speed, MaxMsgSize: attr.MaxMsgSize, LID: attr.LID, GIDs: []gidInfo{},
	}
	for i := range attr.GIDTableLen {
		g, err := d.QueryGID(n, i)
		if err != nil {
			return portInfo{}, err
		}
		if !g.GID.IsZero() {
			port.GIDs = append(port.GIDs, gidInfo{Index: g.Index, GID: g.GID, Type: g.Type.String(), NetDev: g.NetDev})
		}
	}
	return port, nil
}

// writeDevices writes a line for each GID.
func writeDevices(c *console, list []deviceInfo) error {
	out := printer{w: c.out}
	out.columns(0, func(w *printer) {
		w.printf("DEVICE\tPORT\tSTATE\tLINK\tMTU\tSPEED\tINDEX\tTYPE\tGID\n")
		for i := range list {
			d := &list[i]
			for _, port := range d.Ports {
				line := fmt.Sprintf("%s\t%d\t%s\t%s\t%d\t%s", d.Name, port.Port, port.State, port.LinkLayer, port.ActiveMTU, speedOf(port.Speed))
				if len(port.GIDs) == 0 {
					w.printf("%s\t\t\t\n", line)
				}
				for _, g := range port.GIDs {
					w.printf("%s\t%d\t%s\t%v\n", line, g.Index, g.Type, g.GID)
					line = "\t\t\t\t\t" // said once
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
				{"provider", d.Provider}, {"device id", d.ID}, {"firmware", a.Firmware}, {"node GUID", fmt.Sprintf("%016x", a.NodeGUID)},
				{"vendor id", fmt.Sprintf("%#06x", a.VendorID)}, {"part id", a.PartID}, {"hardware version", a.HWVersion},
				{"ports", a.Ports}, {"max QPs", a.MaxQP}, {"max work requests a QP", a.MaxQPWR}, {"max scatter-gather elements", a.MaxSGE},
				{"max CQs", a.MaxCQ}, {"max CQ entries", a.MaxCQE}, {"max regions", a.MaxMR}, {"max region bytes", a.MaxMRSize},
				{"max PDs", a.MaxPD}, {"max reads and atomics a QP", a.MaxRDAtomic}, {"max inline bytes", a.MaxInline},
			} {
				w.printf("  %s\t%v\n", row.name, row.value)
			}
			for _, port := range d.Ports {
				w.printf("  port %d\t\n", port.Port)
				w.printf("    state\t%s\n    link layer\t%s\n    active MTU\t%d\n    max MTU\t%d\n    speed\t%s\n    max message bytes\t%d\n    LID\t%d\n",
					port.State, port.LinkLayer, port.ActiveMTU, port.MaxMTU, speedOf(port.Speed), port.MaxMsgSize, port.LID)
				for _, g := range port.GIDs {
					w.printf("    GID %d\t%v (%s)\n", g.Index, g.GID, g.Type)
				}
			}
		}
	})
	return out.err
}

// speedOf writes a port's speed; software NICs without one are as fast as memory.
func speedOf(bits uint64) string {
	if bits == 0 {
		return "-"
	}
	return units.Rate(bits / 8).String()
}
