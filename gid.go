package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// localPort is what a rail's end of the connection looks like: its port, and the entry of the
// port's GID table that it uses.
type localPort struct {
	attr verbs.PortAttr
	gid  verbs.GIDEntry
}

// localPorts asks each device for its port once: GID tables may have hundreds of entries.
type localPorts struct {
	conn  *ConnConfig
	known map[verbs.DeviceID]localPort
}

// gidError says why a port has no GID to connect with.
type gidError string

func (e gidError) Error() string { return string(e) }

// port is the number of the local port that a device's rails use.
func (c *ConnConfig) port(dev verbs.Device) uint8 {
	if c.Port != 0 {
		return c.Port
	}
	return uint8(dev.DefaultPort())
}

// of queries a device's port.
func (p *localPorts) of(dev verbs.Device) (localPort, error) {
	if known, ok := p.known[dev.ID()]; ok {
		return known, nil
	}
	port, err := p.query(dev)
	if err != nil {
		return port, err
	}
	if p.known == nil {
		p.known = map[verbs.DeviceID]localPort{}
	}
	p.known[dev.ID()] = port
	return port, nil
}

func (p *localPorts) query(dev verbs.Device) (l localPort, err error) {
	port := int(p.conn.port(dev))
	if l.attr, err = dev.QueryPort(port); err != nil {
		return l, err
	}
	if p.conn.GIDIndex == 0 {
		l.gid, err = bestGID(dev, port, l.attr.GIDTableLen)
		return l, err
	}
	index := max(0, p.conn.GIDIndex)
	if l.gid, err = dev.QueryGID(port, index); err != nil {
		return l, err
	}
	if l.gid.GID.IsZero() && l.attr.LinkLayer == verbs.LinkLayerEthernet {
		return l, gidError(fmt.Sprintf("entry %d of the GID table of %s port %d is empty", index, dev.Name(),
			port))
	}
	return l, nil
}

// bestGID chooses the entry of a port's GID table that users expect. An entry that cannot be read
// is no reason to give up, unless no other is found.
func bestGID(dev verbs.Device, port, tableLen int) (best verbs.GIDEntry, err error) {
	rank := 0
	var unreadable error
	for i := range tableLen {
		entry, err := dev.QueryGID(port, i)
		if err != nil {
			unreadable = err
			continue
		}
		if r := gidRank(entry); r > rank {
			best, rank = entry, r
		}
	}
	switch {
	case rank != 0:
		return best, nil
	case unreadable != nil:
		return best, unreadable
	}
	return best, gidError(fmt.Sprintf("%s port %d has no GID: give the interface behind it an address",
		dev.Name(), port))
}

// gidRank orders GIDs as users expect them to be chosen: RoCE v2 before anything else, of these the
// routable before the link-local, and IPv4 before IPv6.
func gidRank(e verbs.GIDEntry) int {
	switch {
	case e.GID.IsZero():
		return 0
	case e.Type != verbs.GIDTypeRoCEv2:
		return 1
	}
	rank := 2
	if !e.GID.IsLinkLocal() {
		rank += 2
	}
	if e.GID.IsIPv4() {
		rank++
	}
	return rank
}
