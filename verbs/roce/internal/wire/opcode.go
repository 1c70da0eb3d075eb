package wire

import "strconv"

// Opcode is the operation of a packet, the first byte of its BTH (IBTA volume 1, table 35).
// Known are those of the reliable connection, and the one that reports congestion.
type Opcode uint8

// These are the operations of the reliable connection.
const (
	SendFirst          Opcode = 0x00
	SendMiddle         Opcode = 0x01
	SendLast           Opcode = 0x02
	SendLastImm        Opcode = 0x03
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteLastImm       Opcode = 0x09
	WriteOnly          Opcode = 0x0a
	WriteOnlyImm       Opcode = 0x0b
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	CompareSwap        Opcode = 0x13
	FetchAdd           Opcode = 0x14
)

// Congestion is the operation of the congestion notification packet, CNP (IBTA annex A17, 17.9.3):
// the network has marked a packet that the receiver of the CNP had sent. Its PSN is 0, it has the
// mark Backward, and it is neither a request nor a response.
const Congestion Opcode = 0x81

// Sizes of the headers, in bytes.
const (
	bthSize          = 12
	rethSize         = 16
	atomicETHSize    = 28
	aethSize         = 4
	atomicAckETHSize = 8
	immSize          = 4
	cnpSize          = 16 // reserved, zero
)

// MaxHeader is the length of the longest BTH with its extended headers, that of an atomic request.
const MaxHeader = bthSize + atomicETHSize

// trait is a set of properties of an opcode.
type trait uint16

const (
	known trait = 1 << iota
	request
	response
	first
	middle
	last
	only
	send
	write
	readResponse
	atomic
	reth
	imm
	aeth
	carries // a payload
	notifies
)

// Packets of one kind of message share these traits.
const (
	ofSend         = known | request | send | carries
	ofWrite        = known | request | write | carries
	ofReadResponse = known | response | readResponse | carries
	ofAtomic       = known | request | atomic | only
)

// opcodeTable has the traits, the length of the headers and the name of each opcode. It has an
// entry for every byte, so that a look-up needs no comparison.
var opcodeTable = [256]struct {
	traits trait
	header uint8
	name   string
}{
	SendFirst:    {ofSend | first, bthSize, "SEND first"},
	SendMiddle:   {ofSend | middle, bthSize, "SEND middle"},
	SendLast:     {ofSend | last, bthSize, "SEND last"},
	SendLastImm:  {ofSend | last | imm, bthSize + immSize, "SEND last with immediate"},
	SendOnly:     {ofSend | only, bthSize, "SEND only"},
	SendOnlyImm:  {ofSend | only | imm, bthSize + immSize, "SEND only with immediate"},
	WriteFirst:   {ofWrite | first | reth, bthSize + rethSize, "WRITE first"},
	WriteMiddle:  {ofWrite | middle, bthSize, "WRITE middle"},
	WriteLast:    {ofWrite | last, bthSize, "WRITE last"},
	WriteLastImm: {ofWrite | last | imm, bthSize + immSize, "WRITE last with immediate"},
	WriteOnly:    {ofWrite | only | reth, bthSize + rethSize, "WRITE only"},
	WriteOnlyImm: {ofWrite | only | reth | imm, bthSize + rethSize + immSize,
		"WRITE only with immediate"},
	ReadRequest:        {known | request | only | reth, bthSize + rethSize, "READ request"},
	ReadResponseFirst:  {ofReadResponse | first | aeth, bthSize + aethSize, "READ response first"},
	ReadResponseMiddle: {ofReadResponse | middle, bthSize, "READ response middle"},
	ReadResponseLast:   {ofReadResponse | last | aeth, bthSize + aethSize, "READ response last"},
	ReadResponseOnly:   {ofReadResponse | only | aeth, bthSize + aethSize, "READ response only"},
	Acknowledge:        {known | response | only | aeth, bthSize + aethSize, "ACK"},
	AtomicAcknowledge:  {known | response | only | aeth, bthSize + aethSize + atomicAckETHSize, "atomic ACK"},
	CompareSwap:        {ofAtomic, bthSize + atomicETHSize, "CMP_SWAP"},
	FetchAdd:           {ofAtomic, bthSize + atomicETHSize, "FETCH_ADD"},
	Congestion:         {known | notifies, bthSize + cnpSize, "CNP"},
}

// String returns the name of the operation in the specification.
func (o Opcode) String() string {
	if name := opcodeTable[o].name; name != "" {
		return name
	}
	return "opcode 0x" + strconv.FormatUint(uint64(o), 16)
}

// is reports whether any trait of t is true of o.
func (o Opcode) is(t trait) bool { return opcodeTable[o].traits&t != 0 }

// Known reports whether o is an operation of the reliable connection, or Congestion.
func (o Opcode) Known() bool { return o.is(known) }

// HeaderLen is the length in bytes of the BTH and the extended headers of o, 0 when o is not known.
func (o Opcode) HeaderLen() int { return int(opcodeTable[o].header) }

// IsRequest reports whether a requester sends o.
func (o Opcode) IsRequest() bool { return o.is(request) }

// IsResponse reports whether a responder sends o.
func (o Opcode) IsResponse() bool { return o.is(response) }

// IsFirst reports whether o is the first of several packets of a message.
func (o Opcode) IsFirst() bool { return o.is(first) }

// IsMiddle reports whether o is neither the first nor the last of several packets of a message.
func (o Opcode) IsMiddle() bool { return o.is(middle) }

// IsLast reports whether o is the last of several packets of a message.
func (o Opcode) IsLast() bool { return o.is(last) }

// IsOnly reports whether o is a message of one packet.
func (o Opcode) IsOnly() bool { return o.is(only) }

// Begins reports whether a message begins with o: first or only.
func (o Opcode) Begins() bool { return o.is(first | only) }

// Ends reports whether a message ends with o: last or only.
func (o Opcode) Ends() bool { return o.is(last | only) }

// IsSend reports whether o is a packet of a SEND.
func (o Opcode) IsSend() bool { return o.is(send) }

// IsWrite reports whether o is a packet of a WRITE.
func (o Opcode) IsWrite() bool { return o.is(write) }

// IsRead reports whether o is a READ request.
func (o Opcode) IsRead() bool { return o == ReadRequest }

// IsReadResponse reports whether o is a packet of the response to a READ.
func (o Opcode) IsReadResponse() bool { return o.is(readResponse) }

// IsAtomic reports whether o is the request of an atomic.
func (o Opcode) IsAtomic() bool { return o.is(atomic) }

// HasImm reports whether o has an immediate.
func (o Opcode) HasImm() bool { return o.is(imm) }

// HasAETH reports whether o has a syndrome and an MSN.
func (o Opcode) HasAETH() bool { return o.is(aeth) }

// HasPayload reports whether o may carry a payload.
func (o Opcode) HasPayload() bool { return o.is(carries) }
