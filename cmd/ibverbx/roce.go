package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// loopback is the address of a roce NIC that only this host has to reach.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// openRoCE makes NICs of the addresses that were named, else of the one that the other end reaches,
// else of all that the host has.
func openRoCE(o nicOptions) (verbs.Provider, error) {
	addrs, err := parseAddresses(o.filter)
	if err != nil {
		return nil, err
	}
	if addrs == nil && o.local.IsValid() {
		addrs = []netip.Addr{o.local}
	}
	p, err := roce.Open(roce.Config{Addresses: addrs, Port: o.port, Rate: float64(o.rate),
		TrafficClass: o.trafficClass})
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return p, nil
}

// checkRoCE says whether there can be NICs with the UDP port and the rate limit that were named.
func (f *nicFlags) checkRoCE(provider string) error {
	switch {
	case provider == softNICs && f.Rate != 0:
		return &bench.UsageError{Reason: "--rate-limit is of NICs made of UDP sockets: software NICs have " +
			"--nic-speed"}
	case provider != roceNICs && f.Rate != 0:
		return &bench.UsageError{Reason: "--rate-limit is of NICs made of UDP sockets: add --provider roce"}
	case f.UDPPort == nil:
		return nil
	case provider != roceNICs:
		return &bench.UsageError{Reason: "--udp-port is of NICs made of UDP sockets: add --provider roce"}
	case *f.UDPPort < 1 || *f.UDPPort > 65535:
		return &bench.UsageError{Reason: fmt.Sprintf("--udp-port %d: must be 1 to 65535", *f.UDPPort)}
	}
	return nil
}

// parseAddresses reads a list of interfaces and addresses of this host. An interface stands for its
// IPv4 addresses, or for its IPv6 ones where it has no others.
func parseAddresses(list string) (addrs []netip.Addr, err error) {
	if list == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		these := []netip.Addr{}
		if addr, err := netip.ParseAddr(word); err == nil {
			these = append(these, addr.Unmap())
		} else if these, err = interfaceAddresses(word); err != nil {
			return nil, err
		}
		for _, addr := range these {
			if slices.Contains(addrs, addr) {
				return nil, &bench.UsageError{Reason: fmt.Sprintf("--device %s: names %v twice", list, addr)}
			}
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// interfaceAddresses are the addresses of an interface that can be NICs.
func interfaceAddresses(name string) (addrs []netip.Addr, err error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil, &bench.UsageError{Reason: fmt.Sprintf("--device: %q is neither an address nor an "+
			"interface of this host (have %s)", name, strings.Join(interfaceNames(), ", "))}
	}
	all, err := ifc.Addrs()
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	var v6 []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		switch addr := prefix.Addr().Unmap(); {
		case err != nil || addr.IsLinkLocalUnicast():
		case addr.Is4():
			addrs = append(addrs, addr)
		default:
			v6 = append(v6, addr)
		}
	}
	if addrs == nil {
		addrs = v6
	}
	if addrs == nil {
		return nil, fmt.Errorf("interface %s has no address that can be a NIC: give it one, or name another",
			name)
	}
	return addrs, nil
}

// interfaceNames are the names of this host's interfaces.
func interfaceNames() (names []string) {
	all, _ := net.Interfaces() // they only complete an error
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names
}

// nicAddress is the address of a NIC that reaches the other end of a TCP connection, whose route is
// proven: this end's address of the connection.
func nicAddress(local, remote net.Addr) (netip.Addr, error) {
	here, err := ipOf(local)
	if err != nil {
		return here, err
	}
	there, err := ipOf(remote)
	switch {
	case err != nil:
		return here, err
	case here.IsLoopback() || here.Is6() && here == there:
		return loopback(), nil // two processes of a host, and over IPv6 a second one could have no NIC
	case here.IsLinkLocalUnicast():
		return here, &linkLocalError{here}
	}
	return here.WithZone(""), nil
}

// linkLocalError says why the route of a connection is none for NICs.
type linkLocalError struct{ addr netip.Addr }

// Error says what to do.
func (e *linkLocalError) Error() string {
	return fmt.Sprintf("the two processes meet over %v, which is link-local and cannot be a NIC: connect to "+
		"another address of that host, or give both ends --device", e.addr)
}

// ipOf is the address of a TCP connection's end.
func ipOf(a net.Addr) (netip.Addr, error) {
	at, err := netip.ParseAddrPort(a.String())
	return at.Addr().Unmap(), err
}

// packetsOf says in what packets NICs speak, for the other end to know whether its own understand
// them; empty where that is not known.
func packetsOf(devices []verbs.Device) string {
	for _, d := range devices {
		if r, ok := d.(*roce.Device); ok {
			if port := r.Addr().Port(); port != roce.Port {
				return fmt.Sprintf("RoCEv2 on UDP port %d, not %d", port, roce.Port)
			}
			continue
		}
		port, err := d.QueryPort(d.DefaultPort())
		switch {
		case err != nil:
			return ""
		case port.LinkLayer != verbs.LinkLayerEthernet:
			return port.LinkLayer.String()
		case !hasRoCEv2(d, port.GIDTableLen):
			return "Ethernet without RoCEv2"
		}
	}
	return "RoCEv2"
}

// hasRoCEv2 says whether a port's GID table has an entry of RoCEv2.
func hasRoCEv2(d verbs.Device, entries int) bool {
	for i := range entries {
		if g, err := d.QueryGID(d.DefaultPort(), i); err == nil && g.Type == verbs.GIDTypeRoCEv2 &&
			!g.GID.IsZero() {
			return true
		}
	}
	return false
}
