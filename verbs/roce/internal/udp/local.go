package udp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// LocalAddress is one address of this host to which a socket can be bound.
type LocalAddress struct {
	Interface string     // the interface's name: "eth0"
	Index     int        // the interface's number
	Addr      netip.Addr // with its zone if it is link-local
	MTU       int        // bytes of an IP packet on the interface's link
	Up        bool       // the interface is up and has a carrier
	Loopback  bool
	Speed     int // Mbit/s of the link; 0 if not known
}

// LocalAddresses lists the addresses of this host's interfaces, even of those that are down, in the
// order of the interfaces.
func LocalAddresses() ([]LocalAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces: %w", err)
	}
	slices.SortFunc(interfaces, func(a, b net.Interface) int { return a.Index - b.Index })
	var list []LocalAddress
	for _, ifc := range interfaces {
		addrs, err := ifc.Addrs()
		if err != nil {
			continue // the interface has gone since
		}
		local := LocalAddress{Interface: ifc.Name, Index: ifc.Index, MTU: ifc.MTU, Speed: linkSpeed(ifc.Name),
			Up:       ifc.Flags&net.FlagUp != 0 && ifc.Flags&net.FlagRunning != 0,
			Loopback: ifc.Flags&net.FlagLoopback != 0}
		for _, addr := range addrs {
			prefix, ok := addr.(*net.IPNet)
			if !ok {
				continue
			}
			if local.Addr, ok = netip.AddrFromSlice(prefix.IP); !ok {
				continue
			}
			local.Addr = local.Addr.Unmap()
			if local.Addr.IsUnspecified() || local.Addr.IsMulticast() {
				continue
			}
			if local.Addr.Is6() && local.Addr.IsLinkLocalUnicast() {
				local.Addr = local.Addr.WithZone(ifc.Name)
			}
			list = append(list, local)
		}
	}
	return list, nil
}
