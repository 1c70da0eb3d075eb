package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// defaultPort is where a listening end is found, as in perftest.
const defaultPort = "18515"

// listenFlag is a flag that may be followed by an address, or by nothing.
type listenFlag struct {
	given   bool
	address string
}

// Decode takes the address if one follows.
func (f *listenFlag) Decode(ctx *kong.DecodeContext) (err error) {
	text := ""
	if t := ctx.Scan.Peek(); t.Type == kong.FlagValueToken || t.Type == kong.UntypedToken &&
		!strings.HasPrefix(t.String(), "-") {
		text = ctx.Scan.Pop().String()
	}
	f.given = true
	f.address, err = parseAddress(text)
	return err
}

// connectFlag is the address of a listening end.
type connectFlag string

// UnmarshalText reads the address.
func (f *connectFlag) UnmarshalText(text []byte) error {
	address, err := parseAddress(string(text))
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.Trim(port, "0") == "" {
		return fmt.Errorf("address %q: want HOST or HOST:PORT", text)
	}
	*f = connectFlag(address)
	return nil
}

// parseAddress reads HOST, HOST:PORT, :PORT or nothing. What is left out is every address, and
// perftest's port.
func parseAddress(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return "", fmt.Errorf("address %q: a port has a colon before it, as in --listen=:%s", text, text)
	}
	host, port := text, defaultPort
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	if _, err := netip.ParseAddr(bare); err == nil {
		host = bare
	} else if meant := withBrackets(text); meant != "" {
		return "", fmt.Errorf("address %q: an IPv6 address has brackets before a port: %s", text, meant)
	} else if strings.Contains(text, ":") {
		if host, port, err = net.SplitHostPort(text); err != nil {
			return "", fmt.Errorf("address %q: want HOST, HOST:PORT, or [IPV6]:PORT", text)
		}
	}
	if strings.ContainsAny(host, "[]") {
		return "", fmt.Errorf("address %q: want HOST, HOST:PORT, or [IPV6]:PORT", text)
	}
	_, err := strconv.ParseUint(port, 10, 16)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return "", fmt.Errorf("address %q: want HOST or HOST:PORT", text)
	case err != nil:
		return "", fmt.Errorf("address %q: ports are 0 to 65535", text)
	}
	return net.JoinHostPort(host, port), nil
}

// withBrackets is what may be meant by an IPv6 address that ends in a number of digits, as ::1:7471
// does: an address and a port. It is empty where that cannot be.
func withBrackets(text string) string {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return ""
	}
	host, port := text[:i], text[i+1:]
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.Is6() || port == "" || strings.Trim(port, "0123456789") != "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// doubt adds to the failure to reach, or listen at, an IPv6 address without brackets what may be
// meant by it. Such an address has perftest's port.
func doubt(address string, err error) error {
	host, port, _ := net.SplitHostPort(address) // parseAddress has made it
	if meant := withBrackets(host); meant != "" && port == defaultPort {
		return fmt.Errorf("%w: if a port is meant write %s", err, meant)
	}
	return err
}
