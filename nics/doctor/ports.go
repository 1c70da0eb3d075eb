package doctor

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

const (
	classDir = "sys/class/infiniband"
	verbsDir = "sys/class/infiniband_verbs"
	netDir   = "sys/class/net"
)

// device checks a device and its ports, and reports whether a port can be used.
func (x *exam) device(name string) (usable bool) {
	dir := path.Join(classDir, name)
	ports := x.names(path.Join(dir, "ports"))
	best := uint64(0)
	for _, text := range ports {
		port, err := strconv.Atoi(text)
		if err != nil || port < 1 || port > 255 {
			continue
		}
		up, gbits := x.port(name, port)
		usable = usable || up
		best = max(best, gbits)
	}
	if len(ports) == 0 {
		x.add(Finding{Status: Unknown, Check: "port", On: name, Seen: "the device shows no port",
			From: "/" + path.Join(dir, "ports")})
	}
	x.pcie(name, best)
	x.relaxedOrdering(name)
	if node, ok := x.read(path.Join(dir, "device/numa_node")); ok && node != "-1" {
		x.add(Finding{Status: OK, Check: "numa", On: name, Seen: "node " + node +
			": run the program there (numactl -N " + line(node) + ")"})
	}
	return usable
}

// portStates are the states as the kernel writes them.
//
//nolint:gochecknoglobals // a constant list
var portStates = []string{"0: NOP", "1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"}

// port checks a port, and reports whether it can be used, and its speed in Gbit/s.
func (x *exam) port(name string, port int) (usable bool, gbits uint64) {
	dir := path.Join(classDir, name, "ports", strconv.Itoa(port))
	on := fmt.Sprintf("%s port %d", name, port)
	state, ok := x.read(path.Join(dir, "state"))
	number, word, _ := strings.Cut(state, ": ")
	link, _ := x.read(path.Join(dir, "link_layer"))
	rate, _ := x.read(path.Join(dir, "rate"))
	gbits = gigabits(rate)
	f := Finding{Check: "port", On: on, From: "/" + path.Join(dir, "state"), Seen: word}
	known := slices.Contains(portStates, state)
	active := known && number == strconv.Itoa(int(verbs.PortActive))
	switch {
	case !ok:
		f.Status, f.Seen = Unknown, "its state cannot be read"
	case !known:
		f.Status, f.Seen = Unknown, "a state that no kernel reports: "+state
	case active:
		f.Status, f.Seen, f.From = OK, fmt.Sprintf("%s, %s, %s", word, link, rate), ""
	case link == "InfiniBand" && number == strconv.Itoa(int(verbs.PortInit)):
		f.Status, f.Mend = Fail, "start a subnet manager on the fabric (opensm), or ask who runs it"
		f.Seen += ": the cable is in, and no subnet manager has made the port active"
	case link == "InfiniBand":
		f.Status, f.Seen, f.Mend = Fail, f.Seen+": no link", "check the cable and the switch's port"
	default:
		f.Status, f.Mend = Fail, "ip link set dev "+x.netdev(name, port)+" up, and check the cable"
		f.Seen += ": the interface behind it is down"
	}
	x.add(f)
	if !active {
		return false, gbits
	}
	// Ethernet reports a single lane of 10 or 25 Gbit/s so too, and HDR100 has two.
	narrow := strings.Contains(rate, "(1X") || strings.Contains(rate, "(2X") &&
		!strings.Contains(rate, "HDR") && !strings.Contains(rate, "NDR")
	if link == "InfiniBand" && !software(name) && narrow {
		x.add(Finding{Status: Warn, Check: "link width", On: on, Seen: rate + ": links have four lanes",
			From: "/" + path.Join(dir, "rate"), Mend: "reseat or replace the cable"})
	}
	if link == "Ethernet" {
		usable = x.gid(name, port, on)
	} else {
		usable = true
	}
	x.counters(dir, on)
	return usable, gbits
}

// software reports whether a device is software of the kernel, by the names that devices are given.
func software(name string) bool {
	return strings.HasPrefix(name, "rxe") || strings.HasPrefix(name, "siw")
}

// gigabits reads a rate such as "100 Gb/sec (4X EDR)"; 0 if it is none.
func gigabits(rate string) uint64 {
	n, _, _ := strings.Cut(rate, " ")
	n, _, _ = strings.Cut(n, ".")
	v, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		return 0
	}
	return v
}

// netdev returns the network interface behind a port, as far as it is known.
func (x *exam) netdev(name string, port int) string {
	dir := path.Join(classDir, name, "ports", strconv.Itoa(port), "gid_attrs/ndevs")
	for _, i := range x.names(dir) {
		if dev, ok := x.read(path.Join(dir, i)); ok && dev != "" {
			return line(dev)
		}
	}
	if all := x.names(path.Join(classDir, name, "device/net")); len(all) != 0 {
		return line(all[0])
	}
	return "IFACE"
}

// gid checks which GID a connection over an Ethernet port takes, and the interface behind it. It
// reports whether there is one.
func (x *exam) gid(name string, port int, on string) bool {
	dev := &treeDevice{tree: x.tree, name: name, port: port}
	conn := ibverbx.ConnConfig{}
	g, err := conn.GID(dev, verbs.PortAttr{GIDTableLen: dev.gids(), LinkLayer: verbs.LinkLayerEthernet})
	f := Finding{Check: "gid", On: on, From: "/" + path.Join(dev.dir(), "gids")}
	address := "ip addr add ADDRESS/PREFIX dev " + x.netdev(name, port)
	switch {
	case err != nil:
		f.Status, f.Seen, f.Mend = Fail, "the port has none: its interface has no address", address
	case g.Type != verbs.GIDTypeRoCEv2:
		f.Status, f.Mend = Warn, address
		f.Seen = fmt.Sprintf("index %d: %v, of type %v: no router forwards it", g.Index, g.GID, g.Type)
	case g.GID.IsLinkLocal():
		f.Status, f.Seen = Warn, fmt.Sprintf("index %d: %v: it is link-local: no router forwards it", g.Index,
			g.GID)
		f.Mend = address
	default:
		f.Status, f.From = OK, ""
		f.Seen = fmt.Sprintf("index %d: %v, %v, of %s", g.Index, g.GID, g.Type, g.NetDev)
	}
	x.add(f)
	if g.NetDev != "" {
		x.mtu(on, g.NetDev)
		x.flowControl(name, port, on, g.NetDev)
	}
	return err == nil
}

// roceHeaders is what the kernel keeps for the headers of a RoCE packet when it derives the MTU of
// a port from that of its interface.
const roceHeaders = 96

// mtu checks the MTU of the interface behind a port, from which the port has its own.
func (x *exam) mtu(on, netdev string) {
	file := path.Join(netDir, netdev, "mtu")
	n, ok := x.number(file)
	if !ok {
		return
	}
	f := Finding{Status: OK, Check: "mtu", On: on, Seen: fmt.Sprintf("%d at %s", n, netdev)}
	const most = 4096
	carries := uint64(most)
	for carries > 256 && carries+roceHeaders > n {
		carries /= 2
	}
	if carries < most {
		f.Status, f.From = Warn, "/"+file
		f.Seen += fmt.Sprintf(": RoCE packets carry %d bytes, of %d that they can", carries, most)
		f.Mend = "ip link set dev " + line(netdev) + " mtu 9000, if all switches and hosts have it too"
	}
	x.add(f)
}

// treeDevice is a device of a tree, as far as the choice of a GID needs it.
type treeDevice struct {
	verbs.Device
	tree tree
	name string
	port int
}

func (d *treeDevice) Name() string     { return d.name }
func (d *treeDevice) DefaultPort() int { return d.port }

func (d *treeDevice) dir() string {
	return path.Join(classDir, d.name, "ports", strconv.Itoa(d.port))
}

// maxGID is the largest index that a work request can name.
const maxGID = 255

// gids returns the length of the table: one more than the largest index that has a file.
func (d *treeDevice) gids() (n int) {
	for _, name := range d.tree.names(path.Join(d.dir(), "gids")) {
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i <= maxGID {
			n = max(n, i+1)
		}
	}
	return n
}

// QueryGID reads an entry.
func (d *treeDevice) QueryGID(_, index int) (verbs.GIDEntry, error) {
	e := verbs.GIDEntry{Index: index}
	text, _ := d.tree.read(path.Join(d.dir(), "gids", strconv.Itoa(index)))
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is6() {
		return e, nil // a hole
	}
	e.GID = addr.As16()
	kind, _ := d.tree.read(path.Join(d.dir(), "gid_attrs/types", strconv.Itoa(index)))
	switch kind {
	case "RoCE v2":
		e.Type = verbs.GIDTypeRoCEv2
	case "IB/RoCE v1":
		e.Type = verbs.GIDTypeRoCEv1
	}
	e.NetDev, _ = d.tree.read(path.Join(d.dir(), "gid_attrs/ndevs", strconv.Itoa(index)))
	if !fsName(e.NetDev) {
		e.NetDev = ""
	}
	return e, nil
}

// fsName reports whether a text can be the name of a file in a directory.
func fsName(text string) bool {
	return text != "" && text != "." && text != ".." && !strings.ContainsAny(text, "/\x00\n")
}

// troubles are counters that stay 0 on a healthy fabric. Those of congestion are shown, too: they
// explain a low speed.
//
//nolint:gochecknoglobals // a constant list
var troubles = []string{"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
	"roce_adp_retrans", "np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets"}

// counters shows what a port's counters say of what it had to repair, since they were reset.
func (x *exam) counters(dir, on string) {
	var seen []string
	for _, name := range troubles {
		if n, ok := x.number(path.Join(dir, "hw_counters", name)); ok && n != 0 {
			seen = append(seen, fmt.Sprintf("%s %d", name, n))
		}
	}
	for _, name := range []string{"symbol_error", "link_error_recovery", "link_downed"} {
		if n, ok := x.number(path.Join(dir, "counters", name)); ok && n != 0 {
			seen = append(seen, fmt.Sprintf("%s %d", name, n))
		}
	}
	if len(seen) != 0 {
		slices.Sort(seen)
		x.add(Finding{Status: Unknown, Check: "errors", On: on, From: "/" + path.Join(dir, "hw_counters"),
			Seen: strings.Join(seen, ", ") + ", ever: look again after a slow job whether they grow"})
	}
}

// pcieGigabits is what a lane carries, in Gbit/s, by its speed in GT/s: 8b/10b and 128b/130b
// coding.
//
//nolint:gochecknoglobals // a constant
var pcieGigabits = map[string]float64{"2.5": 2, "5": 4, "5.0": 4, "8": 7.87, "8.0": 7.87, "16": 15.75,
	"16.0": 15.75, "32": 31.5, "32.0": 31.5, "64": 63, "64.0": 63}

// pcie checks whether the slot gives a device the lanes and the speed that it can use, and whether
// that suffices for the fastest of its ports.
func (x *exam) pcie(name string, gbits uint64) {
	dir := path.Join(classDir, name, "device")
	width, ok := x.number(path.Join(dir, "current_link_width"))
	most, has := x.number(path.Join(dir, "max_link_width"))
	speed, _ := x.read(path.Join(dir, "current_link_speed"))
	fastest, _ := x.read(path.Join(dir, "max_link_speed"))
	if !ok || !has || width == 0 || most == 0 {
		return // a software device, or one of a virtual machine
	}
	per := func(speed string) float64 {
		word, _, _ := strings.Cut(speed, " ")
		return pcieGigabits[word]
	}
	f := Finding{Status: OK, Check: "pcie", On: name, Seen: fmt.Sprintf("x%d at %s", width, speed)}
	carries := float64(width) * per(speed)
	switch {
	case carries != 0 && carries < float64(gbits):
		f.Status = Warn
		f.Seen += fmt.Sprintf(": %.0f Gbit/s, less than the port's %d", carries, gbits)
	case width < most || per(speed) < per(fastest):
		f.Status = Warn
		f.Seen += fmt.Sprintf(", of x%d at %s that the device can do", most, fastest)
	}
	if f.Status == Warn {
		f.From = "/" + path.Join(dir, "current_link_width")
		f.Mend = "move the NIC to a wider slot, or reseat it"
	}
	x.add(f)
}
