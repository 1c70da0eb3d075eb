// Package units reads and writes the quantities of the command line: sizes in bytes, rates of
// links, and lists of sizes.
//
// Sizes count in powers of two, as is usual for RDMA benchmarks: 64K is 65536. Rates of links count
// in powers of ten, as vendors do: 25Gbit is 25,000,000,000 bits a second.
package units
