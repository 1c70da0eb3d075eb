package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// DeviceAttr describes a NIC (struct ibv_device_attr).
type DeviceAttr struct {
	Firmware    string `json:"firmware"`
	NodeGUID    uint64 `json:"node_guid,string"`
	VendorID    uint32 `json:"vendor_id"`
	PartID      uint32 `json:"part_id"`
	HWVersion   uint32 `json:"hw_version"`
	Ports       int    `json:"ports"` // ports count from 1
	MaxQP       int    `json:"max_qp"`
	MaxQPWR     int    `json:"max_qp_wr"` // largest queue of a queue pair, work requests
	MaxSGE      int    `json:"max_sge"`   // largest scatter-gather list of one work request
	MaxCQ       int    `json:"max_cq"`
	MaxCQE      int    `json:"max_cqe"` // deepest completion queue
	MaxMR       int    `json:"max_mr"`
	MaxMRSize   uint64 `json:"max_mr_size"` // bytes
	MaxPD       int    `json:"max_pd"`
	MaxRDAtomic int    `json:"max_rd_atomic"` // reads and atomics outstanding per queue pair, each way
	// Software says that the NIC is software. It then answers late when processors are busy, and
	// not at all while its process is stopped.
	Software bool `json:"software"`
	// MaxInline is the longest inline send in bytes; 0 if only the creation of a queue pair shows
	// it.
	MaxInline int `json:"max_inline"`
}

// PortAttr describes a port of a NIC (struct ibv_port_attr).
type PortAttr struct {
	State       PortState
	MaxMTU      MTU
	ActiveMTU   MTU
	GIDTableLen int
	MaxMsgSize  uint32 // longest message, bytes
	LID         uint16 // InfiniBand only
	LinkLayer   LinkLayer
	// Speed is the port's signalling rate in bits a second; 0 if unknown.
	Speed uint64
}

// PortState is the state of a port (enum ibv_port_state).
type PortState uint32

// The states of a port.
const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

var portStateNames = [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

// String returns the verbs name of the state.
func (s PortState) String() string {
	if int(s) < len(portStateNames) {
		return portStateNames[s]
	}
	return "port state " + strconv.FormatUint(uint64(s), 10)
}

// LinkLayer is the protocol of a port's link (IBV_LINK_LAYER_*).
type LinkLayer uint8

// The link layers.
const (
	LinkLayerUnspecified LinkLayer = 0
	LinkLayerInfiniBand  LinkLayer = 1
	LinkLayerEthernet    LinkLayer = 2
	// LinkLayerSharedMemory is that of package verbs/shm. The kernel has no such value.
	LinkLayerSharedMemory LinkLayer = 0x53
)

// String returns the name of the link layer.
func (l LinkLayer) String() string {
	switch l {
	case LinkLayerInfiniBand:
		return "InfiniBand"
	case LinkLayerEthernet:
		return "Ethernet"
	case LinkLayerSharedMemory:
		return "shared memory"
	}
	return "unspecified"
}

// MTU is the code of a path MTU (enum ibv_mtu): 1 for 256 bytes to 5 for 4096.
type MTU uint32

// The path MTUs.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the MTU in bytes; 0 for an invalid code.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// String returns the MTU in bytes.
func (m MTU) String() string {
	if n := m.Bytes(); n != 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("mtu code %d", uint32(m))
}

// GID is the 128-bit address of a port, written like an IPv6 address.
type GID [16]byte

// String returns the GID as an IPv6 address; a RoCE v2 GID over IPv4 reads "::ffff:10.0.0.1".
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// IsZero reports whether the GID is unset, all zeros.
func (g GID) IsZero() bool { return g == GID{} }

// IsIPv4 reports whether the GID stands for an IPv4 address, as in RoCE v2 over IPv4.
func (g GID) IsIPv4() bool { return netip.AddrFrom16(g).Is4In6() }

// IsLinkLocal reports whether the GID stands for an address that no router forwards: fe80::/10, or
// 169.254.0.0/16 of IPv4.
func (g GID) IsLinkLocal() bool { return netip.AddrFrom16(g).Unmap().IsLinkLocalUnicast() }

// portGID begins a GID of package verbs/roce that contains a UDP port; see UDPAddr.
const portGID = "\xfdibvrx\x00\x00"

// UDPAddr returns the address and UDP port in the GID of a NIC of package verbs/roce that does not
// use RoCEv2's port; ok is false for any other GID. Other kinds of NIC cannot reach such a GID and
// refuse it when a queue pair goes to RTR, the kernel with EINVAL.
//
//	fd69:6276:7278:0:PORT:ffff:A.B.C.D
func (g GID) UDPAddr() (at netip.AddrPort, ok bool) {
	if string(g[:8]) != portGID || g[10] != 0xff || g[11] != 0xff {
		return at, false
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(g[12:])), uint16(g[8])<<8|uint16(g[9])), true
}

// ParseGID parses the form that String returns.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return GID{}, &OpError{Op: "parse gid", Detail: fmt.Sprintf("%.80q is no IPv6 address", s),
			Err: ErrInvalid}
	}
	return a.As16(), nil
}

// MarshalText returns the form of String, for JSON and the like.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (g *GID) UnmarshalText(text []byte) error {
	v, err := ParseGID(string(text))
	if err != nil {
		return err
	}
	*g = v
	return nil
}

// GIDType is the protocol that a GID table entry is for.
type GIDType uint8

// The kinds of GID table entries.
const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

// String returns sysfs's name of the kind.
func (t GIDType) String() string {
	switch t {
	case GIDTypeRoCEv1:
		return "RoCE v1"
	case GIDTypeRoCEv2:
		return "RoCE v2"
	}
	return "IB"
}

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	NetDev string // its network interface; empty if there is none
}

// DeviceInfo is what [Describe] finds out about a NIC. Its parts are words and plain numbers, for
// lists and documents.
type DeviceInfo struct {
	Name  string     `json:"name"`
	ID    DeviceID   `json:"id"`
	Attr  DeviceAttr `json:"attributes"`
	Ports []PortInfo `json:"ports"`
}

// PortInfo is a port with its GIDs.
type PortInfo struct {
	Port       int       `json:"port"`
	State      string    `json:"state"`
	LinkLayer  string    `json:"link_layer"`
	ActiveMTU  int       `json:"active_mtu"` // bytes
	MaxMTU     int       `json:"max_mtu"`
	Speed      uint64    `json:"bits_per_second"` // 0 when unknown or unlimited
	MaxMsgSize uint32    `json:"max_message_bytes"`
	LID        uint16    `json:"lid"`
	GIDs       []GIDInfo `json:"gids"` // those that are set: tables have holes
}

// GIDInfo is an entry of a GID table.
type GIDInfo struct {
	Index  int    `json:"index"`
	GID    GID    `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"netdev,omitempty"`
}

// Describe queries a NIC, its ports and their GIDs. With an error it returns what it could query:
// nothing, without a name, if the NIC itself does not answer.
func Describe(d Device) (DeviceInfo, error) {
	attr, err := d.Query()
	if err != nil {
		return DeviceInfo{}, err
	}
	info, errs := DeviceInfo{Name: d.Name(), ID: d.ID(), Attr: attr, Ports: []PortInfo{}}, []error(nil)
	for n := 1; n <= attr.Ports; n++ {
		port, err := describePort(d, n)
		errs = append(errs, err)
		if port.Port != 0 {
			info.Ports = append(info.Ports, port)
		}
	}
	return info, errors.Join(errs...)
}

// describePort queries a port. With an error it returns what it could query; without a number the
// port did not answer.
func describePort(d Device, n int) (PortInfo, error) {
	attr, err := d.QueryPort(n)
	if err != nil {
		return PortInfo{}, err
	}
	port := PortInfo{
		Port: n, State: attr.State.String(), LinkLayer: attr.LinkLayer.String(),
		ActiveMTU: attr.ActiveMTU.Bytes(), MaxMTU: attr.MaxMTU.Bytes(), Speed: attr.Speed,
		MaxMsgSize: attr.MaxMsgSize, LID: attr.LID, GIDs: []GIDInfo{},
	}
	var failed error // the first: a table may have hundreds of entries
	for i := range attr.GIDTableLen {
		g, err := d.QueryGID(n, i)
		switch {
		case err != nil && failed == nil:
			failed = err
		case err == nil && !g.GID.IsZero():
			port.GIDs = append(port.GIDs, GIDInfo{g.Index, g.GID, g.Type.String(), g.NetDev})
		}
	}
	return port, failed
}
