// Package programs has small parallel programs whose result is known exactly. They show how to use
// package shmem, and test it with PEs that are goroutines or processes. Each has a serial
// counterpart.
package programs
