package verbs

// DMABufRegistrar is a [PD] that can register memory which has no address in this process, such as
// that of a GPU, by the dma-buf that its driver exports. Ask with a type assertion; a NIC or a
// system that lacks it refuses with [ErrNotSupported] nevertheless.
type DMABufRegistrar interface {
	// RegisterDMABuf makes length bytes of a dma-buf, from offset, known to the NIC
	// (ibv_reg_dmabuf_mr(3); needs rdma-core 34, Linux 5.12 and a driver that takes part, as mlx5
	// does).
	//
	// fd is the dma-buf's file descriptor. It stays the caller's, who may close it once the call
	// has returned: the region holds the dma-buf itself. What the exporter demands for as long as
	// it is in use (keeping a GPU allocation, say) is to be kept until [MR.Close] has returned.
	//
	// iova is the address by which work requests name the first byte, and [MR.Addr] of the region.
	// It need not be an address of this process, but its offset within a page must be that of
	// offset. Access is as for [PD.RegisterMR].
	RegisterDMABuf(fd int, offset, length, iova uint64, access AccessFlags) (MR, error)
}
