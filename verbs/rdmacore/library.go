//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"

	"ibverbx/verbs"
)

// defaultLibrary is the name by which the dynamic loader finds libibverbs.
const defaultLibrary = "libibverbs.so.1"

// library is an open libibverbs: the addresses of its functions, by name. Calls of the hot path are
// not here, since they are not exported: a device reads them from its context.
type library struct {
	path   string
	handle uintptr

	errnoLocation uintptr // __errno_location of the C library

	getDeviceList, freeDeviceList, getDeviceName uintptr
	openDevice, closeDevice                      uintptr
	queryDevice, queryPort, queryGID             uintptr
	getAsyncEvent, ackAsyncEvent                 uintptr
	allocPD, deallocPD                           uintptr
	regMR, deregMR                               uintptr
	createCompChannel, destroyCompChannel        uintptr
	createCQ, destroyCQ                          uintptr
	getCQEvent, ackCQEvents                      uintptr
	createQP, destroyQP, modifyQP, queryQP       uintptr

	// Functions of newer versions only; 0 if missing.
	regMRIova2  uintptr // rdma-core 28
	queryGIDEx  uintptr // rdma-core 32
	regDMABufMR uintptr // rdma-core 34
}

// openLibrary loads libibverbs. It stays loaded for the life of the process: its drivers do not
// expect to be unloaded.
func openLibrary(path string) (*library, error) {
	if path == "" {
		path = defaultLibrary
	}
	runtime.LockOSThread() // dlerror's text belongs to the thread
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	runtime.UnlockOSThread()
	if err != nil {
		hint := "install rdma-core (Debian and Ubuntu: libibverbs1 and ibverbs-providers; Fedora and RHEL: " +
			"libibverbs)"
		if path != defaultLibrary {
			hint = "is that the path? Else " + hint
		}
		return nil, &verbs.OpError{Op: "open " + path, Err: fmt.Errorf("%w: %w", ErrNoLibrary, err),
			Detail: hint}
	}
	l := &library{path: path, handle: handle}
	for _, s := range []struct {
		name string
		addr *uintptr
	}{
		{"__errno_location", &l.errnoLocation},
		{"ibv_get_device_list", &l.getDeviceList}, {"ibv_free_device_list", &l.freeDeviceList},
		{"ibv_get_device_name", &l.getDeviceName},
		{"ibv_open_device", &l.openDevice}, {"ibv_close_device", &l.closeDevice},
		{"ibv_query_device", &l.queryDevice}, {"ibv_query_port", &l.queryPort},
		{"ibv_query_gid", &l.queryGID},
		{"ibv_get_async_event", &l.getAsyncEvent}, {"ibv_ack_async_event", &l.ackAsyncEvent},
		{"ibv_alloc_pd", &l.allocPD}, {"ibv_dealloc_pd", &l.deallocPD},
		{"ibv_reg_mr", &l.regMR}, {"ibv_dereg_mr", &l.deregMR},
		{"ibv_create_comp_channel", &l.createCompChannel},
		{"ibv_destroy_comp_channel", &l.destroyCompChannel},
		{"ibv_create_cq", &l.createCQ}, {"ibv_destroy_cq", &l.destroyCQ},
		{"ibv_get_cq_event", &l.getCQEvent}, {"ibv_ack_cq_events", &l.ackCQEvents},
		{"ibv_create_qp", &l.createQP}, {"ibv_destroy_qp", &l.destroyQP}, {"ibv_modify_qp", &l.modifyQP},
		{"ibv_query_qp", &l.queryQP},
	} {
		if *s.addr, err = purego.Dlsym(handle, s.name); err != nil {
			return nil, &verbs.OpError{Op: "open " + path, Err: ErrNoLibrary, Detail: "it has no " + s.name +
				": is it libibverbs?"}
		}
	}
	l.regMRIova2 = l.probe("ibv_reg_mr_iova2")
	l.queryGIDEx = l.probe("_ibv_query_gid_ex")
	l.regDMABufMR = l.probe("ibv_reg_dmabuf_mr")
	return l, nil
}

// probe returns the address of a function, or 0 if it is missing.
func (l *library) probe(name string) uintptr {
	addr, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0
	}
	return addr
}
