package rdmacore

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"ibverbx/verbs"
)

// This file reads attributes from /sys/class/infiniband that libibverbs does not report, or not in
// every version. Their paths are documented in the kernel's
// Documentation/ABI/stable/sysfs-class-infiniband.

// gidAttr is a file of a port's GID table: "types", "ndevs". An empty entry has none.
func gidAttr(sys fs.FS, device string, port, index int, attr string) (string, error) {
	text, err := fs.ReadFile(sys, path.Join(device, "ports", strconv.Itoa(port), "gid_attrs", attr,
		strconv.Itoa(index)))
	return strings.TrimSpace(string(text)), err
}

// sysGIDType returns the protocol of an entry that is set.
func sysGIDType(sys fs.FS, device string, port, index int, link verbs.LinkLayer) (verbs.GIDType, error) {
	text, err := gidAttr(sys, device, port, index, "types")
	switch {
	case err != nil:
		return 0, err
	case text == "RoCE v2":
		return verbs.GIDTypeRoCEv2, nil
	case link == verbs.LinkLayerEthernet: // "IB/RoCE v1"
		return verbs.GIDTypeRoCEv1, nil
	}
	return verbs.GIDTypeIB, nil
}

// sysNetDev returns the network interface of an entry; empty if it has none.
func sysNetDev(sys fs.FS, device string, port, index int) string {
	name, err := gidAttr(sys, device, port, index, "ndevs")
	if err != nil {
		return ""
	}
	return name
}

// repairWords are parts of the names of counters that count what went wrong or was done again.
// Names differ by driver: out_of_sequence, local_ack_timeout_err and np_cnp_sent of mlx5,
// out_of_seq_request and completer_retry_err of rdma_rxe, RetransSegs of irdma. Names of traffic,
// such as sent_pkts and rx_write_requests, have none of them.
//
//nolint:gochecknoglobals // a constant
var repairWords = []string{"err", "retry", "retrans", "timeout", "out_of", "duplicate", "nak", "rnr", "drop",
	"discard", "cnp", "ecn", "down"}

// sysRepairs reads those counters of a port, where the driver has any: the kernel shows them in
// ports/N/hw_counters, each as a number in a file.
func sysRepairs(sys fs.FS, device string, port int) map[string]uint64 {
	dir := path.Join(device, "ports", strconv.Itoa(port), "hw_counters")
	entries, _ := fs.ReadDir(sys, dir) // a driver need not have them
	counters := map[string]uint64{}
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if !slices.ContainsFunc(repairWords, func(w string) bool { return strings.Contains(name, w) }) {
			continue
		}
		text, err := fs.ReadFile(sys, path.Join(dir, e.Name()))
		n, noNumber := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && noNumber == nil {
			counters[e.Name()] = n
		}
	}
	return counters
}

// whyNoDevice returns why the list of devices is empty.
func whyNoDevice(sys fs.FS) string {
	entries, err := fs.ReadDir(sys, ".")
	switch {
	case err != nil:
		return "the kernel has no RDMA, or hides it from this container: load the driver of the NIC " +
			"(mlx5_ib, bnxt_re, irdma), or rdma_rxe for RDMA over any network interface (modprobe " +
			"rdma_rxe; rdma link add rxe0 type rxe netdev eth0)"
	case len(entries) == 0:
		return "the kernel knows RDMA and has no device: load the driver of the NIC (mlx5_ib, bnxt_re, " +
			"irdma), or make a software one (rdma link add rxe0 type rxe netdev eth0)"
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return fmt.Sprintf("the kernel has %s, for which libibverbs finds no driver (Debian and Ubuntu: "+
		"install ibverbs-providers) "+
		"or no /dev/infiniband/uverbs* (modprobe ib_uverbs)", strings.Join(names, ", "))
}
