package nics

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// openRoCE makes NICs of the addresses that the configuration names, or else of all addresses of
// the host.
func openRoCE(c Config) (verbs.Provider, error) {
	addrs, err := parseAddresses(c.Devices)
	if err != nil {
		return nil, err
	}
	if addrs != nil {
		c.RoCE.Addresses = addrs
	}
	p, err := roce.Open(c.RoCE)
	if err != nil {
		return nil, err // not p: a nil pointer in an interface is not nil
	}
	return p, nil
}

// loopback returns the address for a NIC that only this host needs to reach.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// hasAddress reports whether a list names an address. Only NICs of roce are named by address.
func hasAddress(list string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(word string) bool {
		_, err := netip.ParseAddr(word)
		return err == nil
	})
}

// namesAddresses reports whether a list is one of interfaces and addresses of this host.
func namesAddresses(list string) bool {
	addrs, err := parseAddresses(list)
	return err == nil && addrs != nil
}

// parseAddresses reads a list of interfaces and addresses of this host. An interface stands for its
// IPv4 addresses, or for its IPv6 addresses if it has no IPv4.
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
				return nil, &ConfigError{"Devices", fmt.Sprintf("%s: names %v twice", list, addr)}
			}
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// interfaceAddresses returns the addresses of an interface that can be NICs.
func interfaceAddresses(name string) (addrs []netip.Addr, err error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil, &ConfigError{"Devices", fmt.Sprintf("%q is neither an address nor an interface of this "+
			"host (have %s)", name, strings.Join(interfaceNames(), ", "))}
	}
	all, err := ifc.Addrs()
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	if addrs = nicAddresses(all); addrs == nil {
		return nil, fmt.Errorf("interface %s has no address that can be a NIC: give it one, or name another",
			name)
	}
	return addrs, nil
}

// nicAddresses returns those of an interface's addresses that can be NICs.
func nicAddresses(all []net.Addr) (addrs []netip.Addr) {
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
		return v6
	}
	return addrs
}

// interfaceNames returns the names of this host's interfaces.
func interfaceNames() (names []string) {
	all, _ := net.Interfaces() // they only add to an error text
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names
}

// Route is a connection between two processes, such as a *rendezvous.Conn or a net.Conn. Its two
// addresses determine which NIC of this host reaches the other end: see [Host.Reaching].
type Route interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// address returns the address for a NIC that reaches the other end of a TCP connection: this end's
// address of the connection, because that route is known to work.
func address(r Route) (netip.Addr, error) {
	here, err := ipOf(r.LocalAddr())
	if err != nil {
		return here, err
	}
	there, err := ipOf(r.RemoteAddr())
	switch {
	case err != nil:
		return here, err
	case here.IsLoopback() || here.Is6() && here == there:
		return loopback(), nil // two processes of one host; over IPv6 the second could have no NIC
	case here.IsLinkLocalUnicast():
		return here, &LinkLocalError{here}
	}
	return here.WithZone(""), nil
}

// LinkLocalError reports that [Host.Reaching], [Host.Agree] and [Host.Connect] cannot make a NIC at
// the address over which they meet a peer, because it is link-local.
type LinkLocalError struct{ Addr netip.Addr }

// Error returns the address, and what to do.
func (e *LinkLocalError) Error() string {
	return fmt.Sprintf("the two processes meet over %v, which is link-local and cannot be a NIC: connect to "+
		"another address of that host, or name the NICs of both ends", e.Addr)
}

// ipOf returns the address of one end of a TCP connection.
func ipOf(a net.Addr) (netip.Addr, error) {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the address of the peer's connection, %v, is none of TCP: name the "+
			"NICs: %w", a, err)
	}
	return at.Addr().Unmap(), nil
}

// sameHost reports whether the two ends of a connection have the same address, or both one of
// loopback: then they are processes of one host, or of one container.
func sameHost(r Route) bool {
	here, err := ipOf(r.LocalAddr())
	if err != nil {
		return false
	}
	there, err := ipOf(r.RemoteAddr())
	return err == nil && (here == there || here.IsLoopback() && there.IsLoopback())
}
