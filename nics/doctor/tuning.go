package doctor

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// flowControl checks what keeps packets from being lost when a switch is full, where the driver has
// files for it: pauses by priority (PFC), marks of congestion (ECN), and where the priority of a
// packet is read.
func (x *exam) flowControl(name string, port int, on, netdev string) {
	dir := path.Join(netDir, netdev)
	pauses, hasPFC := x.read(path.Join(dir, "qos/pfc"))
	answers, hasECN := x.priorities(path.Join(dir, "ecn/roce_np/enable"))
	obeys, _ := x.priorities(path.Join(dir, "ecn/roce_rp/enable"))
	if !hasPFC && !hasECN {
		return
	}
	var paused []string
	for priority, is := range strings.Fields(pauses) {
		if is == "1" {
			paused = append(paused, strconv.Itoa(priority))
		}
	}
	trust, _ := x.read(path.Join(dir, "qos/trust"))
	class, _ := x.read(path.Join(classDir, name, "tc", strconv.Itoa(port), "traffic_class"))
	f := Finding{Status: Warn, Check: "flow control", On: on, From: "/" + path.Join(dir, "qos/pfc")}
	list := func(of []string) string { return strings.Join(of, ", ") }
	switch {
	case len(paused)+len(answers)+len(obeys) == 0:
		f.Seen = "neither PFC nor ECN is on for any priority of " + netdev + ": a full switch drops packets"
		f.Mend = "mlnx_qos -i " + netdev + " --pfc 0,0,0,1,0,0,0,0, and the same on every switch; or ECN"
	case len(answers) != 0 && len(obeys) == 0:
		f.Seen = "ECN marks are answered for priority " + list(answers) + ", and obeyed for none"
		f.From = "/" + path.Join(dir, "ecn/roce_rp/enable")
		f.Mend = "echo 1 > " + f.From + "/" + answers[0]
	case len(obeys) != 0 && len(answers) == 0:
		f.Seen = "ECN marks are obeyed for priority " + list(obeys) + ", and answered for none"
		f.From = "/" + path.Join(dir, "ecn/roce_np/enable")
		f.Mend = "echo 1 > " + f.From + "/" + obeys[0]
	case trust == "pcp" && class != "":
		f.Seen = netdev + " takes priorities from VLAN tags (pcp), and RoCE packets over routers have none"
		f.From = "/" + path.Join(dir, "qos/trust")
		f.Mend = "mlnx_qos -i " + netdev + " --trust dscp"
	default:
		f.Status, f.From = OK, ""
		var on []string
		for kind, of := range map[string][]string{"PFC": paused, "ECN": answers} {
			if len(of) != 0 {
				on = append(on, kind+" for priority "+list(of))
			}
		}
		slices.SortFunc(on, func(a, b string) int { return strings.Compare(b, a) })
		f.Seen = list(on)
		if trust != "" {
			f.Seen += ", by " + trust
		}
	}
	x.add(f)
}

// priorities returns the names of the files in a directory, one for each priority, that hold a 1.
func (x *exam) priorities(dir string) (on []string, ok bool) {
	names := x.names(dir)
	for _, name := range names {
		if text, _ := x.read(path.Join(dir, name)); text == "1" {
			on = append(on, name)
		}
	}
	return on, len(names) != 0
}

// Parts of a PCI device's configuration space (PCI Express Base Specification, 7.5).
const (
	pciHeader       = 64   // what every user may read
	pciCapabilities = 0x34 // where the first capability is
	pciExpress      = 0x10 // the number of PCI Express' capability
	pciDevControl   = 8    // the device's control register, in that
	relaxedBit      = 1 << 4
)

// relaxedOrdering checks whether a NIC may let writes overtake each other on the PCIe bus, which
// some hosts need for the full speed. It concerns memory that is registered for it.
func (x *exam) relaxedOrdering(name string) {
	file := path.Join(classDir, name, "device/config")
	text, ok := x.readUpTo(file, 256)
	space := []byte(text)
	if !ok || len(space) < pciHeader {
		return // a software device
	}
	f := Finding{Status: Unknown, Check: "relaxed ordering", On: name, From: "/" + file}
	at := int(space[pciCapabilities])
	for range 48 { // as many capabilities as the space has room for: it may contradict itself
		if at < pciHeader || at+pciDevControl+2 > len(space) || space[at] == pciExpress {
			break
		}
		at = int(space[at+1])
	}
	switch {
	case len(space) == pciHeader:
		f.Seen = "only root reads this part of the file"
		f.Mend = "run ibverbx doctor as root"
	case at < pciHeader || at+pciDevControl+2 > len(space):
		return // no PCI Express
	case binary.LittleEndian.Uint16(space[at+pciDevControl:])&relaxedBit != 0:
		f.Status, f.From = OK, ""
		f.Seen = "the slot allows it, for memory with AccessRelaxedOrdering"
	default:
		f.Status, f.Seen = Warn, "off: AccessRelaxedOrdering has no effect"
		f.Mend = "turn it on in the BIOS, or until the next start: setpci -s $(basename $(realpath /" +
			path.Dir(file) + ")) CAP_EXP+8.w=10:10"
	}
	x.add(f)
}

// hugePages checks which pages large memory gets: a NIC translates each, and registering takes time
// for each.
func (x *exam) hugePages() {
	const transparent = "sys/kernel/mm/transparent_hugepage/enabled"
	const reserved = "sys/kernel/mm/hugepages/hugepages-2048kB"
	mode, hasMode := x.read(transparent)
	total, hasTotal := x.number(reserved + "/nr_hugepages")
	free, _ := x.number(reserved + "/free_hugepages")
	if !hasMode && !hasTotal {
		return
	}
	_, mode, _ = strings.Cut(mode, "[")
	mode, _, _ = strings.Cut(mode, "]")
	f := Finding{Status: OK, Check: "huge pages", Seen: "none are reserved"}
	if total != 0 {
		f.Seen = fmt.Sprintf("%d of %d reserved ones of 2 MiB are free", free, total)
	}
	switch mode {
	case "madvise":
		f.Seen += ", and transparent ones on request (madvise)"
	case "always":
		f.Seen += ", and transparent ones are on"
	default:
		f.Seen += ", and transparent ones are off"
		if total == 0 {
			f.Status, f.From = Warn, "/"+transparent
			f.Seen += ": large memory takes longer to register and to reach"
			f.Mend = "echo madvise > /" + transparent
		}
	}
	x.add(f)
}

// kernel returns the kernel's release, and whether it is at least a version.
func (x *exam) kernel(major, minor int) (release string, least, ok bool) {
	release, _ = x.read("proc/sys/kernel/osrelease")
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return "", false, false
	}
	release, _, _ = strings.Cut(release, "-")
	return release, a > major || a == major && b >= minor, true
}

// leastFiles is how many file descriptors a process with some peers over shared memory takes: two
// for each peer, and one for each queue pair that has not moved data yet.
const leastFiles = 256

// sharedMemory checks what package verbs/shm needs: sealed memory, a place to meet, descriptors.
func (x *exam) sharedMemory() {
	release, has, ok := x.kernel(3, 17)
	if !ok {
		return
	}
	f := Finding{Status: OK, Check: "shared memory",
		Seen: "sealed; processes meet at abstract sockets of this network namespace"}
	_, protects, _ := x.kernel(5, 1)
	files := x.fields("proc/self/limits", "Max open files")
	limit, err := uint64(0), error(nil)
	if len(files) != 0 {
		limit, err = strconv.ParseUint(files[0], 10, 64)
	}
	yama, hasYama := x.read("proc/sys/kernel/yama/ptrace_scope")
	switch {
	case !has:
		f.Status, f.From = Warn, "/proc/sys/kernel/osrelease"
		f.Seen = "Linux " + release + " has no memfd_create: processes of this host use UDP sockets"
		f.Mend = "a kernel from 3.17 on"
	case len(files) != 0 && err == nil && limit < leastFiles:
		f.Status, f.From = Warn, "/proc/self/limits"
		f.Seen = fmt.Sprintf("%d file descriptors: each peer takes two", limit)
		f.Mend = "ulimit -n 4096"
	case !protects:
		f.Seen += "; before Linux 5.1 a peer can write what it should only read"
	}
	if f.Status == OK && hasYama && yama != "0" {
		f.Seen += "; Yama (" + yama + ") does not matter: no process reads another's memory by its number"
	}
	x.add(f)
}

// bursts checks whether UDP sockets hand the kernel many packets at once.
func (x *exam) bursts() {
	release, has, ok := x.kernel(4, 18)
	const off = "IBVERBX_ROCE_DISABLE_GSO"
	f := Finding{Status: Warn, Check: "udp bursts"}
	set, _ := strconv.ParseBool(x.environment(off))
	switch {
	case !ok || x.RDMA:
		return
	case set:
		f.Seen, f.Mend = "turned off by "+off+": each packet is handed to the kernel by itself", "unset "+off
	case !has:
		f.Seen = "Linux " + release + " sends one packet a call (GSO needs 4.18)"
		f.From, f.Mend = "/proc/sys/kernel/osrelease", "a newer kernel"
	default:
		f.Status, f.Seen = OK, "the kernel sends many packets in a call (GSO)"
	}
	x.add(f)
}
