package job

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"
)

// site is the address at which rank 0 listens, and the one at which the others reach it.
type site struct {
	listen string // host; empty stands for all addresses
	reach  string // host
	port   string
}

// choose makes a site of Config.Address, which may be empty with a store.
func choose(ctx context.Context, addr string, store Store) (site, error) {
	host, port, err := splitAddress(addr)
	if err != nil {
		return site{}, err
	}
	if host == "" {
		ip := sourceAddress(ctx, store).String()
		return site{ip, ip, port}, nil
	}
	if i, err := net.InterfaceByName(host); err == nil {
		ip, ok := addressOf(i)
		if !ok {
			return site{}, fmt.Errorf("rank 0 is to listen at interface %s: it has no address", host)
		}
		return site{ip.String(), ip.String(), port}, nil
	}
	return site{listen: listenHost(host), reach: host, port: port}, resolves(ctx, host)
}

// resolves returns an error if the name of a host is wrong, as far as this host can tell: a name
// with a dot may be known to the others before it is known here.
func resolves(ctx context.Context, host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	const wrong = "Address %.100q: it is no interface of this host, and no name of a host"
	switch {
	case !isName(host):
		return invalid(wrong, host)
	case strings.Contains(host, "."):
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, lateness)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(limited, host); err != nil && limited.Err() == nil {
		return invalid(wrong+": %w", host, err)
	}
	return nil
}

// isName reports whether a text has the letters of a host's name.
func isName(host string) bool {
	for _, r := range host {
		if r != '-' && r != '.' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			return false
		}
	}
	return true
}

// listenHost returns the host to listen at for processes that connect to host: all addresses (""),
// or only the loopback interface if host names it.
func listenHost(host string) string {
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return host
	}
	return ""
}

// splitAddress reads an address for use with a store: HOST:PORT, HOST, :PORT or nothing. The port
// defaults to 0.
func splitAddress(addr string) (host, port string, err error) {
	if _, err := netip.ParseAddr(addr); err == nil {
		return addr, "0", nil
	}
	host, port, err = net.SplitHostPort(addr)
	if err != nil { // no port
		if host, port, err = net.SplitHostPort(addr + ":0"); err != nil {
			return "", "", err
		}
	}
	_, err = net.LookupPort("tcp", port)
	return host, port, err
}

// sourceAddress returns the address of this host by which it reaches the store, or, if the store
// does not tell, the world. It looks up the latter in the routing table, and sends nothing.
func sourceAddress(ctx context.Context, store Store) netip.Addr {
	if s, ok := store.(interface{ LocalAddr() net.Addr }); ok {
		if ip, ok := ipOf(s.LocalAddr()); ok {
			return ip
		}
	}
	// Addresses reserved for documentation: RFC 5737, RFC 3849.
	for _, world := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		var d net.Dialer
		c, err := d.DialContext(ctx, "udp", world)
		if err != nil {
			continue
		}
		ip, ok := ipOf(c.LocalAddr())
		_ = c.Close()
		if ok {
			return ip
		}
	}
	all, _ := net.Interfaces() // an error counts as none
	for i := range all {
		if up := net.FlagUp | net.FlagRunning; all[i].Flags&(up|net.FlagLoopback) == up {
			if ip, ok := addressOf(&all[i]); ok {
				return ip
			}
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// ipOf returns the IP address of a connection's end, if that can be dialled without a zone.
func ipOf(addr net.Addr) (netip.Addr, bool) {
	if addr == nil {
		return netip.Addr{}, false
	}
	at, err := netip.ParseAddrPort(addr.String())
	ip := at.Addr().Unmap()
	return ip, err == nil && !ip.IsUnspecified() && ip.Zone() == ""
}

// addressOf returns an address of an interface, an IPv4 one if possible.
func addressOf(i *net.Interface) (found netip.Addr, ok bool) {
	all, _ := i.Addrs() // an error counts as none
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		ip := prefix.Addr()
		if err != nil || ip.IsLinkLocalUnicast() && ip.Is6() {
			continue
		}
		if !ok || ip.Is4() && !found.Is4() {
			found, ok = ip, true
		}
	}
	return found, ok
}
