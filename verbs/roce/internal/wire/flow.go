package wire

import (
	"encoding/binary"
	"net/netip"
)

// Flow is one direction between two sockets: it computes the ICRC of packets from one to the other
// (IBTA annex A17.3.3). It never changes.
//
// The ICRC is a CRC-32 over a pseudo header and the packet. The pseudo header has eight bytes of
// ones, the IP header with the fields that routers change as ones, and the UDP header with its
// checksum as ones; in the packet, byte 4 of the BTH counts as ones. A CRC is linear: each field of
// the pseudo header adds its own term to the final register, whatever the others hold. So a Flow
// holds the register for a pseudo header whose length and identification are zero, and a packet
// adds its terms from tables.
type Flow struct {
	register uint32
	ipv6     bool
}

// Sizes of the headers below the packet, and of the ones before them in the pseudo header.
const (
	onesSize = 8
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
)

// fieldTable has the terms of a 16-bit field of the pseudo header, for its high and its low byte.
type fieldTable [2][256]uint32

// term returns the field's contribution to the register for the value v.
func (t *fieldTable) term(v uint16) uint32 { return t[0][v>>8] ^ t[1][v&0xff] }

// makeFieldTable makes the table of a field that ends so many bytes before the end
// of the pseudo header.
func makeFieldTable(after int) fieldTable {
	return fieldTable{makeZerosTable(after + 1), makeZerosTable(after)}
}

// The fields that differ between packets of a flow. IPv4: bytes 2 and 3 are the length, 4 and 5 the
// identification; IPv6: 4 and 5; UDP: 4 and 5.
var (
	ipv4LengthTable = makeFieldTable(ipv4Size - 4 + udpSize)
	ipv4IDTable     = makeFieldTable(ipv4Size - 6 + udpSize)
	ipv6LengthTable = makeFieldTable(ipv6Size - 6 + udpSize)
	udpLengthTable  = makeFieldTable(udpSize - 6)
)

// NewFlow returns the flow from src to dst, which must be of one family. IPv4 addresses in the form
// of IPv6 count as IPv4. IPv4 datagrams are assumed to have DF set.
func NewFlow(src, dst netip.AddrPort) Flow {
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	f := Flow{ipv6: !from.Is4() || !to.Is4()}
	var buf [onesSize + ipv6Size + udpSize]byte
	b := buf[:0]
	for range onesSize {
		b = append(b, 0xff)
	}
	if f.ipv6 {
		s, d := from.As16(), to.As16()
		b = append(b, 0x6f, 0xff, 0xff, 0xff) // version; traffic class and flow label as ones
		b = append(b, 0, 0, 17, 0xff)         // length, UDP, hop limit as ones
		b = append(b, s[:]...)
		b = append(b, d[:]...)
	} else {
		s, d := from.As4(), to.As4()
		b = append(b, 0x45, 0xff, 0, 0)     // version and header length, TOS as ones, length
		b = append(b, 0, 0, 0x40, 0)        // identification, DF
		b = append(b, 0xff, 17, 0xff, 0xff) // TTL as ones, UDP, checksum as ones
		b = append(b, s[:]...)
		b = append(b, d[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = append(b, 0, 0, 0xff, 0xff) // length, checksum as ones
	f.register = runFew(^uint32(0), b)
	return f
}

// begin returns the register after the pseudo header of a packet of size bytes, ICRC included.
func (f *Flow) begin(id uint16, size int) uint32 {
	length := uint16(udpSize + size)
	r := f.register ^ udpLengthTable.term(length)
	if f.ipv6 {
		return r ^ ipv6LengthTable.term(length)
	}
	return r ^ ipv4LengthTable.term(ipv4Size+length) ^ ipv4IDTable.term(id)
}

// bthOnes has ones in the place of byte 4, in the first eight bytes of the BTH as a little-endian
// number. Routers change that byte, so it counts as ones.
const bthOnes = 0xff << 32

// Sum returns the ICRC of a packet of this flow: header, as [Header.Put] encodes it, payload and
// pad. header has at least the whole BTH; it and payload may be split anywhere behind that. id is
// the identification of the IPv4 header, 0 in IPv6: those of a burst by GSO are 0, 1, 2, ... The
// ICRC is stored with its least significant byte first.
func (f *Flow) Sum(id uint16, header, payload []byte, pad int) uint32 {
	r := f.begin(id, len(header)+len(payload)+pad+ICRCSize)
	r = run8(tablesAfter(4), (binary.LittleEndian.Uint64(header)|bthOnes)^uint64(r)) ^
		run4(binary.LittleEndian.Uint32(header[8:]))
	if len(header) > bthSize {
		r = runFew(r, header[bthSize:])
	}
	if len(payload) > 0 {
		r = runMany(r, payload)
	}
	for range pad {
		r = run1(r, 0)
	}
	return ^r
}

// Check reports whether the ICRC at the end of packet, a received one from its BTH on, is right
// for an IPv4 identification of id, 0 in IPv6.
func (f *Flow) Check(id uint16, packet []byte) bool {
	return len(packet) >= bthSize+ICRCSize && f.difference(id, packet) == 0
}

// HasNoICRC reports whether the ICRC at the end of packet is 0, as one that was left out.
func HasNoICRC(packet []byte) bool {
	return len(packet) >= bthSize+ICRCSize && binary.LittleEndian.Uint32(packet[len(packet)-ICRCSize:]) == 0
}

// difference returns the exclusive or of the packet's ICRC and the one that is right for id.
func (f *Flow) difference(id uint16, packet []byte) uint32 {
	end := len(packet) - ICRCSize
	begin := bthSize + (end-bthSize)&15 // the rest is a multiple of 16 bytes
	return f.Sum(id, packet[:begin], packet[begin:end], 0) ^ binary.LittleEndian.Uint32(packet[end:])
}

// SolveID finds the IPv4 identification for which the ICRC of packet is right. Sockets do not show
// it. A packet that is wrong in another way passes once in 2^16. For IPv6 SolveID is Check, and id
// is 0.
func (f *Flow) SolveID(packet []byte) (id uint16, ok bool) {
	if len(packet) < bthSize+ICRCSize {
		return 0, false
	}
	d := f.difference(0, packet)
	if f.ipv6 || d == 0 {
		return 0, d == 0
	}
	// The difference at the end is the term of the identification after running everything that
	// follows it. Running it back as many zeros, to before the identification, leaves its two bytes
	// and nothing else in the register.
	d = runBack(d, len(packet)-ICRCSize+udpSize+ipv4Size-4)
	return uint16(d&0xff<<8 | d>>8), d>>16 == 0
}
