package udp

import "ibverbx/verbs"

// PathMTU is what fits the way to a destination, in bytes.
type PathMTU struct {
	IP      int // of a whole IP packet
	Payload int // of UDP payload
}

// pathMTU is the PathMTU of IP packets of so many bytes.
func pathMTU(ip int, v6 bool) PathMTU {
	headers := 20 + 8
	if v6 {
		headers = 40 + 8
	}
	return PathMTU{IP: ip, Payload: max(0, min(ip, 65535)-headers)}
}

// Verbs returns the largest MTU of package verbs that fits with so many bytes of headers and
// trailers in the UDP payload, 0 if none does.
func (p PathMTU) Verbs(headers int) verbs.MTU {
	for mtu := verbs.MTU4096; mtu >= verbs.MTU256; mtu-- {
		if mtu.Bytes()+headers <= p.Payload {
			return mtu
		}
	}
	return 0
}
