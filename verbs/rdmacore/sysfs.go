package rdmacore

import (
	"fmt"
	"io/fs"
	"path"
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
