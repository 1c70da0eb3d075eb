package rdmacore

// Config configures [Open]. The zero value takes every device of the host.
type Config struct {
	// Library is the path of libibverbs; empty means libibverbs.so.1, which the dynamic loader
	// looks up as for any program.
	Library string
	// Devices chooses devices, and their order, as [verbs.ParseDeviceFilter] reads it:
	// "mlx5_0:1,mlx5_1:1", "mlx5_*", "^mlx5_2". Empty takes all, in the library's order.
	Devices string
}
